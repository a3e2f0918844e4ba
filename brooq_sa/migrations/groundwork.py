"""What a revision sees to before its first statement, and how it writes names into SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from .options import MigrationError, Target

TELLING_COLUMNS = {"topic", "payload", "state", "attempts", "available_at", "locked_by", "locked_until"}
"""A table that has all of these is taken for a job table."""


TEMPORARY = "pg_temp"
"""PostgreSQL's own name for the schema of a session's temporary tables: always there, and never made."""


def quote(name: str) -> str:
    """A name as SQL, on PostgreSQL and SQLite alike, whatever characters it holds."""
    return '"' + name.replace('"', '""') + '"'


def within(target: Target, name: str) -> str:
    """A name in the target's schema, as SQL."""
    return quote(name) if target.schema is None else f"{quote(target.schema)}.{quote(name)}"


def run(context: MigrationContext, sql: str) -> None:
    """Run a statement as it stands, or print it in offline mode."""
    statement = sa.DDL(sql.replace("%", "%%"))  # type: ignore[no-untyped-call]  # it formats with %
    context.execute(statement)


def begin(connection: sa.Connection) -> None:
    """A transaction that takes DDL along, so that a failure half-way leaves nothing.

    SQLite can; Python's sqlite3 in its default mode opens no transaction for DDL (manual of `sqlite3`, "Transaction
    control"), and each statement would be committed on its own.
    """
    if not connection.in_transaction():
        connection.begin()  # an engine may have its own BEGIN to emit
    if connection.dialect.name != "sqlite":
        return
    driver = connection.connection.driver_connection
    # With autocommit=True the driver's commit() does nothing, so a transaction begun here would be lost.
    if not getattr(driver, "in_transaction", True) and getattr(driver, "autocommit", None) is not True:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def take_turn(connection: sa.Connection, turn: str) -> None:
    """This transaction is the only one that has this turn; others wait for its end."""
    begin(connection)
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(turn, 0))))


def make_schema(context: MigrationContext, target: Target) -> None:
    """The target's schema exists.

    Raises:
        MigrationError: on SQLite, a schema is an attached database, and that cannot be made here.
    """
    if target.schema in (None, TEMPORARY):
        return
    if context.dialect.name == "sqlite":
        _demand_attached(context, target.schema)
    # IF NOT EXISTS asks for the right to create schemas even where there is nothing to create.
    elif context.as_sql or not _inspect(context).has_schema(target.schema):
        run(context, f"CREATE SCHEMA IF NOT EXISTS {quote(target.schema)}")


def _demand_attached(context: MigrationContext, schema: str) -> None:
    if not context.as_sql and schema not in _inspect(context).get_schema_names():
        raise MigrationError(
            f"brooq_schema is {schema!r}: on SQLite that names an attached database, and this connection has none of"
            " that name. Attach it when the engine connects, or leave the option out."
        )


def note_revision(context: MigrationContext, target: Target, revision: str) -> None:
    """The job table itself says which revision it is at, whoever migrates it and wherever they note that.

    On PostgreSQL its comment does. SQLite knows no comments on tables: there it is the text of a trigger that never
    fires, which goes when the table goes.
    """
    if context.dialect.name == "postgresql":
        said = f"Jobs of brooq-sa, at revision {revision}"
        run(context, f"COMMENT ON TABLE {within(target, target.table)} IS '{said}'")
        return
    trigger, on = within(target, f"{target.table}_revision"), quote(target.table)
    run(context, f"DROP TRIGGER IF EXISTS {trigger}")
    run(context, f"CREATE TRIGGER {trigger} AFTER UPDATE OF id ON {on} WHEN 0 BEGIN SELECT '{revision}'; END")


def refuse_existing(context: MigrationContext, target: Target, companions: Sequence[str] = ()) -> None:
    """No table has the target's name yet, nor that of a table beside it.

    Args:
        companions: what the names of those end with.

    Raises:
        MigrationError: one has; the text says what kind, and which option names another.
    """
    if context.as_sql:
        return
    inspector = _inspect(context)
    if not inspector.has_table(target.table, schema=target.schema):
        for name in (f"{target.table}_{companion}" for companion in companions):
            if inspector.has_table(name, schema=target.schema):
                raise _foreign(f"{target}".removesuffix(target.table) + name)
        return
    columns = {column["name"] for column in inspector.get_columns(target.table, schema=target.schema)}
    if columns >= TELLING_COLUMNS:
        raise MigrationError(
            f"Table {str(target)!r} exists already, and is a job table whose revision this environment does not know"
            f" (its version table is {context.version_table!r}). Migrate it with what made it; if nothing keeps its"
            " revision, drop it when it is empty, or run Alembic's `stamp` on it."
        )
    raise _foreign(str(target))


def _foreign(table: str) -> MigrationError:
    return MigrationError(
        f"Table {table!r} exists already, and is not brooq-sa's. Give the job table another name: option"
        " brooq_table in alembic.ini or [tool.alembic], `-x brooq_table=NAME`, or --table of `brooq-sa migrate`;"
        " brooq_schema (--schema) puts it into a schema of its own."
    )


def _inspect(context: MigrationContext) -> Any:
    # A new inspector each time: it remembers what it saw, and the revision has changed it since.
    assert context.connection is not None  # noqa: S101 - only offline mode has none
    return sa.inspect(context.connection)
