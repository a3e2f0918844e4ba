"""Worker processes that are stopped, killed and drained; what they leave behind is told by the database alone."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from apps.embedding import put, put_many
from apps.sharing import EFFECTS, Quick, Sleeper, Slow
from databases import Database
from processes import Child, Processes
from waiting import wait_until

TESTS = str(Path(__file__).parent.parent)

StartWorker = Callable[..., Child]


@pytest.fixture
def start_worker(db: Database, processes: Processes) -> StartWorker:
    """Starts `brooq-sa worker` with these options; returns once it works."""
    for statement in EFFECTS:
        db.execute(statement)

    def start(*options: str, wait: bool = True, **environment: str) -> Child:
        child = processes.module(
            "brooq_sa",
            "worker",
            "apps.sharing:Sharing",
            "--poll-interval=50ms",
            "--log-format=json",
            *options,
            env={"PYTHONPATH": TESTS, "DATABASE_URL": db.url} | environment,
        )
        if wait:
            child.wait_for_output("worker_started")
        return child

    return start


def effects(db: Database) -> list[dict[str, Any]]:
    return db.execute("SELECT number, attempt, pid FROM effect ORDER BY number, attempt")


def runs(db: Database) -> list[dict[str, Any]]:
    return db.execute("SELECT number, attempt, pid FROM run ORDER BY number, attempt")


def lines(child: Child, event: str) -> list[dict[str, Any]]:
    """What its log says of this event."""
    logged = (json.loads(line) for line in child.output().splitlines() if line.startswith("{"))
    return [line for line in logged if line["event"] == event]


def are_done(db: Database, count: int) -> bool:
    return len(db.rows(state="done")) == count


class TestAWorkerThatSlept:
    ENDINGS = ("returns", "writes", "raises", "asks for a retry", "is released")

    def test_its_late_writes_hit_nothing(self, db: Database, start_worker: StartWorker, tmp_path: Path) -> None:
        """A worker that slept past its leases writes nothing when it wakes, however its handlers end (I12, I3)."""
        gates = [str(tmp_path / f"gate{number}") for number in range(len(self.ENDINGS))]
        settings = ("--workers=5", "--lease=1s", "--reaper-period=100ms", "--grace=0s")
        asleep = start_worker(*settings)
        ids = put_many(
            db,
            [
                Sleeper(number=number, gate=gate, ending=ending)
                for number, (gate, ending) in enumerate(zip(gates, self.ENDINGS, strict=True))
            ],
        )
        wait_until(lambda: len(runs(db)) == 5, what="all five running")
        asleep.send(signal.SIGSTOP)
        heir = start_worker(*settings)
        wait_until(lambda: len(runs(db)) == 10, what="all five running again")
        before = [held(db.row(each)) for each in ids]
        for gate in gates[:4]:
            Path(f"{gate}.1").touch()
        asleep.send(signal.SIGCONT)
        wait_until(lambda: len(lines(asleep, "job_lease_lost")) >= 4, what="four leases being known as lost")
        asleep.send(signal.SIGTERM)  # it gives back what it believes to hold
        assert asleep.wait() == 0
        assert [held(db.row(each)) for each in ids] == before
        assert {(state, attempts, error) for state, _, attempts, error in before} == {("processing", 2, None)}
        for gate in gates:
            Path(f"{gate}.2").touch()
        wait_until(lambda: are_done(db, 5), what="all being done")
        assert {(row["attempts"], row["last_error"]) for row in db.rows()} == {(2, None)}
        assert [(row["attempt"], row["pid"]) for row in effects(db)] == [(2, heir.pid)] * 5
        assert lines(heir, "job_lease_lost") == []

    def test_jobs_that_end_as_they_are_reaped(self, db: Database, start_worker: StartWorker) -> None:
        """Of workers that are stopped for about a lease each effect is there once, and no verdict undone (I3, I7)."""
        chance = random.Random(7)
        settings = ("--workers=4", "--lease=1s", "--reaper-period=50ms")
        workers = [start_worker(*settings, wait=False) for _ in range(2)]
        for worker in workers:
            worker.wait_for_output("worker_started")
        put_many(db, [Slow(number=number, seconds=0.15) for number in range(100)])
        wait_until(lambda: db.rows(state="done"), what="the first job being done")
        seen: dict[Any, str] = {}
        for turn in range(5):
            stopped = workers[turn % 2]
            stopped.send(signal.SIGSTOP)
            time.sleep(chance.uniform(0.8, 1.3))  # the fault itself: a lease, more or less
            stopped.send(signal.SIGCONT)
            for row in db.rows():
                assert seen.get(row["id"], row["state"]) == row["state"], "a verdict was undone"
                if row["state"] in ("done", "dead", "canceled"):
                    seen[row["id"]] = row["state"]
        wait_until(lambda: are_done(db, 100), timeout=40, what="every job being done")
        assert [row["number"] for row in effects(db)] == list(range(100))


def held(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["state"], row["locked_by"], row["attempts"], row["last_error"]


class TestAKilledWorker:
    def test_nothing_is_lost_and_nothing_doubled(self, db: Database, start_worker: StartWorker) -> None:
        """Workers killed in the middle, again and again: every job ends, and has written its effect once (I11, U1)."""
        settings = ("--workers=4", "--lease=1s", "--reaper-period=100ms")
        workers = [start_worker(*settings) for _ in range(2)]
        put_many(db, [Slow(number=number, seconds=0.02) for number in range(300)])
        for turn in range(3):
            wait_until(lambda least=60 * turn + 20: len(effects(db)) >= least, timeout=30, what="some progress")  # type: ignore[misc]
            workers[turn % 2].kill()
            workers[turn % 2] = start_worker(*settings, wait=False)
        wait_until(lambda: are_done(db, 300), timeout=60, what="every job being done")
        assert [row["number"] for row in effects(db)] == list(range(300))
        assert {row["last_error"] for row in db.rows()} == {None}
        # A crash is no failure: what was begun twice has been taken twice, and nothing more.
        taken = {row["number"]: 0 for row in runs(db)}
        for row in runs(db):
            taken[row["number"]] += 1
        for row in db.rows():
            assert row["attempts"] >= taken[row["payload"]["number"]]

    def test_its_jobs_come_back_with_their_attempts(
        self, db: Database, start_worker: StartWorker, tmp_path: Path
    ) -> None:
        """The jobs of a killed worker come back within a lease and a look, their attempts as they were (U1, I7)."""
        settings = ("--lease=1s", "--reaper-period=100ms", "--max-attempts=1")
        killed = start_worker(*settings)
        job_id = put(db, Sleeper(number=1, gate=str(tmp_path / "gate"), ending="returns"))
        wait_until(lambda: runs(db), what="the job running")
        killed.kill()
        assert held(db.row(job_id))[2:] == (1, None)
        Path(tmp_path / "gate.2").touch()
        heir = start_worker(*settings)
        wait_until(lambda: are_done(db, 1), what="the job being done")
        assert db.row(job_id)["attempts"] == 2
        [line] = lines(heir, "jobs_reaped")
        assert (line["count"], line["topics"]) == (1, {"sleeper": 1})


class TestDraining:
    def test_running_jobs_are_finished(self, db: Database, start_worker: StartWorker) -> None:
        """On SIGTERM a worker finishes what it runs, renewing its leases meanwhile, and ends with 0 (T6, T4)."""
        draining = start_worker("--workers=2", "--lease=1500ms", "--grace=20s")
        put_many(db, [Slow(number=number, seconds=2.5) for number in range(2)])
        wait_until(lambda: len(runs(db)) == 2, what="both running")
        idle = start_worker("--workers=2", "--lease=1500ms", "--reaper-period=50ms")
        draining.send(signal.SIGTERM)
        put(db, Quick(number=9))
        assert draining.wait() == 0
        wait_until(lambda: are_done(db, 3), what="all being done")
        assert [(row["number"], row["pid"]) for row in effects(db)] == [
            (0, draining.pid),
            (1, draining.pid),
            (9, idle.pid),
        ]
        assert [row["attempts"] for row in db.rows()] == [1, 1, 1]

    def test_what_does_not_end_goes_back(self, db: Database, start_worker: StartWorker) -> None:
        """Past the grace jobs are told to stop; those that are not done go back at once, uncharged (T6, I6)."""
        draining = start_worker("--workers=2", "--lease=60s", "--grace=100ms")
        put_many(db, [Sleeper(number=number, gate="/nowhere/gate", ending="returns") for number in range(2)])
        wait_until(lambda: len(runs(db)) == 2, what="both running")
        draining.send(signal.SIGTERM)
        assert draining.wait() == 0
        assert [held(row) for row in db.rows()] == [("pending", None, 0, None)] * 2


def test_two_workers_share(pg: Database, processes: Processes) -> None:
    """Two processes on PostgreSQL share two thousand jobs, and each job is run once (I2, S1)."""
    for statement in EFFECTS:
        pg.execute(statement)
    environment = {"PYTHONPATH": TESTS, "DATABASE_URL": pg.url}
    options = ("--workers=8", "--poll-interval=50ms", "--lease=60s")
    workers = [
        processes.module("brooq_sa", "worker", "apps.sharing:Sharing", *options, env=environment) for _ in range(2)
    ]
    for worker in workers:
        worker.wait_for_output("worker_started")
    put_many(pg, [Quick(number=number) for number in range(2_000)])
    wait_until(lambda: are_done(pg, 2_000), timeout=60, what="every job being done")
    assert [row["number"] for row in effects(pg)] == list(range(2_000))
    assert {(row["attempts"], row["last_error"]) for row in pg.rows()} == {(1, None)}
    assert {row["pid"] for row in effects(pg)} == {worker.pid for worker in workers}


def test_a_worker_in_another_zone(db: Database, start_worker: StartWorker) -> None:
    """Whatever the zones of the host, of the database's role and of the instant, a job is run when it is due (I13)."""
    if db.name == "postgresql":
        db.execute("ALTER ROLE CURRENT_USER SET timezone = 'Asia/Tokyo'")
    try:
        start_worker(TZ="Asia/Kolkata" if db.name == "postgresql" else "America/New_York")
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        kolkata = timezone(timedelta(hours=5, minutes=30))
        ids = [
            put(db, Quick(number=0), available_at=due),
            put(db, Quick(number=1), available_at=due.astimezone(kolkata)),
            put(db, Quick(number=2), delay="1500ms"),
        ]
        wait_until(lambda: are_done(db, 3), what="all being done")
        for row in map(db.row, ids):
            late = row["updated_at"] - row["available_at"]
            assert timedelta(0) <= late < timedelta(seconds=3)
            assert abs(row["available_at"] - due) < timedelta(seconds=1)
    finally:
        if db.name == "postgresql":
            db.execute("ALTER ROLE CURRENT_USER RESET timezone")
