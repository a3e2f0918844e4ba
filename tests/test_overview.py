"""What goes on in a table, at a glance."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from brooq_sa import RawJob, enqueue
from brooq_sa.depths import COUNTED
from brooq_sa.overview import Overview, overview
from brooq_sa.statements import presence
from brooq_sa.states import State
from brooq_sa.store import JobStore, Outcome
from databases import JOB, Database
from plans.explaining import explained

STORE = JobStore(JOB)


def seen(db: Database) -> Overview:
    with db.engine.connect() as connection:
        return overview(connection, JOB)


def put(db: Database, topic: str, count: int = 1, **options: Any) -> None:
    with db.engine.begin() as connection:
        for _ in range(count):
            enqueue(connection, RawJob(topic, 1), **options)


def claim(db: Database, topic: str, count: int) -> list[Any]:
    with db.engine.begin() as connection:
        return STORE.claim(connection, {topic: count}, room=count, worker="w", lease=timedelta(minutes=1))


def settle(db: Database, jobs: list[Any], state: State, error: str | None = None) -> None:
    with db.engine.begin() as connection:
        delay = timedelta(hours=1) if state is State.FAILED else None
        STORE.settle(connection, "w", [Outcome(job.id, job.attempt, state, delay, error) for job in jobs])


def test_an_empty_table(db: Database) -> None:
    """There is nothing to see."""
    empty = seen(db)
    assert (empty.topics, empty.workers, empty.running, empty.troubled) == ([], [], [], [])


def test_topics(db: Database) -> None:
    """Each topic has its counts, the wait of its oldest job, its rate and p95; the longest wait comes first."""
    put(db, "slow", 3)
    db.shift_clock(timedelta(seconds=30))
    put(db, "mail", 5)
    settle(db, claim(db, "mail", 2), State.DONE)
    claim(db, "mail", 1)
    with db.engine.begin() as connection:
        STORE.pause(connection, "later", reason="not now", by="ann")
    first, second, third = seen(db).topics
    assert [each.topic for each in (first, second, third)] == ["slow", "mail", "later"]
    assert 30 <= (first.oldest or 0) < 60
    assert (first.ready, first.rate, first.p95) == (3, 0, None)
    assert (second.ready, second.counts["processing"], second.counts["done"]) == (2, 1, 2)
    assert second.rate == 2 / 60
    assert second.p95 is not None
    assert 0 <= second.p95 < 30
    assert third.paused == "not now"


def test_jobs(db: Database) -> None:
    """Running jobs are listed with who has them; dead and failed ones with their errors, and done ones not at all."""
    put(db, "mail", 4)
    done, dead, failed, running = claim(db, "mail", 4)
    settle(db, [done], State.DONE)
    settle(db, [dead], State.DEAD, "it is broken")
    settle(db, [failed], State.FAILED, "it was away")
    now = seen(db)
    assert [(each.id, each.worker, each.attempts) for each in now.running] == [(running.id, "w", 1)]
    assert 0 < (now.running[0].lease_left or 0) <= 60
    assert [(each.id, each.state, each.error) for each in now.troubled] == [
        (dead.id, "dead", "it is broken"),
        (failed.id, "failed", "it was away"),
    ]


def announce(db: Database, worker: str, believed: float, slots: int = 4, running: int = 0) -> None:
    constant = {"its_id": worker, "its_host": "h", "its_pid": 1, "its_version": "1", "its_slots": slots}
    current = {"topics": ["mail"], "running": running, "believed": believed, "reaps_in": None}
    with db.engine.begin() as connection:
        connection.execute(presence.announce(JOB, db.name), constant | current)


def test_workers(db: Database) -> None:
    """Workers that are to be believed are listed, and those that were not seen for long are not."""
    announce(db, "here", 60.0)
    announce(db, "gone", -1.0)
    [worker] = seen(db).workers
    assert (worker.id, worker.slots, worker.running, worker.topics) == ("here", 4, 0, ["mail"])


@pytest.mark.parametrize("slots, jobs, busy", [(4, 0, 0), (4, 3, 3), (4, 6, 4)])
def test_busy_slots_are_those_of_the_jobs_that_run(db: Database, slots: int, jobs: int, busy: int) -> None:
    """How many slots are busy fits the running jobs of the same look, whatever the worker has announced before."""
    put(db, "mail", 6)
    claim(db, "mail", jobs)
    announce(db, "w", 60.0, slots, running=1)
    now = seen(db)
    assert (len(now.running), now.workers[0].running) == (jobs, busy)


def test_busy_slots_where_too_much_runs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more jobs run than a look lists, a worker's own word stands for what it is busy with."""
    monkeypatch.setattr("brooq_sa.overview.RUNNING", 2)
    put(db, "mail", 3)
    claim(db, "mail", 3)
    announce(db, "w", 60.0, running=1)
    assert seen(db).workers[0].running == 1


@pytest.mark.parametrize("is_analyzed", [False, True])
def test_a_look_is_bounded(pg: Database, is_analyzed: bool) -> None:
    """Whatever lies in the table, no statement of a look reads all of it, and a bounded number of jobs is listed."""
    pg.execute(
        "INSERT INTO job (topic, payload, state, updated_at)"
        " SELECT 'mail', '1', (ARRAY['dead', 'pending'])[1 + n % 2], now() - n * interval '1 s'"
        " FROM generate_series(1, 40000) AS n"
    )
    if is_analyzed:
        pg.execute("ANALYZE job")
    with pg.engine.connect() as connection, explained(connection) as plans:
        now = overview(connection, JOB)
    assert len(now.troubled) == 50
    assert [each.seconds for each in now.troubled] == sorted(each.seconds for each in now.troubled)
    assert now.topics[0].rate <= 1
    assert [str(plan) for plan in plans if plan.rows_read > 2 * COUNTED] == []
