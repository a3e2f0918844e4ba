"""Our revisions, one at a time, from inside a revision of your own.

For people who want one line of revisions, and no second branch::

    from alembic import op
    from brooq_sa.migrations import steps

    def upgrade() -> None:
        steps.upgrade_step(op, "brooq_0001")

    def downgrade() -> None:
        steps.downgrade_step(op, "brooq_0001")

A later release's revision goes into another one of yours, in the order of their numbers.
"""

from __future__ import annotations

from typing import Any, Protocol

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from brooq_sa import migrations

from .options import Target, target


class Operations(Protocol):
    """What a step needs of ``alembic.op``, or of an `alembic.operations.Operations`."""

    def get_context(self) -> MigrationContext: ...


def upgrade_step(op: Operations, revision: str, *, table: str | None = None, schema: str | None = None) -> None:
    """What one revision of the branch adds.

    Args:
        op: ``alembic.op``.
        revision: such as ``brooq_0001``.
        table: the job table's name; what is None is read from the options, as the branch itself does.
        schema: where it lies.

    Raises:
        MigrationError: a table of that name is there already.
        alembic.util.CommandError: no such revision.
    """
    context = op.get_context()
    module_of(revision).apply(context, _target(context, table, schema))


def downgrade_step(op: Operations, revision: str, *, table: str | None = None, schema: str | None = None) -> None:
    """What one revision of the branch adds is taken away; arguments and errors as for `upgrade_step`."""
    context = op.get_context()
    module_of(revision).revert(context, _target(context, table, schema))


def _target(context: MigrationContext, table: str | None, schema: str | None) -> Target:
    configured = target(context)
    return Target(table or configured.table, schema or configured.schema)


def module_of(revision: str) -> Any:
    """The module of a revision, whose ``apply`` and ``revert`` take a context and a target.

    Raises:
        alembic.util.CommandError: no such revision.
    """
    return ScriptDirectory(str(migrations.script_location())).get_revision(revision).module
