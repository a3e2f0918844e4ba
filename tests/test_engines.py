"""The sibling engines that a worker needs beside the user's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, Table, create_engine, event, make_url, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError, ProgrammingError, StatementError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from brooq_sa import sqlite as sqlite_setup
from brooq_sa.engines import (
    Reserved,
    async_engine,
    for_driver,
    is_about_rows,
    is_passing,
    is_refused,
    sibling,
    sync_engine,
    without_statement,
)
from brooq_sa.exc import UsageError
from databases import Database


@pytest.fixture
def reserved(db: Database) -> Iterator[Reserved]:
    made = Reserved(db.engine)
    yield made
    made.close()


def async_url(db: Database) -> str:
    return db.url.replace("sqlite:", "sqlite+aiosqlite:")


class TestReserved:
    def test_nothing_is_opened_before_it_is_used(self, tmp_path: Path) -> None:
        """Making one connects to nothing (I9)."""
        path = tmp_path / "none.sqlite"
        Reserved(create_engine(f"sqlite:///{path}"))
        assert not path.exists()

    def test_one_connection_serves_them_all(self, reserved: Reserved) -> None:
        """One transaction after the other runs on the same connection."""
        seen = set()
        for _ in range(3):
            with reserved.transaction() as connection:
                seen.add(id(connection.connection.dbapi_connection))
        assert len(seen) == 1

    def test_it_does_not_take_from_the_pool(self, db: Database) -> None:
        """A pool that handlers have emptied keeps no worker waiting."""
        engine = create_engine(db.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
        made = Reserved(engine)
        with engine.connect(), made.transaction() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        made.close()
        engine.dispose()

    def test_an_error_costs_the_connection_alone(self, reserved: Reserved) -> None:
        """After an error the work of its block is gone, and the next transaction runs on a fresh connection."""
        with pytest.raises(DBAPIError), reserved.transaction() as connection:
            connection.execute(text("SELECT nothing FROM nowhere"))
        with reserved.transaction() as connection:
            assert connection.scalar(text("SELECT 1")) == 1

    def test_parameters_stay_out_of_errors(self, reserved: Reserved) -> None:
        """The worker's own errors, which end in its log, show no values (W3)."""
        with pytest.raises(DBAPIError) as caught, reserved.transaction() as connection:
            connection.execute(text("SELECT nothing FROM nowhere WHERE x = :x"), {"x": "hunter2"})
        assert "hunter2" not in str(caught.value)

    def test_a_broken_connection_is_made_anew(self, pg: Database) -> None:
        """A connection that the server has ended fails once, and is then replaced (R4)."""
        made = Reserved(pg.engine)
        with made.transaction() as connection:
            pid = connection.scalar(text("SELECT pg_backend_pid()"))
        pg.execute("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
        with pytest.raises(DBAPIError), made.transaction() as connection:
            connection.execute(text("SELECT 1"))
        with made.transaction() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        made.close()

    @pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
    @pytest.mark.parametrize("where", ["engine", "role"])
    def test_read_committed_whatever_the_default(self, pg: Database, level: str, where: str) -> None:
        """A second look within one transaction sees what others have committed, whatever the defaults are (I2)."""
        escaped = level.lower().replace(" ", "\\ ")
        options = f"-c default_transaction_isolation={escaped}"
        engine = (
            create_engine(pg.url, isolation_level=level)
            if where == "engine"
            else create_engine(pg.url, connect_args={"options": options})
        )
        pg.execute("CREATE TABLE seen (x int)")
        made = Reserved(engine)
        with made.transaction() as connection:
            before = connection.scalar(text("SELECT count(*) FROM seen"))
            pg.execute("INSERT INTO seen VALUES (1)")
            assert (before, connection.scalar(text("SELECT count(*) FROM seen"))) == (0, 1)
        made.close()
        engine.dispose()

    def test_a_locked_row_is_not_waited_for_long(self, pg: Database) -> None:
        """A statement that runs into somebody's lock fails within a second."""
        pg.execute("CREATE TABLE locked AS SELECT 1 AS x")
        made = Reserved(pg.engine)
        with pg.engine.begin() as holder:
            holder.execute(text("UPDATE locked SET x = 2"))
            with pytest.raises(OperationalError) as caught, made.transaction() as connection:
                connection.execute(text("UPDATE locked SET x = 3"))
        assert (is_about_rows(caught.value), is_passing(caught.value)) == (True, True)
        made.close()


class TestSibling:
    def test_execution_options_come_along(self, db: Database) -> None:
        """A map of schemas, as applications with many tenants have, holds for the worker too."""
        mapped = db.engine.execution_options(schema_translate_map={"tenant": None})
        job = Table("job", MetaData(schema="tenant"))
        twin = sibling(mapped)
        with twin.connect() as connection:
            assert connection.execute(select(text("1")).select_from(job)).all() == []
        twin.dispose()

    def test_autocommit_does_not(self, sqlite: Database) -> None:
        """An engine whose transactions are none has a sibling whose transactions hold (I2)."""
        twin = sibling(sqlite.engine.execution_options(isolation_level="AUTOCOMMIT"))
        with twin.connect() as connection:
            connection.execute(text("CREATE TABLE held (x int)"))
            connection.rollback()
            assert connection.scalar(text("SELECT count(*) FROM sqlite_master WHERE name = 'held'")) == 0
        twin.dispose()

    def test_listeners_to_connections_come_along(self, db: Database) -> None:
        """What the application does to each new connection, such as setting a search path, is done here too."""
        greeted = []
        engine = create_engine(db.url)
        event.listen(engine, "connect", lambda connection, record: greeted.append(connection))
        twin = sibling(engine)
        with twin.connect():
            assert len(greeted) == 1
        twin.dispose()
        engine.dispose()

    def test_an_engine_is_listened_to_once(self, db: Database) -> None:
        """However many workers are made on an engine, one listener is added to it, and none while it connects."""
        made = [Reserved(db.engine) for _ in range(5)]
        before = len(list(db.engine.dialect.dispatch.do_connect))
        for each in made:
            with each.transaction() as connection:
                assert connection.scalar(text("SELECT 1")) == 1
            each.close()
        assert before == len(list(db.engine.dialect.dispatch.do_connect)) <= 1

    def test_an_unconfigured_engine_has_a_configured_sibling(self, sqlite: Database) -> None:
        """On SQLite the worker's transactions begin as they must, and the application's engine stays as it was."""
        engine = create_engine(sqlite.url)
        twin = sibling(engine)
        assert (sqlite_setup.is_configured(twin), sqlite_setup.is_configured(engine)) == (True, False)

    def test_a_pool_without_connections(self, db: Database) -> None:
        """An application that pools nothing (NullPool) has a worker like any other."""
        made = Reserved(create_engine(db.url, poolclass=NullPool))
        with made.transaction() as connection:
            assert connection.scalar(text("SELECT 1")) == 1
        made.close()


class TestSyncAndAsync:
    def test_a_sync_engine_stays(self, db: Database) -> None:
        """There is nothing to convert."""
        assert sync_engine(db.engine) is db.engine

    def test_sync_from_async(self, db: Database) -> None:
        """An AsyncEngine gives the worker a sync one on the same database."""
        made = sync_engine(create_async_engine(async_url(db)))
        with made.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM job")) == 0
        made.dispose()

    def test_async_from_sync(self, db: Database) -> None:
        """An Engine gives async handlers an async one on the same database."""

        async def count() -> int:
            made = async_engine(db.engine)
            async with made.connect() as connection:
                found = await connection.scalar(text("SELECT count(*) FROM job"))
            await made.dispose()
            return int(found)

        assert asyncio.run(count()) == 0

    @pytest.mark.parametrize("to_async", [False, True])
    def test_execution_options_come_along(self, db: Database, to_async: bool) -> None:
        """A map of schemas holds for engines of the other kind too; an isolation level and a BEGIN do not."""
        options = {"schema_translate_map": {"tenant": None}, "isolation_level": "AUTOCOMMIT", "brooq_begin": "DEFERRED"}
        if to_async:
            derived = async_engine(create_engine(db.url).execution_options(**options)).sync_engine
        else:
            derived = sync_engine(create_async_engine(async_url(db)).execution_options(**options))
        assert dict(derived.get_execution_options()) == {"schema_translate_map": {"tenant": None}}
        derived.dispose()

    @pytest.mark.parametrize(
        "given, expected",
        [
            ("postgresql+asyncpg://me:word@there/jobs", "postgresql+psycopg://me:word@there/jobs"),
            ("postgresql+asyncpg://there/jobs?ssl=require", "postgresql+psycopg://there/jobs?sslmode=require"),
            ("postgresql+asyncpg:///jobs?host=a:1&host=b:2", "postgresql+psycopg:///jobs?host=a:1&host=b:2"),
            ("postgresql+psycopg2://there/jobs?sslmode=allow", "postgresql+psycopg://there/jobs?sslmode=allow"),
            ("sqlite+aiosqlite:///jobs.sqlite?timeout=3", "sqlite:///jobs.sqlite?timeout=3"),
        ],
    )
    def test_a_url_for_another_driver(self, given: str, expected: str) -> None:
        """The arguments of a URL are put in the terms of the driver that the worker uses."""
        made = for_driver(make_url(given), {"postgresql": "postgresql+psycopg", "sqlite": "sqlite"})
        assert made == make_url(expected)

    @pytest.mark.parametrize("argument", ["ssl=true", "command_timeout=60", "statement_cache_size=0"])
    def test_arguments_that_one_driver_knows_are_refused(self, argument: str) -> None:
        """What psycopg has no counterpart for is named, with the next step, before anything connects."""
        url = make_url(f"postgresql+asyncpg://there/jobs?{argument}")
        with pytest.raises(UsageError, match=rf"psycopg.*: {argument.partition('=')[0]}\. Give a sync Engine"):
            for_driver(url, {"postgresql": "postgresql+psycopg"})

    def test_an_async_engine_serves_two_loops(self, db: Database) -> None:
        """Connections that the application's event loop has pooled are never used on the worker's."""
        users = create_async_engine(async_url(db), pool_size=1, max_overflow=0)
        own = async_engine(users)
        failures: list[BaseException] = []

        async def ask(engine: object) -> None:
            async with engine.connect() as connection:  # type: ignore[attr-defined]
                assert await connection.scalar(text("SELECT 1")) == 1

        def ask_here() -> None:
            async def work() -> None:
                await ask(own)
                await own.dispose()

            try:
                asyncio.run(work())
            except BaseException as error:
                failures.append(error)

        async def ask_on_both() -> None:
            await ask(users)
            thread = threading.Thread(target=ask_here)
            thread.start()
            await asyncio.to_thread(thread.join, 10)
            await ask(users)
            await users.dispose()

        asyncio.run(ask_on_both())
        assert failures == []

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite://",
            "sqlite:///:memory:",
            "sqlite:///file::memory:?cache=shared&uri=true",
            "sqlite:///file:jobs?mode=memory&cache=shared&uri=true",
        ],
    )
    def test_memory_is_refused(self, url: str) -> None:
        """A database that ends with its connections can hold no jobs, and the error says what to do."""
        with pytest.raises(UsageError, match="Give the engine a file"):
            sync_engine(create_engine(url, poolclass=NullPool))

    def test_other_databases_are_refused(self) -> None:
        """Jobs live on PostgreSQL and SQLite."""
        engine = create_engine("postgresql+psycopg://")
        engine.url = engine.url.set(drivername="mysql")
        with pytest.raises(UsageError, match="is on mysql"):
            sync_engine(engine)

    @pytest.mark.parametrize("given", [None, "sqlite:///x", object()])
    def test_what_is_no_engine_is_refused(self, given: object) -> None:
        """A URL, or nothing, is no engine."""
        with pytest.raises(UsageError, match="is no engine"):
            sync_engine(given)  # type: ignore[arg-type]


class Original(Exception):
    """What a driver raised, with PostgreSQL's code for it."""

    def __init__(self, sqlstate: str | None, text: str = "") -> None:
        self.sqlstate = sqlstate
        super().__init__(text)


@pytest.mark.parametrize(
    "error, about_rows, refused, passing",
    [
        (OperationalError("", {}, Original("55P03")), True, False, True),  # lock timeout
        (OperationalError("", {}, Original("57014")), True, False, True),  # statement timeout
        (OperationalError("", {}, Original("40P01")), True, False, True),  # deadlock
        (DBAPIError("", {}, Original("P0001")), True, False, False),  # a trigger raised
        (DataError("", {}, Original("22021")), True, True, False),  # NUL in a text
        (IntegrityError("", {}, Original("23514")), True, True, False),  # a CHECK
        (OperationalError("", {}, Original("57P01")), False, False, True),  # admin shutdown
        (OperationalError("", {}, Original(None, "connection refused")), False, False, True),
        (OperationalError("", {}, Original("53300")), False, False, True),  # too many connections
        (DBAPIError("", {}, Original("25006")), False, False, True),  # read-only
        (ProgrammingError("", {}, Original("42P01")), False, False, False),  # no such table
        (ProgrammingError("", {}, Original("42501")), False, False, False),  # not allowed
        (OperationalError("", {}, Original(None, "database is locked")), False, False, True),
        (OperationalError("", {}, Original(None, "no such table: job")), False, False, False),
        (DBAPIError("", {}, Original("22021"), connection_invalidated=True), False, False, True),
    ],
)
def test_errors_are_told_apart(error: DBAPIError, about_rows: bool, refused: bool, passing: bool) -> None:
    """Whose fault it is, the rows' or the database's, decides what is tried again and how."""
    assert (is_about_rows(error), is_refused(error), is_passing(error)) == (about_rows, refused, passing)


@pytest.mark.parametrize("error", [StatementError("", "", {}, ValueError()), ValueError()])
def test_a_value_that_cannot_be_bound_is_refused(error: Exception) -> None:
    """It never reached the database."""
    assert (is_about_rows(error), is_refused(error)) == (True, True)


_GIVEN = ("INSERT INTO job", {"payload": "secret"}, ValueError("too long"))


@pytest.mark.parametrize("error", [StatementError("unbound", *_GIVEN), OperationalError(*_GIVEN)])
def test_what_is_shown_of_an_error_has_no_parameters(error: StatementError) -> None:
    """Whether a value could not be bound or the database refused it: the cause alone is shown."""
    assert "secret" in str(error)
    assert str(without_statement(error)) == "too long"
    plain = RuntimeError("plain")
    assert without_statement(plain) is plain
