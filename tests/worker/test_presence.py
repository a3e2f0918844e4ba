"""Workers say who they are, which is for people to read and never in the way of work."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from apps.embedding import FAST, base_of, job_class, put, working
from brooq_sa import JobBase, Worker, __version__, consume
from brooq_sa.engines import Reserved
from brooq_sa.schema import worker_table
from brooq_sa.statements import presence as statements
from brooq_sa.store import JobStore
from brooq_sa.worker.presence import LONGEST, SHORTEST, Presence
from databases import JOB, Database
from waiting import wait_until


def nothing(job: Any, claim: Any) -> None:
    """A handler with nothing to do."""


def rows(db: Database) -> list[dict[str, Any]]:
    with db.engine.connect() as connection:
        return [dict(row) for row in connection.execute(statements.workers(JOB)).mappings()]


@pytest.fixture
def presence(db: Database) -> Iterator[Presence]:
    reserved = Reserved(db.engine)
    yield made(reserved)
    reserved.close()


def made(reserved: Reserved, **changes: Any) -> Presence:
    terms: dict[str, Any] = {"worker": "w-1", "topics": ["b", "a"], "slots": 4, "lease": timedelta(minutes=2)}
    terms |= {"running": lambda: 3, "reaps_in": lambda: 20.0}
    return Presence(JobStore(JOB), reserved, **terms | changes)


def test_a_row_says_who_it_is(db: Database, presence: Presence) -> None:
    """An announcement has host, process, version, topics, slots, what runs, and when it reaps; another renews it."""
    assert presence.run()
    [first] = rows(db)
    assert (first["id"], first["host"], first["pid"]) == ("w-1", socket.gethostname(), os.getpid())
    assert (first["version"], first["topics"]) == (__version__, ["a", "b"])
    assert (first["slots"], first["running"], first["is_live"]) == (4, 3, 1)
    assert timedelta(seconds=19) < first["reaps_at"] - first["seen_at"] < timedelta(seconds=21)
    assert first["live_until"] - first["seen_at"] >= 2 * presence.period
    db.execute(
        "UPDATE job_worker SET seen_at = '2020-01-01 00:00:00.000000', started_at = '2020-01-01 00:00:00.000000'"
    )
    assert presence.run()
    [second] = rows(db)
    assert second["seen_at"].year > 2020
    assert second["started_at"].year == 2020


def test_it_leaves(db: Database, presence: Presence) -> None:
    """A worker takes its own row away, and no other."""
    presence.run()
    other = made(presence._reserved, worker="w-2")
    other.run()
    assert presence.leave()
    assert [row["id"] for row in rows(db)] == ["w-2"]


def test_the_rows_of_the_dead_go(db: Database, presence: Presence) -> None:
    """A row that was not renewed is not believed any more, and after ten minutes it is deleted by any other."""
    made(presence._reserved, worker="crashed").run()
    db.execute("UPDATE job_worker SET live_until = '2020-01-01 00:00:00.000000'")
    assert [row["is_live"] for row in rows(db)] == [0]
    presence.run()
    assert [row["id"] for row in rows(db)] == ["w-1"]


def test_a_row_that_was_late_is_left(db: Database, presence: Presence) -> None:
    """What was seen within the last ten minutes stays to be seen."""
    made(presence._reserved, worker="late").run()
    with db.engine.begin() as connection:
        table = worker_table(JOB)
        seen = connection.execute(select(table.c.live_until)).scalar_one()
        connection.execute(table.update().values(live_until=seen - timedelta(minutes=5)))
    presence.run()
    assert [(row["id"], row["is_live"]) for row in rows(db)] == [("late", 0), ("w-1", 1)]


@pytest.mark.parametrize("lease", [timedelta(seconds=1), timedelta(seconds=30), timedelta(hours=1)])
def test_it_costs_next_to_nothing(presence: Presence, lease: timedelta) -> None:
    """However short the lease, a worker announces itself no more often than every 5 seconds, nor less than every 15."""
    assert SHORTEST <= made(presence._reserved, lease=lease).period <= LONGEST
    assert timedelta(seconds=5) == SHORTEST


def test_without_its_table(db: Database, presence: Presence, caplog: pytest.LogCaptureFixture) -> None:
    """A table that is missing is said once, and no error; when it is back, so is the row."""
    db.execute("ALTER TABLE job_worker RENAME TO hidden")
    try:
        assert not presence.run()
        assert not presence.run()
    finally:
        db.execute("ALTER TABLE hidden RENAME TO job_worker")
    assert caplog.text.count("worker_not_announced") == 1
    assert presence.run()
    assert len(rows(db)) == 1


class TestWorker:
    def test_it_is_there_while_it_works(self, db: Database) -> None:
        """A worker has a row from its start to its stop."""
        with working(db, base_of(job_class(nothing))) as worker:
            wait_until(lambda: [row["id"] for row in rows(db)] == [worker.id], what="the worker's row")
            assert [(row["topics"], row["slots"]) for row in rows(db)] == [(["work"], 4)]
            assert rows(db)[0]["reaps_at"] is not None
        assert rows(db) == []

    def test_one_that_stops_serves_nothing_more(self, db: Database) -> None:
        """While the running jobs of a stopping worker end, its row says that it claims nothing."""
        may_end = threading.Event()
        job = job_class(lambda _job, _claim: may_end.wait(30) and None)
        put(db, job())
        worker = Worker(db.engine, base_of(job), **FAST)
        worker.start()
        wait_until(lambda: db.states() == ["processing"] and len(rows(db)) == 1, what="the job running")
        stopping = threading.Thread(target=worker.stop, args=("20s",))
        stopping.start()
        wait_until(lambda: [(row["topics"], row["running"]) for row in rows(db)] == [([], 1)], what="nothing served")
        may_end.set()
        stopping.join(30)
        assert (rows(db), db.states()) == ([], ["done"])

    def test_it_works_without_its_table(self, db: Database) -> None:
        """A worker that cannot announce itself has no trouble, and runs its jobs."""
        db.execute("ALTER TABLE job_worker RENAME TO hidden")
        try:
            job = job_class(nothing)
            put(db, job())
            with working(db, base_of(job)) as worker:
                wait_until(lambda: db.states() == ["done"], what="the job being done")
                assert worker.troubles == {}
        finally:
            db.execute("ALTER TABLE hidden RENAME TO job_worker")

    def test_the_pull_style_is_there_too(self, db: Database) -> None:
        """An iterator of claims has a row while it lasts."""

        class Jobs(JobBase): ...

        job = job_class(nothing)
        put(db, job())
        for claim in consume(db.engine, Jobs, ["work"], stop_when_empty=True):
            with claim:
                wait_until(lambda: len(rows(db)) == 1, what="the row")
                assert (rows(db)[0]["topics"], rows(db)[0]["slots"]) == (["work"], 1)
        assert rows(db) == []
