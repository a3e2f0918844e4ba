"""Alembic's environment of `brooq_sa.migrations.upgrade` and `downgrade`; run by Alembic, never imported.

An environment of one's own needs the ``versions`` folder beside this file, and not this file.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from brooq_sa.migrations import groundwork
from brooq_sa.migrations.options import Target


def run_migrations() -> None:
    given = context.config.attributes
    target = Target(given["brooq.table"], given["brooq.schema"])
    version_table: str = given["brooq.version_table"]
    context.configure(
        connection=given.get("brooq.connection"),
        dialect_name=given["brooq.dialect"],
        dialect_opts={"paramstyle": "named"},  # others double percent signs in printed SQL
        version_table=version_table,
        version_table_schema=target.schema,
        transactional_ddl=True,
        output_buffer=given.get("brooq.out"),
    )
    migration = context.get_context()
    with context.begin_transaction():
        if "brooq.turn" in given:
            groundwork.take_turn(given["brooq.connection"], given["brooq.turn"])
        if given["brooq.direction"] == "up":
            # The version table lies beside the job table, and is made before any revision runs.
            groundwork.make_schema(migration, target)
        context.run_migrations()
        if given["brooq.direction"] == "down" and _nothing_is_left():
            migration.execute(sa.schema.DropTable(sa.Table(version_table, sa.MetaData(), schema=target.schema)))


def _nothing_is_left() -> bool:
    if context.is_offline_mode():
        return not context.get_revision_argument()
    return not context.get_context().get_current_heads()


run_migrations()
