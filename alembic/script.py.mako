"""${message}

Frozen: it spells its DDL out and imports nothing that a later release may change.
"""

from __future__ import annotations

from alembic import op
from alembic.runtime.migration import MigrationContext

from brooq_sa.migrations import groundwork, options
from brooq_sa.migrations.options import Target

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    context = op.get_context()
    apply(context, options.target(context))


def downgrade() -> None:
    context = op.get_context()
    revert(context, options.target(context))


def apply(context: MigrationContext, target: Target) -> None:
    raise NotImplementedError


def revert(context: MigrationContext, target: Target) -> None:
    raise NotImplementedError
