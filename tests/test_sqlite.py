"""Jobs in one SQLite file, for one process or several."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from apps.embedding import put_many
from apps.sharing import EFFECTS, Quick
from brooq_sa import enqueue_many
from brooq_sa import sqlite as sqlite_setup
from brooq_sa.engines import async_engine, sibling, sync_engine
from brooq_sa.store import JobStore
from brooq_sa.worker.child import Sessions
from brooq_sa.worker.processes import setup_for
from databases import JOB, Database
from processes import Child, Processes
from waiting import wait_until

SECOND = timedelta(seconds=1)


def pragma(engine: Engine, name: str) -> object:
    with engine.connect() as connection:
        return connection.scalar(text(f"PRAGMA {name}"))


def plain_file(path: Path) -> Path:
    """A database as SQLite makes it, without WAL."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE effect (number int)")
    connection.commit()
    connection.close()
    return path


class TestSetup:
    def test_wal_may_be_left_out(self, tmp_path: Path) -> None:
        """Where WAL does not work the file's journal mode stays as it is; the rest is set up all the same (S2)."""
        path = plain_file(tmp_path / "plain.sqlite")
        engine = sqlite_setup.configure(create_engine(f"sqlite:///{path}"), wal=False)
        assert pragma(engine, "journal_mode") == "delete"
        with engine.connect() as connection:
            connection.execute(text("INSERT INTO effect VALUES (1)"))
            connection.rollback()
            assert connection.scalar(text("SELECT count(*) FROM effect")) == 0
        engine.dispose()

    @pytest.mark.parametrize("derive", [sibling, sync_engine, lambda engine: async_engine(engine).sync_engine])
    def test_a_workers_engines_are_set_up_alike(self, tmp_path: Path, derive: Callable[[Engine], Engine]) -> None:
        """What the application chose for its engine holds for those that a worker makes from it."""
        path = plain_file(tmp_path / "plain.sqlite")
        engine = sqlite_setup.configure(create_engine(f"sqlite:///{path}"), busy_timeout=7 * SECOND, wal=False)
        derived = derive(engine)
        assert sqlite_setup.setup_of(derived) == sqlite_setup.Setup(7 * SECOND, False)
        if derived.driver == "pysqlite":
            assert (pragma(derived, "busy_timeout"), pragma(derived, "journal_mode")) == (7000, "delete")
        derived.dispose()
        engine.dispose()

    def test_from_an_async_engine_too(self, tmp_path: Path) -> None:
        """So it does if the application's engine is an async one."""
        path = plain_file(tmp_path / "plain.sqlite")
        engine = sqlite_setup.configure(create_async_engine(f"sqlite+aiosqlite:///{path}"), wal=False)
        derived = sync_engine(engine)
        assert pragma(derived, "journal_mode") == "delete"
        derived.dispose()

    @pytest.mark.parametrize("derive", [lambda engine: engine, sibling, sync_engine])
    @pytest.mark.parametrize("configured_last", [False, True], ids=["engine", "options"])
    def test_engines_with_execution_options_share_it(
        self, tmp_path: Path, derive: Callable[[Engine], Engine], configured_last: bool
    ) -> None:
        """An engine with execution options is one with the engine it is made from: set up once, and alike."""
        path = plain_file(tmp_path / "plain.sqlite")
        engine = create_engine(f"sqlite:///{path}")
        if not configured_last:
            sqlite_setup.configure(engine, wal=False)
        optional = engine.execution_options(schema_translate_map={"tenant": None})
        if configured_last:
            sqlite_setup.configure(optional, wal=False)
        sqlite_setup.configure(optional)
        for each in (engine, derive(optional)):
            assert begun_by(each) == ["BEGIN IMMEDIATE"]
            assert pragma(each, "journal_mode") == "delete"
            each.dispose()
            assert begun_by(each) == ["BEGIN IMMEDIATE"]
            assert pragma(each, "journal_mode") == "delete"
            each.dispose()

    def test_a_sibling_begins_as_jobs_need_it(self, tmp_path: Path) -> None:
        """An application's engine for reading has siblings for writing."""
        path = plain_file(tmp_path / "plain.sqlite")
        reading = sqlite_setup.configure(create_engine(f"sqlite:///{path}")).execution_options(brooq_begin="DEFERRED")
        twin = sibling(reading)
        assert (begun_by(reading), begun_by(twin)) == (["BEGIN DEFERRED"], ["BEGIN IMMEDIATE"])
        reading.dispose()
        twin.dispose()

    @pytest.mark.parametrize("is_async", [False, True])
    def test_child_processes_too(self, tmp_path: Path, is_async: bool) -> None:
        """What the application chose for its engine reaches the handlers of isolation="process"."""
        path = plain_file(tmp_path / "plain.sqlite")
        engine: Any = (
            create_async_engine(f"sqlite+aiosqlite:///{path}") if is_async else create_engine(f"sqlite:///{path}")
        )
        sqlite_setup.configure(engine, busy_timeout=7 * SECOND, wal=False)
        reading = engine.execution_options(brooq_begin="DEFERRED", schema_translate_map={"tenant": None})
        setup = setup_for([], reading, None, None)
        sessions = Sessions(pickle.loads(pickle.dumps(setup)))
        childs = sessions._engine
        assert (pragma(childs, "busy_timeout"), pragma(childs, "journal_mode")) == (7000, "delete")
        assert dict(childs.get_execution_options()) == {"schema_translate_map": {"tenant": None}}
        assert sqlite_setup.setup_of(sessions._async_engine.sync_engine) == sqlite_setup.Setup(7 * SECOND, False)
        childs.dispose()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit from Python 3.12 on")
    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("derive", [lambda engine: engine, sibling])
    def test_connections_of_pep_249(self, tmp_path: Path, is_async: bool, derive: Callable[[Engine], Engine]) -> None:
        """An engine whose connections are always in a transaction begins, commits and rolls back like any other."""
        path = plain_file(tmp_path / "plain.sqlite")
        arguments: Any = {"connect_args": {"autocommit": False}}

        def use(engine: Engine) -> None:
            assert begun_by(engine) == ["BEGIN IMMEDIATE"]
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO effect VALUES (1)"))
            with engine.connect() as connection:
                with connection.begin_nested():
                    connection.execute(text("INSERT INTO effect VALUES (2)"))
                connection.rollback()
                assert connection.scalars(text("SELECT number FROM effect")).all() == [1]
            engine.dispose()

        async def use_async() -> None:
            engine = sqlite_setup.configure(create_async_engine(f"sqlite+aiosqlite:///{path}", **arguments))
            await greenlet_spawn(use, derive(engine.sync_engine))

        if is_async:
            asyncio.run(use_async())
        else:
            engine = create_engine(f"sqlite:///{path}", **arguments)
            use(derive(sqlite_setup.configure(engine) if derive is not sibling else engine))


def begun_by(engine: Engine) -> list[str]:
    """What an engine's transaction begins with."""
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    return statements[: statements.index("SELECT 1")]


class LockedFile:
    """A cursor whose file is locked a number of times."""

    def __init__(self, times: int, error: str = "database is locked") -> None:
        self.times = times
        self.error = error
        self.asked = 0

    def execute(self, statement: str) -> None:
        self.asked += 1
        if self.times:
            self.times -= 1
            raise sqlite3.OperationalError(self.error)


def test_waiting_for_the_file_to_oneself() -> None:
    """Changing the journal mode is tried until the busy timeout is over; another error is not waited out (S2)."""
    locked = LockedFile(3)
    sqlite_setup._set_wal(locked, 30 * SECOND)
    assert locked.asked == 4
    for impossible, patience in ((LockedFile(10**9), SECOND / 20), (LockedFile(1, "disk I/O error"), 30 * SECOND)):
        with pytest.raises(sqlite3.OperationalError):
            sqlite_setup._set_wal(impossible, patience)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_many_workers_on_one_file(sqlite: Database, processes: Processes, workers: int, journal: str) -> None:
    """Several worker processes on one file run a thousand jobs once each, whatever the journal mode is (S2, I2)."""
    environment = {"PYTHONPATH": str(Path(__file__).parent), "DATABASE_URL": sqlite.url}
    if journal == "delete":
        sqlite.dispose()
        connection = sqlite3.connect(sqlite.url.removeprefix("sqlite:///"))
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        connection.close()
        environment["KEEP_JOURNAL_MODE"] = "1"
    engine = sqlite_setup.configure(create_engine(sqlite.url), wal=journal == "wal")
    children = [processes.module("apps.sharing", env=environment) for _ in range(workers)]
    with engine.begin() as connection_:
        for statement in EFFECTS:
            connection_.execute(text(statement))
    for child in children:
        child.wait_for_output("ready")
    fill(engine, 1_000)
    wait_until(lambda: count(engine, "state = 'done'") == 1_000, timeout=60, what="a thousand jobs done")
    for child in children:
        child.popen.terminate()
    assert [child.wait() for child in children] == [0] * workers
    with engine.connect() as connection_:
        numbers = list(connection_.scalars(text("SELECT number FROM effect ORDER BY number")))
        most_attempts = connection_.scalar(text("SELECT max(attempts) FROM job"))
        pids = set(connection_.scalars(text("SELECT DISTINCT pid FROM effect")))
    assert numbers == list(range(1_000))
    assert most_attempts == 1
    assert 2 <= len(pids) <= workers
    assert pragma(engine, "journal_mode") == journal
    engine.dispose()


def fill(engine: Engine, jobs: int) -> None:
    with engine.begin() as connection:
        enqueue_many(connection, [Quick(number=number) for number in range(jobs)])


def count(engine: Engine, condition: str) -> int:
    with engine.connect().execution_options(brooq_begin="DEFERRED") as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM job WHERE {condition}")) or 0)


def test_a_writer_that_holds_the_lock(sqlite: Database, processes: Processes) -> None:
    """Somebody who holds the file's write lock now and then costs no lease and no job (S2, T4)."""
    environment = {"PYTHONPATH": str(Path(__file__).parent), "DATABASE_URL": sqlite.url}
    for statement in EFFECTS:
        sqlite.execute(statement)
    options = ("--workers", "4", "--lease", "6s", "--poll-interval", "50ms")
    child = processes.module("brooq_sa", "worker", "apps.sharing:Sharing", *options, env=environment)
    child.wait_for_output("worker_started")
    stop = threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with sqlite.engine.begin() as connection:
                connection.execute(text("CREATE TABLE IF NOT EXISTS held (x int)"))
                stop.wait(0.7)
            stop.wait(0.1)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        for start in range(0, 100, 20):
            put_many(sqlite, [Quick(number=number) for number in range(start, start + 20)])
        wait_until(lambda: count(sqlite.engine, "state = 'done'") == 100, timeout=60, what="a hundred jobs done")
    finally:
        stop.set()
        holder.join()
    child.popen.terminate()
    assert child.wait() == 0
    assert_quiet(child)
    assert [row["attempts"] for row in sqlite.rows()] == [1] * 100
    assert len(sqlite.execute("SELECT number FROM effect")) == 100


def assert_quiet(child: Child) -> None:
    """Nothing in the child's log is an error or a lost lease."""
    assert [line for line in child.output().splitlines() if "_failed" in line or "lost" in line] == []


def test_the_claim_is_one_statement_in_one_transaction(sqlite: Database) -> None:
    """The claim takes its rows by UPDATE ... RETURNING inside BEGIN IMMEDIATE (S2, I2)."""
    put_many(sqlite, [Quick(number=number) for number in range(3)])
    statements: list[str] = []
    event.listen(sqlite.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with sqlite.engine.begin() as connection:
        claimed = JobStore(JOB).claim(connection, {"quick": 2}, room=2, worker="w", lease=SECOND)
    assert len(claimed) == 2
    assert statements[0] == "BEGIN IMMEDIATE"
    [update] = [statement for statement in statements if statement.startswith("UPDATE")]
    assert "RETURNING" in update


@pytest.mark.parametrize("spelling", ["plain", "link", "async"])
def test_transactions_begin_in_the_order_they_came(tmp_path: Path, spelling: str) -> None:
    """Who waits for the write lock gets it before those of its process that came later, and come again and again."""
    path = tmp_path / "jobs.db"
    holder = sqlite_setup.configure(create_engine(f"sqlite:///{path}"))
    (tmp_path / "other.db").symlink_to(path)
    names = {"plain": path, "link": tmp_path / "other.db", "async": path}
    engine = sqlite_setup.configure(create_engine(f"sqlite:///{names[spelling]}"))
    async_twin = sqlite_setup.configure(create_async_engine(f"sqlite+aiosqlite:///{path}"))
    order: list[int] = []

    def begin(number: int) -> None:
        with engine.begin():
            order.append(number)

    async def begin_async(number: int) -> None:
        async with async_twin.begin():
            order.append(number)
        await async_twin.dispose()

    def come(number: int) -> threading.Thread:
        is_async = spelling == "async" and number == 1
        work = (lambda: asyncio.run(begin_async(number))) if is_async else (lambda: begin(number))
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    queue = sqlite_setup._queue_of(str(path))
    with holder.connect() as first:
        first.begin()
        threads = []
        for number in range(5):
            threads.append(come(number))
            wait_until(lambda: len(queue._tickets) == len(threads), what="its coming into the queue")
    for thread in threads:
        thread.join(30)
    assert order == list(range(5))
    assert len(queue._tickets) == 0


def test_a_waiting_transaction_that_is_given_up_leaves_the_queue(tmp_path: Path) -> None:
    """A canceled coroutine, and a transaction whose patience ends, hold up nobody who came after them."""
    path = tmp_path / "jobs.db"
    patience = timedelta(milliseconds=200)
    holder = sqlite_setup.configure(create_engine(f"sqlite:///{path}"))
    hurried = sqlite_setup.configure(create_engine(f"sqlite:///{path}"), busy_timeout=patience)
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    sqlite_setup.configure(async_engine, busy_timeout=3 * SECOND)
    queue = sqlite_setup._queue_of(str(path))

    async def be_canceled() -> None:
        async def begin() -> None:
            async with async_engine.begin():
                pass

        tasks = [asyncio.ensure_future(begin()) for _ in range(2)]
        while len(queue._tickets) < 2:
            await asyncio.sleep(0.001)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert len(queue._tickets) == 1
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await async_engine.dispose()

    with holder.connect() as first:
        first.begin()
        with pytest.raises(OperationalError, match="locked"), hurried.begin():
            pass
        assert len(queue._tickets) == 0
        asyncio.run(be_canceled())
    assert len(queue._tickets) == 0
    with holder.begin():
        pass
