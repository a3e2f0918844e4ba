"""What an engine on SQLite needs so that an enqueue keeps its promise there.

Python's ``sqlite3`` opens a transaction by itself, and only before an INSERT, UPDATE or DELETE. A SAVEPOINT that comes
first therefore stands alone, and its RELEASE commits: a job enqueued inside would outlive the caller's rollback. And a
transaction that reads before it writes fails at once with "database is locked" when another one has written in
between, whatever the busy timeout is. `configure` prevents both: SQLAlchemy begins every transaction itself, with BEGIN
IMMEDIATE (the first is the recipe of SQLAlchemy's documentation of the dialect, "Serializable isolation / Savepoints /
Transactional DDL").

SQLite's write lock goes to whoever happens to ask when it is free: one that waits asks every tenth of a second, so
that others who take it again and again can keep it away for ever. Within a process, transactions therefore queue
before they ask for it, and get it in the order they came.

Durability is SQLite's default (``synchronous=FULL``). ``PRAGMA synchronous=NORMAL`` is faster and survives a crash of
the process, but a power cut may take the last commits with it; it is the user's to choose.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, event

from .exc import OptionError, SqliteSetupError, SqliteSetupWarning

BUSY_TIMEOUT = timedelta(seconds=30)
"""How long a transaction waits for another one's write lock before it fails."""

ASYNC_LOOK = 0.005
"""Seconds between two looks of a coroutine at whether its turn has come."""

BEGIN_OPTION = "brooq_begin"
"""The execution option that says how transactions begin."""


@dataclass(frozen=True)
class Setup:
    """How an engine is set up: a listener to its pool's new connections.

    There it is found by whatever shares the pool or has a copy of it: the engines that ``execution_options`` makes, and
    the pools that a dispose or a sibling makes anew.
    """

    busy_timeout: timedelta = BUSY_TIMEOUT
    wal: bool = True

    def __call__(self, dbapi_connection: Any, _record: Any) -> None:
        """Take a new connection's transactions over from the driver."""
        _use_legacy_control(dbapi_connection)
        dbapi_connection.isolation_level = None
        cursor = dbapi_connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(self.busy_timeout.total_seconds() * 1000)}")
        if self.wal:
            _set_wal(cursor, self.busy_timeout)
        cursor.close()


def configure(engine: Any, *, busy_timeout: timedelta = BUSY_TIMEOUT, wal: bool = True) -> Any:
    """Set an engine on SQLite up for jobs: true savepoints, BEGIN IMMEDIATE, WAL, a busy timeout.

    Call it once, before the engine's first connection is made. Transactions that only read may say
    ``execution_options(brooq_begin="DEFERRED")`` on their connection or engine, and then wait for nobody.

    Args:
        engine: an Engine or AsyncEngine.
        busy_timeout: how long a transaction waits for another one's write lock before it fails; not counted is the time
            for which those of the same process that came before it wait for theirs, up to as long again.
        wal: whether to put the file into WAL mode, in which readers and the writer do not wait for each other. With
            False its journal mode stays as it is, for a file system that WAL does not work on.

    Returns:
        The same engine.

    Raises:
        OptionError: it is not on SQLite.
    """
    sync_engine: Engine = getattr(engine, "sync_engine", engine)
    if sync_engine.dialect.name != "sqlite":
        raise OptionError(f"The engine is on {sync_engine.dialect.name}. Only SQLite needs to be configured.")
    if setup_of(sync_engine) is None:
        event.listen(sync_engine, "connect", Setup(busy_timeout, wal))
    if not is_configured(sync_engine):
        event.listen(_original(sync_engine), "begin", _begin)
    return engine


def configure_like(engine: Engine, model: Engine) -> Engine:
    """The engine, set up as `model` is, or by the defaults if that is not."""
    setup = setup_of(model) or Setup()
    configure(engine, busy_timeout=setup.busy_timeout, wal=setup.wal)
    return engine


def is_configured(engine: Engine) -> bool:
    """Whether the engine's transactions begin as jobs need them."""
    return _begin in list(engine.dispatch.begin)


def setup_of(engine: Engine) -> Setup | None:
    """How the engine's connections are set up; None if they are as the driver makes them."""
    return next((listener for listener in engine.pool.dispatch.connect if isinstance(listener, Setup)), None)


def _original(engine: Engine) -> Engine:
    """The engine whose pool this one uses: itself, or the one that ``execution_options`` was called on."""
    while (proxied := getattr(engine, "_proxied", None)) is not None:
        engine = proxied
    return engine


def _use_legacy_control(dbapi_connection: Any) -> None:
    """Have nobody but us begin transactions, even if the connection was made with ``autocommit=False`` (PEP 249)."""
    legacy = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", None)
    if legacy is None:  # before Python 3.12
        return

    def change(connection: Any) -> None:
        connection.autocommit = legacy
        connection.rollback()  # the transaction that was open from the start

    driver_connection = dbapi_connection.driver_connection if hasattr(dbapi_connection, "run_async") else None
    if driver_connection is None:
        change(dbapi_connection)
    else:  # aiosqlite, whose connection may be used on its own thread alone
        dbapi_connection.run_async(lambda connection: connection._execute(change, connection._conn))


def _set_wal(cursor: Any, patience: timedelta) -> None:
    """Put the file into WAL mode.

    That needs the file for oneself for a moment, and SQLite does not wait for it, whatever the busy timeout: of several
    processes that connect to a new file at once, some fail with "database is locked".
    """
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - so that they do not meet again
        else:
            return


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        return
    manner = options.get(BEGIN_OPTION, "IMMEDIATE")
    if manner == "DEFERRED":
        connection.exec_driver_sql("BEGIN DEFERRED")
        return
    queue = _queue_of(connection.engine.url.database)
    ticket = queue.enter()
    try:
        if ticket is not None:
            _wait_for(ticket, connection)
        connection.exec_driver_sql(f"BEGIN {manner}")
    finally:
        queue.leave(ticket)


class _Queue:
    """Those in this process who are about to ask for a file's write lock; only the first of them asks.

    One who has waited for the ticket as long as connections wait for locks asks all the same.
    """

    def __init__(self) -> None:
        self._tickets: deque[threading.Event | None] = deque()
        self._lock = threading.Lock()

    def enter(self) -> threading.Event | None:
        """What tells that it is one's turn; None if it is already, since nobody is there."""
        with self._lock:
            ticket = threading.Event() if self._tickets else None
            self._tickets.append(ticket)
        return ticket

    def leave(self, ticket: threading.Event | None) -> None:
        """Make room for the next, whether or not one's own turn had come."""
        with self._lock:
            self._tickets.remove(ticket)
            if self._tickets and (first := self._tickets[0]) is not None:
                first.set()


def _wait_for(ticket: threading.Event, connection: Connection) -> None:
    setup = setup_of(connection.engine) or Setup()
    patience = setup.busy_timeout.total_seconds()
    if not connection.dialect.is_async:
        ticket.wait(patience)
        return
    # Asked again and again, since a thread that waits for the ticket could not be called off.
    import asyncio

    from sqlalchemy.util import await_only

    deadline = time.monotonic() + patience
    while not ticket.is_set() and time.monotonic() < deadline:
        await_only(asyncio.sleep(ASYNC_LOOK))


_queues: dict[str, _Queue] = {}
"""By the paths of their files, and by the names that these go by in URLs."""


def _queue_of(database: str | None) -> _Queue:
    """The queue of a file, however the URL spells its path."""
    name = database or ""
    queue = _queues.get(name)
    if queue is None:
        queue = _queues.setdefault(name, _queues.setdefault(os.path.realpath(name), _Queue()))
    return queue


if hasattr(os, "register_at_fork"):  # those who queue in the parent do not come for their turn in its child
    os.register_at_fork(after_in_child=_queues.clear)


def check_transaction(connection: Connection) -> None:
    """Say so if an enqueue on this connection could be committed without the caller.

    Raises:
        SqliteSetupError: it would be, or it cannot be told whether it would.
    """
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return  # the caller asked for it
    if not connection.in_transaction():
        connection.begin()  # as its first statement would do by itself
    driver_connection = connection.connection.dbapi_connection
    if getattr(driver_connection, "autocommit", None) is False:
        return  # PEP 249 transactions, from Python 3.12 on
    if getattr(driver_connection, "isolation_level", None) is None:
        if not getattr(driver_connection, "in_transaction", True):
            raise SqliteSetupError(
                "This SQLite connection commits each statement by itself, so a job would outlive your rollback. Call"
                " brooq_sa.sqlite.configure(engine) once, before the engine connects."
            )
        return
    if connection.in_nested_transaction():
        raise SqliteSetupError(
            "On this SQLite engine a savepoint may commit by itself, so a job enqueued inside could outlive your"
            " rollback. Call brooq_sa.sqlite.configure(engine) once, before the engine connects."
        )
    warnings.warn(
        "This SQLite engine is not set up for jobs: savepoints may commit by themselves, and 'database is locked' may"
        " come at once. Call brooq_sa.sqlite.configure(engine) once, before the engine connects.",
        SqliteSetupWarning,
        stacklevel=5,
    )
