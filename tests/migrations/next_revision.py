"""A revision that this package does not have: what its next release might bring, or the one after."""

from __future__ import annotations

import shutil
from pathlib import Path

from brooq_sa import migrations

SOURCE = '''\
"""A column, and an index on it."""

from alembic import op

from brooq_sa.migrations import busy, groundwork, options
from brooq_sa.migrations.groundwork import within

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade(**environment):
    context = op.get_context()
    if options.is_meant(context, environment):
        apply(context, options.target(context))


def downgrade(**environment):
    context = op.get_context()
    if options.is_meant(context, environment):
        revert(context, options.target(context))


def apply(context, target):
    if context.connection is not None and not context.as_sql:
        groundwork.begin(context.connection)
    again = "IF NOT EXISTS " if context.dialect.name == "postgresql" else ""
    add = f"ALTER TABLE {{within(target, target.table)}} ADD COLUMN {{again}}{column}"
    busy.change(context, target, f"{{add}} TEXT", f"{{add}}_count INTEGER DEFAULT 0 NOT NULL")
    busy.build_index(context, target, f"{{target.table}}_{column}_idx", "({column}, topic)")
    groundwork.note_revision(context, target, revision)


def revert(context, target):
    if context.connection is not None and not context.as_sql:
        groundwork.begin(context.connection)
    busy.drop_index(context, target, f"{{target.table}}_{column}_idx")
    drop = f"ALTER TABLE {{within(target, target.table)}} DROP COLUMN {column}"
    busy.change(context, target, drop, f"{{drop}}_count")
    groundwork.note_revision(context, target, down_revision)
'''


def write(folder: Path, number: int = 2) -> None:
    """Put the revision of this number into a folder."""
    revision, before = f"brooq_{number:04}", f"brooq_{number - 1:04}"
    source = SOURCE.format(revision=revision, before=before, column=f"note{number}")
    (folder / f"{revision}_note.py").write_text(source, encoding="utf-8")


def package(folder: Path, newest: int = 2) -> Path:
    """A copy of the branch's folder as a later release would have it; where its revisions are."""
    shutil.copytree(migrations.script_location(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    for number in range(2, newest + 1):
        write(folder / "versions", number)
    return folder / "versions"
