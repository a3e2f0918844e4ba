"""``brooq-sa worker`` told to end: in good order, at once, too early, and as process 1."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brooq_sa import RawJob, cancel, enqueue
from brooq_sa.jobs import JobBase
from databases import Database
from processes import Child, Processes
from waiting import wait_until

JOBS = """
import os
import time
from pathlib import Path
from sqlalchemy import create_engine, text
from brooq_sa import JobBase

effects = create_engine(os.environ["DATABASE_URL"], isolation_level="AUTOCOMMIT")

class AppJob(JobBase):
    pass

class Works(AppJob, topic="work"):
    seconds: float
    def run(self, claim):
        note(claim, "began")
        if claim.should_stop.wait(self.seconds):
            note(claim, str(claim.cause))
            raise RuntimeError("stopped")
        while not (self.seconds or Path("go").exists()):
            if claim.should_stop.wait(0.05):
                note(claim, str(claim.cause))
                raise RuntimeError("stopped")

def note(claim, what):
    with effects.connect() as connection:
        values = {"job": str(claim.id), "pid": os.getpid(), "what": what, "at": time.monotonic()}
        connection.execute(text("INSERT INTO effect VALUES (:job, :pid, :what, :at)"), values)
"""


class AppJob(JobBase):
    pass


@pytest.fixture
def db(pg: Database, processes: Processes) -> Database:
    """PostgreSQL with a table for what handlers note beside their jobs."""
    pg.execute("CREATE TABLE effect (job text, pid int, what text, at float8)")
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")
    return pg


@pytest.fixture
def start(processes: Processes, db: Database) -> Any:
    """Starts a worker process."""

    def run(*arguments: str) -> Child:
        quick = ("--poll-interval", "100ms", "--lease", "3s", "--reaper-period", "300ms")
        return processes.module(
            "brooq_sa", "worker", "own_jobs:AppJob", *quick, *arguments, env={"DATABASE_URL": db.url}
        )

    return run


def put(db: Database, seconds: float, count: int = 1) -> list[Any]:
    with db.engine.begin() as connection:
        return [enqueue(connection, RawJob("work", {"seconds": seconds})).id for _ in range(count)]


def began(db: Database) -> int:
    return len(db.execute("SELECT 1 FROM effect WHERE what = 'began'"))


def test_draining(start: Any, db: Database, processes: Processes) -> None:
    """While a worker drains it keeps leases and hears of cancels, to the end; each job runs once (T6, T4, T5)."""
    stays, goes = put(db, 0, 2)
    first = start("--grace", "60s", "--no-wake", "--name", "first")
    wait_until(lambda: began(db) == 2, timeout=30, what="both jobs running")
    second = start("--no-wake")
    second.wait_for_output("worker_started")
    first.send(signal.SIGTERM)
    first.wait_for_output("worker_stopping")
    watch_leases(db, seconds=4)  # longer than a lease
    with db.engine.begin() as connection:
        assert cancel(connection, AppJob, goes) == "told to stop"
    canceled_at = time.monotonic()
    heard = wait_until(lambda: db.execute("SELECT * FROM effect WHERE what = 'canceled'"), what="the cancel heard")
    assert (heard[0]["job"], heard[0]["at"] - canceled_at < 1 + 1) == (str(goes), True)
    watch_leases(db, seconds=1)
    (processes.folder / "go").touch()
    assert first.wait() == 0
    assert (db.row(stays)["state"], db.row(goes)["state"], began(db)) == ("done", "canceled", 2)
    assert [row["attempts"] for row in db.rows()] == [1, 1]
    second.send(signal.SIGTERM)
    assert second.wait() == 0


def watch_leases(db: Database, seconds: float) -> None:
    """Demand that the first worker holds what it runs, all the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        held = db.execute(
            "SELECT locked_by LIKE 'first-%' AND locked_until > statement_timestamp() AS is_held"
            " FROM job WHERE state = 'processing'"
        )
        assert held
        assert all(row["is_held"] for row in held)
        time.sleep(0.1)


def test_nothing_is_left_leased(start: Any, db: Database) -> None:
    """Of many jobs, those that ran may end; no other was taken, and none is leased afterwards (T6, I6)."""
    put(db, 1.0, 10)
    worker = start("--workers", "2")
    wait_until(lambda: began(db) == 2, timeout=30, what="two jobs running")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    counts = {state: db.states().count(state) for state in ("done", "pending", "processing")}
    assert (counts["processing"], counts["done"] + counts["pending"]) == (0, 10)
    assert counts["done"] == began(db)
    assert all(row["attempts"] == (row["state"] == "done") for row in db.rows())


def test_an_idle_worker_ends_within_a_second(start: Any, db: Database) -> None:
    """With nothing to do, SIGTERM ends the process within a second, whatever its lease and poll interval (T6)."""
    worker = start("--poll-interval", "1h", "--lease", "1h")
    worker.wait_for_output("worker_started")
    wait_until(lambda: _connections(db) >= 2, what="the worker's connections")
    worker.send(signal.SIGTERM)
    sent_at = time.monotonic()
    worker.wait_for_output("worker_stopped")
    assert time.monotonic() - sent_at < 1
    assert worker.wait(5) == 0


def _connections(db: Database) -> int:
    asked = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return int(db.execute(asked)[0]["n"])


def test_two_signals(start: Any, db: Database) -> None:
    """A second signal 200 ms after the first ends the process at once; its job comes back by its lease (T6)."""
    put(db, 60.0)
    worker = start("--grace", "60s")
    wait_until(lambda: began(db) == 1, timeout=30, what="the job running")
    worker.send(signal.SIGTERM)
    time.sleep(0.2)
    worker.send(signal.SIGTERM)
    assert worker.wait(2) == 128 + signal.SIGTERM
    assert db.states() == ["processing"]
    other = start("--grace", "0s")
    wait_until(lambda: began(db) == 2, timeout=30, what="the job running elsewhere")
    other.send(signal.SIGTERM)
    assert other.wait() == 0
    assert (db.row()["state"], db.row()["attempts"], db.row()["crashes"]) == ("pending", 1, 1)


def test_signals_while_it_starts(start: Any, db: Database) -> None:
    """Whenever in its first second SIGTERM comes, the process ends soon and no job is left leased (T6)."""
    put(db, 0.2, 20)
    workers = []
    for delay in (0.0, 0.05, 0.1, 0.4, 0.8):
        worker = start("--grace", "10s")
        time.sleep(delay)
        worker.send(signal.SIGTERM)
        workers.append(worker)
    # Before Python has come to listen, the signal's own effect ends the process.
    assert {worker.wait(20) for worker in workers} <= {0, -signal.SIGTERM}
    assert "processing" not in db.states()


def _can_be_process_1() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def process_1(processes: Processes, db: Database, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that is process 1 of a namespace of its own, as in a container."""
    with (tmp_path / "first.log").open("wb") as log:
        command = [
            "unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "brooq_sa", "worker", "own_jobs:AppJob",
            "--poll-interval", "100ms",
        ]  # fmt: skip
        environment = os.environ | {"DATABASE_URL": db.url}
        outside = subprocess.Popen(command, cwd=processes.folder, env=environment, stdout=log, stderr=log)
        yield outside
        outside.kill()
        outside.wait()


@pytest.mark.skipif(not _can_be_process_1(), reason="this system lets us make no process namespace")
def test_as_process_1(process_1: subprocess.Popen[bytes], db: Database) -> None:
    """As process 1, for which signals have no effect of their own, a worker drains like any other (T6)."""
    put(db, 1.0)
    wait_until(lambda: began(db) == 1, timeout=30, what="the job running")
    assert db.execute("SELECT pid FROM effect") == [{"pid": 1}]
    children = Path(f"/proc/{process_1.pid}/task/{process_1.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert process_1.wait(20) == 0
    assert db.states() == ["done"]
