"""The sibling engines that a worker needs beside the user's own.

Claiming, settling and renewing must not wait for a connection that handlers have taken, so each of them has one set
apart: a pool made like the user's (same creator, same arguments, same listeners), which holds that connection alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from . import sqlite
from .exc import UsageError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_SYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite"}
_ASYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}


def sync_engine(engine: Engine | AsyncEngine) -> Engine:
    """The engine itself, or for an AsyncEngine a sync one on the same database.

    Raises:
        UsageError: the database is none that jobs live in, or one that only a single connection sees.
    """
    if isinstance(engine, Engine):
        _check(engine.url)
        return engine
    url = getattr(engine, "url", None)
    if not isinstance(url, URL):
        raise UsageError(f"{engine!r:.200} is no engine. Give a sqlalchemy Engine or AsyncEngine.")
    _check(url)
    return create_engine(url.set(drivername=_SYNC_DRIVERS[url.get_backend_name()]))


def async_engine(engine: Engine | AsyncEngine) -> AsyncEngine:
    """The engine itself, or for an Engine an async one on the same database.

    Raises:
        UsageError: greenlet, or on SQLite aiosqlite, is not installed.
    """
    if not isinstance(engine, Engine):
        return engine
    try:
        from sqlalchemy.ext.asyncio import create_async_engine

        made = create_async_engine(engine.url.set(drivername=_ASYNC_DRIVERS[engine.url.get_backend_name()]))
    except ImportError as error:
        raise UsageError(
            f"An async handler's claim.session needs {error.name}, which is not installed. Install brooq-sa[asyncio]."
        ) from error
    return sqlite.configure(made) if engine.dialect.name == "sqlite" else made


def _check(url: URL) -> None:
    backend = url.get_backend_name()
    if backend not in _SYNC_DRIVERS:
        raise UsageError(f"The engine is on {backend}. Jobs live in PostgreSQL or SQLite.")
    if backend == "sqlite" and (url.database in (None, "", ":memory:") or "mode=memory" in str(url.database)):
        raise UsageError("An in-memory SQLite database is seen by one connection alone. Give the engine a file.")


def sibling(engine: Engine) -> Engine:
    """An engine with a pool of its own, made like that of `engine`; on SQLite, set up for jobs."""
    twin = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    return sqlite.configure(twin) if twin.dialect.name == "sqlite" else twin


class Reserved:
    """One connection set apart, made at first use and made anew after any error.

    Its transactions are READ COMMITTED whatever the engine's or the database's default is: a claim under REPEATABLE
    READ would fail where it should skip. Where that is the default anyway, a statement needs no BEGIN and COMMIT around
    it, which saves two round trips.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = sibling(engine)
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection whose work is committed at the end of the block, and whose errors cost only the connection."""
        connection = self._connection or self._connect()
        try:
            with connection.begin():
                yield connection
        except BaseException:
            self._drop()
            raise

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        try:
            if connection.dialect.name == "postgresql":
                connection = self._read_committed(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    @staticmethod
    def _read_committed(connection: Connection) -> Connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        default = connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one()
        connection.commit()
        if default == "read committed":
            return connection
        return connection.execution_options(isolation_level="READ COMMITTED")

    def close(self) -> None:
        """Close the connection; another transaction would make another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._engine.dispose()

    def _drop(self) -> None:
        """Throw the connection away, in whatever state it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):  # it may well be broken, which is why it goes
                connection.invalidate()
            with suppress(SQLAlchemyError):
                connection.close()
