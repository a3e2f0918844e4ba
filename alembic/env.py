"""Alembic's environment for working on this repository.

The database is the one of ``-x url=...``, of the environment's ``DATABASE_URL``, or of ``sqlalchemy.url`` in
alembic.ini, in that order.
"""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import URL, MetaData, create_engine, pool

from brooq_sa.cli.database import normalized_url
from brooq_sa.migrations import groundwork, options
from brooq_sa.schema import job_table


def run_migrations() -> None:
    if context.is_offline_mode():
        configure(dialect_name=database_url().get_backend_name(), dialect_opts={"paramstyle": "named"})
        with context.begin_transaction():
            context.run_migrations()
        return
    engine = create_engine(database_url(), poolclass=pool.NullPool)
    with engine.connect() as connection, connection.begin():
        groundwork.begin(connection)
        configure(connection=connection)
        context.run_migrations()


def database_url() -> URL:
    given = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("DATABASE_URL")
    return normalized_url(given or context.config.get_alembic_option("sqlalchemy.url", ""))


def configure(**how: object) -> None:
    metadata = MetaData()

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        tables = metadata.tables.values()
        if kind == "schema":
            return name in {table.schema for table in tables}
        return kind != "table" or name in {table.name for table in tables}

    context.configure(
        target_metadata=metadata,
        include_schemas=True,
        include_name=is_ours,
        transactional_ddl=True,
        **how,
    )
    target = options.target(context.get_context())
    job_table(metadata, target.table, target.schema)


run_migrations()
