"""The Alembic branch ``brooq``, and how to run it without an ``alembic.ini``.

People who have Alembic list the folder ``brooq_sa:migrations/versions`` in their ``version_locations``. Others call
`upgrade`, or run ``brooq-sa migrate upgrade``::

    from brooq_sa import migrations

    migrations.upgrade(engine)

These functions note the revision in a version table of their own, ``<table>_brooq_version`` in the schema of the job
table. Alembic's usual ``alembic_version`` belongs to the environment that made it: a plain ``alembic upgrade head`` of
yours would refuse a database in which it finds a revision that it does not know. Use one way or the other for a
database, not both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from . import groundwork
from .options import DEFAULT_TABLE, MigrationError, Target

__all__ = [
    "MigrationError",
    "current",
    "downgrade",
    "head",
    "script_location",
    "stamp",
    "upgrade",
    "version_table",
]

_one_at_a_time = threading.Lock()
"""Alembic keeps the running environment in module globals."""


def upgrade(
    bind: Engine | Connection,
    *,
    table: str = DEFAULT_TABLE,
    schema: str | None = None,
    revision: str = "brooq@head",
    out: TextIO | None = None,
) -> None:
    """Bring the job table to a revision; to the newest one unless told otherwise.

    All of it happens or nothing, unless a revision builds an index on PostgreSQL while others use the table: its notes
    say so, and an upgrade that fails there goes on from there when it is run again. Several processes may call it at
    once: they take turns.

    Args:
        bind: an engine, on which it commits; or a connection, in whose transaction it works and which it never
            commits. (An index is then built in that transaction, and keeps writers out meanwhile.
            ``await async_connection.run_sync(upgrade)`` for an async one.)
        table: the job table's name.
        schema: where it lies, made if absent; on SQLite an attached database. None is the connection's default.
        revision: such as ``brooq_0001``.
        out: print the SQL there instead of running it; nothing is connected to.

    Raises:
        MigrationError: a table of that name is there and is not the queue's, or a name that cannot be used.
        alembic.util.CommandError: no such revision.
    """
    target = Target(table, schema)
    if out is not None:
        with _one_at_a_time:
            command.upgrade(_config(target, bind.dialect, "up", out=out), revision, sql=True)
        return
    if isinstance(bind, Engine):
        # Alembic begins and commits, so that a revision may step outside of the transaction to build an index.
        with _connected(bind) as connection, _one_at_a_time:
            config = _config(target, connection.dialect, "up", connection=connection, turn=_turn(target))
            command.upgrade(config, revision)
        return
    with _transaction(bind, target) as connection, _one_at_a_time:
        command.upgrade(_config(target, connection.dialect, "up", connection=connection), revision)


def downgrade(
    bind: Engine | Connection,
    *,
    table: str = DEFAULT_TABLE,
    schema: str | None = None,
    revision: str = "brooq@base",
    out: TextIO | None = None,
) -> None:
    """Take the job table back to a revision; unless told otherwise to before the first, which drops it with its jobs.

    The version table then goes too. A schema is never dropped: others may use it.

    Args:
        revision: such as ``brooq_0001`` or ``-1``. With `out` it may be a range, ``brooq_0002:brooq_0001``; without
            one, the newest revision is taken as the start.

    The other arguments and the errors are those of `upgrade`.
    """
    target = Target(table, schema)
    if out is not None:
        span = revision if ":" in revision else f"{head()}:{revision}"
        with _one_at_a_time:
            command.downgrade(_config(target, bind.dialect, "down", out=out), span, sql=True)
        return
    with _transaction(bind, target) as connection, _one_at_a_time:
        if _current(connection, target) is not None:
            command.downgrade(_config(target, connection.dialect, "down", connection=connection), revision)


def stamp(
    bind: Engine | Connection,
    *,
    table: str = DEFAULT_TABLE,
    schema: str | None = None,
    revision: str = "brooq@head",
) -> None:
    """Note the revision of a job table that something else has migrated, and change nothing else.

    Args:
        revision: where it is; ``brooq@base`` forgets it, and takes our version table away.

    The other arguments and the errors are those of `upgrade`.
    """
    target = Target(table, schema)
    direction = "down" if revision.endswith("base") else "up"
    with _transaction(bind, target) as connection, _one_at_a_time:
        command.stamp(_config(target, connection.dialect, direction, connection=connection), revision)


def current(bind: Engine | Connection, *, table: str = DEFAULT_TABLE, schema: str | None = None) -> str | None:
    """The revision that `upgrade` left the job table at; None if it never ran here."""
    target = Target(table, schema)
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return _current(connection, target)
    return _current(_demand_sync(bind), target)


def head() -> str:
    """The newest revision that this installation has."""
    return resolve("brooq@head")


def resolve(revision: str) -> str:
    """The id of a revision that is named relatively, such as ``brooq@head``.

    Raises:
        alembic.util.CommandError: no such revision.
    """
    return str(ScriptDirectory(script_location()).as_revision_number(revision))


def script_location() -> Path:
    """The folder of the branch; its revisions are in ``versions``."""
    return Path(__file__).parent


def version_table(table: str = DEFAULT_TABLE) -> str:
    """The name of the table in which `upgrade` notes the revision of the job table `table`."""
    return f"{table}_brooq_version"


def _current(connection: Connection, target: Target) -> str | None:
    options = {"version_table": version_table(target.table), "version_table_schema": target.schema}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _config(target: Target, dialect: sa.Dialect, direction: str, **more: Any) -> Config:
    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.attributes |= {
        "brooq.table": target.table,
        "brooq.schema": target.schema,
        "brooq.version_table": version_table(target.table),
        "brooq.dialect": dialect.name,
        "brooq.direction": direction,
    }
    config.attributes |= {f"brooq.{name}": value for name, value in more.items()}
    return config


@contextmanager
def _transaction(bind: Engine | Connection, target: Target) -> Iterator[Connection]:
    """A transaction for DDL: our own on an engine, a savepoint on the caller's connection."""
    if isinstance(bind, Engine):
        with _connected(bind) as connection, connection.begin():
            _take_turn(connection, target)
            yield connection
    else:
        _take_turn(_demand_sync(bind), target)
        with bind.begin_nested():
            yield bind


def _connected(engine: Engine) -> Connection:
    connection = engine.connect()
    if engine.dialect.name == "sqlite":
        return connection
    # AUTOCOMMIT would leave half a migration after a failure, and a snapshot taken before our turn would miss what the
    # one before us did.
    return connection.execution_options(isolation_level="READ COMMITTED")


def _take_turn(connection: Connection, target: Target) -> None:
    groundwork.take_turn(connection, _turn(target))


def _turn(target: Target) -> str:
    return f"brooq-sa migrations of {target}"


def _demand_sync(bind: object) -> Connection:
    if isinstance(bind, Connection):
        return bind
    raise TypeError(
        f"Migrations take an Engine or a Connection, not {type(bind).__name__}."
        " From an AsyncConnection: await connection.run_sync(upgrade); from a Session: upgrade(session.connection())."
    )
