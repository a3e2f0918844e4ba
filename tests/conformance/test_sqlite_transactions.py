"""On SQLite, a job is in the caller's transaction or we say that it would not be."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from brooq_sa import OptionError, SqliteSetupError, SqliteSetupWarning, enqueue, enqueue_many
from brooq_sa.sqlite import configure
from conformance.samples import Email, put_keyed
from databases import Database


@pytest.fixture
def plain(sqlite: Database) -> Iterator[Engine]:
    """An engine on the database that nobody has configured."""
    engine = create_engine(sqlite.url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("key", [None, "key"], ids=["unkeyed", "keyed"])
def test_a_savepoint_first_and_then_a_rollback(sqlite: Database, key: str | None) -> None:
    """On a configured engine, a savepoint that was the first thing in its transaction is undone with it."""
    with Session(sqlite.engine) as session:
        session.execute(text("SELECT 1"))
        session.commit()
        for _ in range(2):
            with session.begin_nested():
                enqueue(session, Email(), key=key)
            session.rollback()
            assert sqlite.rows() == []
        with session.begin_nested():
            enqueue(session, Email(), key=key)
        session.commit()
    assert sqlite.states() == ["pending"]


def test_an_engine_with_options_of_its_own_is_as_configured(sqlite: Database) -> None:
    """What `Engine.execution_options` gives is configured when the engine is."""
    engine = sqlite.engine.execution_options(brooq_begin="DEFERRED")
    with warnings.catch_warnings(), engine.connect() as connection:
        warnings.simplefilter("error")
        with connection.begin_nested():
            enqueue(connection, Email())
        connection.rollback()
    assert sqlite.rows() == []


def test_an_unconfigured_engine_is_warned_of(plain: Engine, sqlite: Database) -> None:
    """Without savepoints a job is in the caller's transaction, and a warning names the remedy."""
    for commit in (False, True):
        with Session(plain) as session:
            with pytest.warns(SqliteSetupWarning, match=r"brooq_sa\.sqlite\.configure"):
                enqueue(session, Email())
            if commit:
                session.commit()
        assert len(sqlite.rows()) == commit


def test_the_warning_points_at_the_caller(plain: Engine) -> None:
    """The warning names the line that enqueues, in whichever way."""
    with Session(plain) as session:
        with pytest.warns(SqliteSetupWarning) as one:
            enqueue(session, Email())
        with pytest.warns(SqliteSetupWarning) as many:
            enqueue_many(session, [Email()])
        session.rollback()
    assert {warning.filename for warning in [*one, *many]} == {__file__}


def test_an_unconfigured_savepoint_is_refused(plain: Engine, sqlite: Database) -> None:
    """In a savepoint of an unconfigured engine, which could commit by itself, nothing is enqueued."""
    with Session(plain) as session:
        with session.begin_nested(), pytest.raises(SqliteSetupError, match=r"brooq_sa\.sqlite\.configure"):
            enqueue(session, Email())
        session.rollback()
    assert sqlite.rows() == []


def test_a_driver_that_commits_by_itself_is_refused(sqlite: Database) -> None:
    """If the user turned the driver's transactions off and began none, a job would be committed at once: refused."""
    engine = create_engine(sqlite.url, connect_args={"isolation_level": None})
    with Session(engine) as session, pytest.raises(SqliteSetupError, match="commits each statement by itself"):
        enqueue(session, Email())
    engine.dispose()
    assert sqlite.rows() == []


def test_a_driver_whose_transactions_the_user_begins_is_taken(sqlite: Database) -> None:
    """The same with SQLAlchemy's own recipe, which begins transactions by an event, is fine."""
    engine = create_engine(sqlite.url, connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with Session(engine) as session:
        with session.begin_nested():
            enqueue(session, Email())
        session.rollback()
    engine.dispose()
    assert sqlite.rows() == []


def test_autocommit_is_the_users_own_wish(sqlite: Database) -> None:
    """An AUTOCOMMIT connection was asked to commit each statement, and does."""
    with sqlite.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        enqueue(connection, Email())
    assert sqlite.states() == ["pending"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= from Python 3.12 on")
def test_a_driver_with_standard_transactions_is_taken(sqlite: Database) -> None:
    """With ``autocommit=False`` the driver keeps its transactions as PEP 249 says, so there is nothing to say."""
    engine = create_engine(sqlite.url, connect_args={"autocommit": False})
    with Session(engine) as session:
        with session.begin_nested():
            enqueue(session, Email())
        session.rollback()
    engine.dispose()
    assert sqlite.rows() == []


def run_async(sqlite: Database, configured: bool) -> None:
    async def main() -> None:
        engine = create_async_engine(sqlite.url.replace("sqlite://", "sqlite+aiosqlite://"))
        if configured:
            configure(engine)
        try:
            async with AsyncSession(engine) as session:
                async with session.begin_nested():
                    await enqueue(session, Email(), key="key")
                await session.rollback()
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_aiosqlite_when_configured(sqlite: Database) -> None:
    """A configured async engine undoes a savepoint with its transaction."""
    run_async(sqlite, configured=True)
    assert sqlite.rows() == []


def test_aiosqlite_when_not(sqlite: Database) -> None:
    """An unconfigured async engine's savepoint is refused like a sync one's."""
    with pytest.raises(SqliteSetupError, match=r"brooq_sa\.sqlite\.configure"):
        run_async(sqlite, configured=False)
    assert sqlite.rows() == []


def test_a_configured_engine_has_what_jobs_need(sqlite_url: str) -> None:
    """Each connection of a configured engine has WAL and the busy timeout; configuring twice is configuring once."""
    engine = create_engine(sqlite_url)
    assert configure(configure(engine, busy_timeout=timedelta(seconds=7))) is engine
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 7_000
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
    engine.dispose()


def test_only_sqlite_is_configured() -> None:
    """An engine on another database is refused by name."""
    engine = create_engine("postgresql+psycopg://")
    with pytest.raises(OptionError, match="postgresql"):
        configure(engine)


def test_a_transaction_that_reads_first_can_write(sqlite: Database) -> None:
    """A transaction that reads, while another one writes and commits, waits for it instead of failing at once."""
    reading = threading.Event()
    answers: list[Any] = []

    def read_then_enqueue() -> None:
        with sqlite.engine.begin() as connection:
            reading.set()
            connection.execute(text("SELECT count(*) FROM job"))
            answers.append(enqueue(connection, Email()))

    with sqlite.engine.begin() as writer:
        enqueue(writer, Email())
        thread = threading.Thread(target=read_then_enqueue)
        thread.start()
    thread.join(timeout=60)
    assert reading.is_set()
    assert len(sqlite.rows()) == 2
    assert answers


def test_a_reader_that_says_so_waits_for_nobody(sqlite: Database) -> None:
    """With ``brooq_begin="DEFERRED"`` a transaction reads beside a writer."""
    with sqlite.engine.begin() as writer:
        enqueue(writer, Email())
        reader = sqlite.engine.execution_options(brooq_begin="DEFERRED")
        with reader.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM job")).scalar() == 0


def test_a_lock_that_is_never_given_up_is_sqlites_error(sqlite_url: str) -> None:
    """After the busy timeout the database's own error comes through."""
    engine = create_engine(sqlite_url)
    configure(engine, busy_timeout=timedelta(milliseconds=20))
    blocker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"), engine.connect() as connection:
        enqueue(connection, Email())
    blocker.close()
    engine.dispose()


def test_keys_work_on_any_engine(plain: Engine, sqlite: Database) -> None:
    """A keyed enqueue on an unconfigured engine finds the job that a configured one put (I8)."""
    first = put_keyed(sqlite, "key")
    with Session(plain) as session, pytest.warns(SqliteSetupWarning):
        assert enqueue(session, Email(), key="key") == (first.id, False)
