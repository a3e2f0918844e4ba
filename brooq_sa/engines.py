"""The sibling engines that a worker needs beside the user's own.

Claiming, settling and renewing must not wait for a connection that handlers have taken, so each of them has one set
apart: a pool made like the user's (same creator, same arguments, same listeners to new connections), which holds that
connection alone.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from . import sqlite
from .exc import UsageError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_SYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite"}
_ASYNC_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}

_ON_LIBPQ = ("psycopg", "psycopg_async", "psycopg2", "psycopg2cffi")
_IN_LIBPQ_TOO = ("host", "port", "user", "password", "passfile", "service", "target_session_attrs", "krbsrvname")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

LOCK_TIMEOUT = "500ms"
"""How long a statement of the worker waits on PostgreSQL for a row that somebody has locked, at the most.

Outcomes share statements, so that one locked row holds up all the others for as long.
"""


def sync_engine(engine: Engine | AsyncEngine) -> Engine:
    """The engine itself, or for an AsyncEngine a sync one on the same database, made from its URL.

    Raises:
        UsageError: the database is none that jobs live in, or one that only a single connection sees; or the URL has
            an argument that only its driver understands.
    """
    if isinstance(engine, Engine):
        _check(engine.url)
        return engine
    url = getattr(engine, "url", None)
    if not isinstance(url, URL):
        raise UsageError(f"{engine!r:.200} is no engine. Give a sqlalchemy Engine or AsyncEngine.")
    _check(url)
    model = engine.sync_engine
    made = create_engine(
        for_driver(url, _SYNC_DRIVERS),
        execution_options=carried(model.get_execution_options()),
        hide_parameters=model.hide_parameters,
    )
    return sqlite.configure_like(made, model) if made.dialect.name == "sqlite" else made


def async_engine(engine: Engine | AsyncEngine) -> AsyncEngine:
    """An async engine on the same database, with a pool of its own: a pool's connections belong to one event loop.

    Raises:
        UsageError: greenlet, or on SQLite aiosqlite, is not installed; or the URL has an argument that only its driver
            understands.
    """
    try:
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        if isinstance(engine, AsyncEngine):
            return AsyncEngine(sibling(engine.sync_engine))
        made = create_async_engine(
            for_driver(engine.url, _ASYNC_DRIVERS),
            execution_options=carried(engine.get_execution_options()),
            hide_parameters=engine.hide_parameters,
        )
    except ImportError as error:
        raise UsageError(
            f"An async handler's claim.session needs {error.name}, which is not installed. Install brooq-sa[asyncio]."
        ) from error
    if engine.dialect.name == "sqlite":
        sqlite.configure_like(made.sync_engine, engine)
    return made


def carried(options: Mapping[str, Any]) -> dict[str, Any]:
    """The execution options that hold for a worker's engines too, such as a `schema_translate_map`.

    Not the isolation level, since a claim that commits each of its statements is none; nor how transactions begin.
    """
    return {name: value for name, value in options.items() if name not in ("isolation_level", sqlite.BEGIN_OPTION)}


def for_driver(url: URL, drivers: Mapping[str, str]) -> URL:
    """The URL for another driver of the same database, its arguments in that one's terms.

    Raises:
        UsageError: an argument has no counterpart.
    """
    made = url.set(drivername=drivers.get(url.get_backend_name(), drivers["postgresql"]))  # or libpq's own "postgres"
    if url.get_backend_name() != "postgresql" or url.get_driver_name() in _ON_LIBPQ:
        return made
    arguments = dict(url.query)
    mode = arguments.pop("ssl", None)
    unknown = [name for name in arguments if name not in _IN_LIBPQ_TOO]
    if mode is not None and mode not in _SSL_MODES:
        unknown.append("ssl")
    if unknown:
        raise UsageError(
            f"The URL's arguments for {url.get_driver_name()} are none for psycopg, which the worker needs:"
            f" {', '.join(sorted(unknown))}. Give a sync Engine on postgresql+psycopg that is set up alike."
        )
    return made.set(query={**arguments, "sslmode": mode} if mode is not None else arguments)


def _check(url: URL) -> None:
    backend = url.get_backend_name()
    if backend not in _SYNC_DRIVERS:
        raise UsageError(f"The engine is on {backend}. Jobs live in PostgreSQL or SQLite.")
    if backend == "sqlite" and _is_in_memory(url):
        raise UsageError(
            "An in-memory SQLite database ends with its connections, and its jobs too. Give the engine a file."
        )


def _is_in_memory(url: URL) -> bool:
    return not url.database or ":memory:" in url.database or "mode=memory" in url.render_as_string()


def sibling(engine: Engine) -> Engine:
    """An engine with a pool of its own, made like that of `engine`; on SQLite, set up for jobs.

    It has the execution options too, as far as they are `carried`.
    """
    twin = Engine(
        engine.pool.recreate(),
        engine.dialect,
        engine.url,
        execution_options=carried(engine.get_execution_options()),
        hide_parameters=engine.hide_parameters,
    )
    _prepare_deadlines(twin)
    return sqlite.configure_like(twin, engine) if twin.dialect.name == "sqlite" else twin


def listening_engine(engine: Engine, url: str | None) -> Engine | None:
    """An engine to hear wake-ups on, or None if `engine` is on a database or a driver without them.

    Args:
        url: where to listen, if not where `engine` is.
    """
    if engine.dialect.name != "postgresql":
        return None
    if url is not None:
        return create_engine(for_driver(make_url(url), _SYNC_DRIVERS), poolclass=NullPool)
    return sibling(engine) if engine.dialect.driver == "psycopg" else None


NETWORK_DEADLINES = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""What libpq is told for a worker's own connections where the URL does not say otherwise (manual, section 34.1.2)."""

_connecting = threading.local()
_preparing = threading.Lock()


def _prepare_deadlines(engine: Engine) -> None:
    """Let `connect` set deadlines on connections of this engine.

    The event belongs to the dialect, which the user's engine and all its siblings share, so once is enough; and it is
    not to change while one of them connects, which goes through its listeners.
    """
    if engine.dialect.driver == "psycopg":
        with _preparing:
            if not event.contains(engine.dialect, "do_connect", _add_deadlines):
                event.listen(engine.dialect, "do_connect", _add_deadlines)


def connect(engine: Engine) -> Connection:
    """A connection that fails, rather than waits for ever, when the network or the server falls silent."""
    _prepare_deadlines(engine)
    _connecting.has_deadlines = True
    try:
        return engine.connect()
    finally:
        _connecting.has_deadlines = False


def _add_deadlines(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
    # The event belongs to the dialect, which the user's own engine shares: leave its connections as they are.
    if getattr(_connecting, "has_deadlines", False):
        for name, value in NETWORK_DEADLINES.items():
            if name != "connect_timeout" or "PGCONNECT_TIMEOUT" not in os.environ:
                parameters.setdefault(name, value)


READ_ONLY = "25006"
"""PostgreSQL's read_only_sql_transaction."""

OVERLONG = ("25P03", "25P04")
"""PostgreSQL's idle_in_transaction_session_timeout and transaction_timeout."""


class Reserved:
    """One connection set apart, made at first use and made anew after any error.

    Its transactions are READ COMMITTED whatever the engine's or the database's default is: a claim under REPEATABLE
    READ would fail where it should skip. Where that is the default anyway, a statement needs no BEGIN and COMMIT around
    it, which saves two round trips.

    A server, or a proxy before it, that has been stopped in its tracks still acknowledges every packet, so no setting
    of the network tells. `break_if_overdue`, called from another thread, does.

    Behind a pooler that hands one server connection to many clients, what is set for the session would befall others,
    and a prepared statement would be looked for where it is not: there, neither is made.

    Args:
        engine: whose sibling the connection comes from.
        patience: how long a transaction may take before `break_if_overdue` breaks it.

    Attributes:
        dialect: the database's name.
        default_level: the isolation of transactions for which nobody asks another, once there is a connection to
            PostgreSQL; as PostgreSQL writes it.
    """

    def __init__(self, engine: Engine, patience: timedelta = timedelta(seconds=30)) -> None:
        self.dialect = engine.dialect.name
        self._engine = sibling(engine)
        self._engine.hide_parameters = True  # errors of the worker go to its log
        self._patience = patience.total_seconds()
        self._connection: Connection | None = None
        self.default_level: str | None = None
        self._commits_by_itself = False
        self._level: str | None = None
        self._busy_since: float | None = None
        self._is_pooled = False
        self._guard = threading.Lock()

    @contextmanager
    def transaction(self, *, is_whole: bool = False) -> Iterator[Connection]:
        """A connection whose work is committed at the end of the block, and whose errors cost only the connection.

        Args:
            is_whole: put BEGIN and COMMIT around it in any case. A statement that commits by itself may be stuck on
                its way when its connection is broken, and be carried out much later. One in a transaction is carried
                out before the COMMIT is sent, or never. What gives an attempt back needs that: the fence cannot tell
                the attempt that follows from the one that was given back.
        """
        self._busy_since = time.monotonic()
        try:
            connection = self._at_level(self._connection or self._connect(), is_whole)
            with connection.begin():
                if self._is_pooled:
                    connection.exec_driver_sql("SELECT set_config('lock_timeout', %s, true)", (LOCK_TIMEOUT,))
                yield connection
        except IntegrityError:
            raise  # an answer like any other, and the connection as good as before
        except BaseException:
            self._drop()
            raise
        finally:
            self._busy_since = None

    def _at_level(self, connection: Connection, is_whole: bool) -> Connection:
        """The connection, to commit each statement by itself or not. The driver is told, and nothing is sent."""
        level = "AUTOCOMMIT" if self._commits_by_itself and not is_whole else "READ COMMITTED"
        if connection.dialect.name == "postgresql" and level != self._level:
            connection.execution_options(isolation_level=level)
            self._level = level
        return connection

    def break_if_overdue(self) -> bool:
        """Shut down the connection of a transaction that takes too long, which then fails; whether that was so."""
        since = self._busy_since
        if since is None or time.monotonic() - since < self._patience:
            return False
        # Under the guard nobody closes the connection, so its descriptor cannot be somebody else's by now.
        with self._guard:
            return self._connection is not None and _shut_down(self._connection)

    def _connect(self) -> Connection:
        # Known from here on, so that it can be broken if it falls silent before it is ready.
        self._connection = connection = connect(self._engine)
        if connection.dialect.name == "postgresql":
            self._connection = connection = self._prepared(connection)
        return connection

    def _prepared(self, connection: Connection) -> Connection:
        """The connection at READ COMMITTED, patient with locked rows for `LOCK_TIMEOUT` alone, its plans kept."""
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        asked = "SELECT current_setting('default_transaction_isolation'), pg_backend_pid()"
        default, server_process = connection.exec_driver_sql(asked).one()
        connection.commit()
        driver_connection: Any = connection.connection.driver_connection
        self._is_pooled = driver_connection.info.backend_pid != server_process
        if self._is_pooled:
            driver_connection.prepare_threshold = None
        else:
            # Our statements are planned the same whatever their parameters are, so once is enough.
            connection.exec_driver_sql(
                "SELECT set_config('lock_timeout', %s, false),"
                " set_config('plan_cache_mode', 'force_generic_plan', false)",
                (LOCK_TIMEOUT,),
            )
            connection.commit()
            if connection.dialect.driver == "psycopg":
                driver_connection.prepare_threshold = 0
        self.default_level = default
        self._commits_by_itself = default == "read committed" and not self._is_pooled
        self._level = "AUTOCOMMIT"
        return connection

    def close(self) -> None:
        """Close the connection; another transaction would make another."""
        with self._guard:
            connection, self._connection = self._connection, None
            if connection is not None and self._busy_since is not None and _shut_down(connection):
                connection = None  # the thread that waits for it finds it broken; to close it here would wait as well
        if connection is not None:
            connection.close()
        self._engine.dispose()

    def _drop(self) -> None:
        """Throw the connection away, in whatever state it is."""
        with self._guard:
            connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):  # it may well be broken, which is why it goes
                connection.invalidate()
            with suppress(SQLAlchemyError):
                connection.close()


def is_read_committed(connection: Connection, default: str | None) -> bool:
    """Whether the connection's transaction is READ COMMITTED; asked of the driver, without a word to the server.

    Args:
        default: the server's level for who asks for none.
    """
    driver_connection = connection.connection.dbapi_connection
    level = getattr(driver_connection, "isolation_level", "unknown")  # an enumeration, a number or a text
    if level is None:
        return default == "read committed"
    return level == 1 or str(getattr(level, "name", level)).replace("_", " ").lower() == "read committed"


def without_statement(error: BaseException) -> BaseException:
    """What to show of an error: SQLAlchemy's own text has the statement and its parameters in it."""
    cause = error.orig if isinstance(error, StatementError) else None
    return error if cause is None else cause


def is_about_rows(error: BaseException) -> bool:
    """Whether what failed are the rows or the values at hand, so that other statements may well succeed.

    Otherwise it is the database that fails: out of reach, read-only, full, without the table.
    """
    if not isinstance(error, DBAPIError):
        return True  # a value that could not be bound
    if error.connection_invalidated:
        return False
    if state := _sqlstate(error):
        return not state.startswith(("08", "25", "28", "3D", "42", "53", "57P", "58", "XX"))
    return isinstance(error, DataError | IntegrityError)


def is_refused(error: BaseException) -> bool:
    """Whether the values are at fault, so that trying again as they are is useless."""
    return isinstance(error, DataError | IntegrityError) or not isinstance(error, DBAPIError)


def is_statement_timeout(error: DBAPIError) -> bool:
    """Whether the server ended the statement because it took too long."""
    return _sqlstate(error) == "57014"


def is_lock_timeout(error: DBAPIError) -> bool:
    """Whether somebody else's lock was in the way for longer than `lock_timeout`."""
    return _sqlstate(error) == "55P03"


def is_passing(error: DBAPIError) -> bool:
    """Whether the same statement may succeed by and by, as it is."""
    if error.connection_invalidated:
        return True
    state = _sqlstate(error)
    if state is None:  # from the driver itself: no connection; from SQLite: locked by another writer
        return isinstance(error, OperationalError) and not str(error.orig).startswith("no such")
    return state.startswith(("08", "25006", "40", "53", "55P03", "57", "58"))


def is_outage(error: BaseException) -> bool:
    """Whether the database was lost, out of reach, or lets nobody write; or its pool had no connection to give."""
    if isinstance(error, PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if state := _sqlstate(error):
        return state.startswith(("08", "53300", "57P")) or state == READ_ONLY
    return isinstance(error, OperationalError) and error.statement is None  # no connection was to be had


def is_read_only(error: BaseException) -> bool:
    """Whether the server refused to write."""
    return isinstance(error, DBAPIError) and _sqlstate(error) == READ_ONLY


def is_overlong_transaction(error: BaseException) -> bool:
    """Whether the server ended the connection because its transaction was idle, or went on, for too long."""
    return isinstance(error, DBAPIError) and _sqlstate(error) in OVERLONG


def _sqlstate(error: DBAPIError) -> str | None:
    """PostgreSQL's five characters for what went wrong (appendix "PostgreSQL Error Codes")."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def _shut_down(connection: Connection) -> bool:
    """End both directions of the connection's socket, so that whoever waits for it is told."""
    driver_connection: Any = connection.connection.driver_connection
    if connection.dialect.driver != "psycopg" or driver_connection.closed:
        return False
    with socket.socket(fileno=os.dup(driver_connection.fileno())) as twin, suppress(OSError):
        twin.shutdown(socket.SHUT_RDWR)
    return True
