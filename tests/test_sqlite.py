"""Jobs in one SQLite file, for one process or several."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from apps.embedding import put_many
from apps.sharing import EFFECTS, Quick
from brooq_sa import enqueue_many
from brooq_sa import sqlite as sqlite_setup
from brooq_sa.engines import async_engine, sibling, sync_engine
from brooq_sa.store import JobStore
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
        assert getattr(derived, sqlite_setup._SETUP) == sqlite_setup.Setup(7 * SECOND, False)
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
