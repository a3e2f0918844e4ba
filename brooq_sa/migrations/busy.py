"""Changes to tables that are big and in use: what revisions after the first are made of.

A statement that waits for a lock on a table makes everybody else who comes after it wait as well. So none waits long:
`change` gives up its place after `LOCK_TIMEOUT`, lets the others pass, and comes again, a limited number of times.
Indexes are built CONCURRENTLY, which blocks nobody and needs to stand outside of any transaction; what has gone before
in the transaction is committed then. So every statement of a revision that builds one must be one that can run again:
``ADD COLUMN IF NOT EXISTS``. On SQLite, whose writers take turns anyway, statements simply run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .groundwork import TEMPORARY, quote, run, within
from .options import MigrationError, Target

LOCK_TIMEOUT = timedelta(seconds=1)
"""How long a change waits for a lock, and everybody else for it."""
TRIES = 10
"""How often a change asks for its lock."""
LONGEST_PAUSE = timedelta(seconds=3)
"""Between two of them, for the others to pass."""

INDEX_PATIENCE = timedelta(minutes=2)
"""How long the building of an index waits for the end of transactions that began before it. It blocks nobody."""

LOCK_NOT_AVAILABLE = "55P03"


def change(context: MigrationContext, target: Target, *statements: str) -> None:
    """Run DDL that locks the job table for a moment, in one go, and be patient about it.

    Args:
        statements: such as ``ALTER TABLE ... ADD COLUMN IF NOT EXISTS``, without a default that must be computed for
            each row.

    Raises:
        MigrationError: others held the table all the time; the text says who. Nothing of it was done.
    """
    if context.dialect.name != "postgresql":
        for statement in statements:
            run(context, statement)
    elif context.as_sql:
        run(context, f"SET LOCAL lock_timeout = '{_milliseconds(LOCK_TIMEOUT)}'")
        for statement in statements:
            run(context, statement)
        run(context, "SET LOCAL lock_timeout TO DEFAULT")
    else:
        _change_patiently(context, target, statements)


def _change_patiently(context: MigrationContext, target: Target, statements: tuple[str, ...]) -> None:
    connection = _connection(context)
    before = str(connection.execute(sa.text("SHOW lock_timeout")).scalar())
    began = time.monotonic()
    for attempt in range(1, TRIES + 1):
        savepoint = connection.begin_nested()
        try:
            run(context, f"SET LOCAL lock_timeout = '{_milliseconds(LOCK_TIMEOUT)}'")
            for statement in statements:
                run(context, statement)
            run(context, f"SET LOCAL lock_timeout = '{before}'")
            savepoint.commit()
        except DBAPIError as error:
            savepoint.rollback()
            if not _is_lock_timeout(error):
                raise
            if attempt == TRIES:
                raise MigrationError(_advice(connection, target, time.monotonic() - began)) from error
        else:
            return
        time.sleep(min(attempt * LOCK_TIMEOUT, LONGEST_PAUSE).total_seconds())


def build_index(context: MigrationContext, target: Target, name: str, definition: str, *, unique: bool = False) -> None:
    """Build an index on the job table, or on one beside it, while others read and write it.

    What an attempt that failed has left of it is cleared away first, and after a failure.

    Args:
        name: of the index, such as ``job_priority_idx``.
        definition: what follows ``ON table``, such as ``(priority) WHERE state = 'done'``.
        unique: whether it is a unique index.

    Raises:
        MigrationError: transactions that began before did not end in time. Run it again later.
    """
    kind = "UNIQUE INDEX" if unique else "INDEX"
    on = within(target, target.table)
    if not _can_step_outside(context, target):
        inner = within(target, name) if context.dialect.name == "sqlite" else quote(name)
        outer = quote(target.table) if context.dialect.name == "sqlite" else on
        change(context, target, f"CREATE {kind} IF NOT EXISTS {inner} ON {outer} {definition}")
        return
    with outside_transaction(context):
        _drop_if_invalid(context, target, name)
        try:
            run(context, f"CREATE {kind} CONCURRENTLY IF NOT EXISTS {quote(name)} ON {on} {definition}")
        except DBAPIError as error:
            _drop_if_invalid(context, target, name)
            if not _is_lock_timeout(error):
                raise
            waited = INDEX_PATIENCE.total_seconds()
            raise MigrationError(_advice(_connection(context), target, waited, of_index=name)) from error


def drop_index(context: MigrationContext, target: Target, name: str) -> None:
    """The index is gone, and nobody had to wait for it."""
    if _can_step_outside(context, target):
        with outside_transaction(context):
            run(context, f"DROP INDEX CONCURRENTLY IF EXISTS {within(target, name)}")
    else:
        change(context, target, f"DROP INDEX IF EXISTS {within(target, name)}")


@contextmanager
def outside_transaction(context: MigrationContext) -> Iterator[None]:
    """Where statements stand that no transaction may hold. What has gone before is committed.

    Where migrations of ours take turns, the turn is kept.
    """
    if context.as_sql:
        with context.autocommit_block():
            yield
        return
    with _turn_kept(context), context.autocommit_block():
        before = str(_connection(context).execute(sa.text("SHOW lock_timeout")).scalar())
        run(context, f"SET lock_timeout = '{_milliseconds(INDEX_PATIENCE)}'")
        try:
            yield
        except BaseException:
            with suppress(DBAPIError):  # it may be the connection that failed
                run(context, f"SET lock_timeout = '{before}'")
            raise
        run(context, f"SET lock_timeout = '{before}'")


@contextmanager
def _turn_kept(context: MigrationContext) -> Iterator[None]:
    """The turn that the transaction has is the session's until there is another transaction to have it."""
    turn = context.config.attributes.get("brooq.turn") if context.config is not None else None
    if turn is None:
        yield
        return
    _about_turn(context, "pg_advisory_lock", turn)
    try:
        yield
    except BaseException:
        with suppress(DBAPIError):
            _about_turn(context, "pg_advisory_unlock", turn)
        raise
    _about_turn(context, "pg_advisory_xact_lock", turn)
    _about_turn(context, "pg_advisory_unlock", turn)


def _about_turn(context: MigrationContext, function: str, turn: str) -> None:
    ask = getattr(sa.func, function)
    _connection(context).execute(sa.select(ask(sa.func.hashtextextended(turn, 0))))


def _can_step_outside(context: MigrationContext, target: Target) -> bool:
    """Whether there is a way out of the transaction: on PostgreSQL, unless it is the caller's own.

    In a caller's transaction, an index is built the plain way, which keeps writers out meanwhile. On temporary tables,
    which nobody else sees, there is no point in more.
    """
    if context.dialect.name != "postgresql" or target.schema == TEMPORARY:
        return False
    return context.as_sql or not context._in_external_transaction


def _drop_if_invalid(context: MigrationContext, target: Target, name: str) -> None:
    if context.as_sql:
        return
    found = _connection(context).execute(
        sa.text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"),
        {"name": within(target, name)},
    )
    if found.scalar() is False:
        run(context, f"DROP INDEX CONCURRENTLY IF EXISTS {within(target, name)}")


_HOLDERS = """
    SELECT pid, coalesce(nullif(application_name, ''), usename::text) AS who, state,
        extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL
        AND (:index OR pid IN (SELECT pid FROM pg_locks WHERE relation = to_regclass(:table) AND granted))
    ORDER BY xact_start LIMIT 5"""


def _advice(connection: Connection, target: Target, waited: float, of_index: str | None = None) -> str:
    rows = connection.execute(sa.text(_HOLDERS), {"table": within(target, target.table), "index": of_index is not None})
    holders = [f"process {row.pid} ({row.who}, {row.state}, for {row.seconds} s)" for row in rows]
    what = f"The index {of_index!r} was not built" if of_index else f"Table {str(target)!r} was not changed"
    if not holders:
        return f"{what}: it was in use for {waited:.0f} s. Run this again."
    return (
        f"{what}: others have used it for {waited:.0f} s in transactions that do not end: {'; '.join(holders)}. Run"
        " this again when they have ended, or end one: SELECT pg_terminate_backend(PROCESS)."
    )


def _is_lock_timeout(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", getattr(error.orig, "pgcode", None)) == LOCK_NOT_AVAILABLE


def _connection(context: MigrationContext) -> Connection:
    assert context.connection is not None  # noqa: S101 - only offline mode has none
    return context.connection


def _milliseconds(duration: timedelta) -> str:
    return f"{duration / timedelta(milliseconds=1):.0f}ms"
