"""Jobs of workers that let their leases run out come back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from apps.embedding import Heard, base_of, job_class, put_many, working
from brooq_sa import State
from brooq_sa.engines import Reserved
from brooq_sa.events import Events, JobRequeued
from brooq_sa.store import JobStore, Outcome
from brooq_sa.upkeep import Reaper
from databases import JOB, Database
from waiting import wait_until

STORE = JobStore(JOB)
MINUTE = timedelta(minutes=1)


class Reaping:
    """A reaper, and what it told."""

    def __init__(self, db: Database, worker: str = "reaper") -> None:
        self.reserved = Reserved(db.engine)
        self.heard = Heard()
        events = Events()
        events.subscribe(self.heard)
        self.reaper = Reaper(STORE, self.reserved, worker=worker, events=events)

    def run(self) -> int:
        return self.reaper.run()


@pytest.fixture
def make_reaper(db: Database) -> Iterator[Callable[[], Reaping]]:
    made: list[Reaping] = []

    def make() -> Reaping:
        made.append(Reaping(db))
        return made[-1]

    yield make
    for each in made:
        each.reserved.close()


def leased(db: Database, count: int, *, topic: str = "work", worker: str = "gone") -> list[uuid.UUID]:
    """Jobs that `worker` holds for a minute."""
    job = job_class(lambda job, claim: None, topic=topic)
    ids = put_many(db, [job() for _ in range(count)])
    with db.engine.begin() as connection:
        assert len(STORE.claim(connection, {topic: count}, room=count, worker=worker, lease=MINUTE)) == count
    return ids


def test_expired_leases_come_back(db: Database, make_reaper: Callable[[], Reaping]) -> None:
    """A job whose lease ran out is pending again and due now, its attempts as they were (U1, I7)."""
    expired = leased(db, 3)
    db.shift_clock(2 * MINUTE)
    held = leased(db, 2, worker="alive")
    reaping = make_reaper()
    assert reaping.run() == 3
    for each in expired:
        row = db.row(each)
        assert (row["state"], row["attempts"], row["locked_by"], row["locked_until"]) == ("pending", 1, None, None)
        assert abs(row["available_at"] - datetime.now(UTC)) < MINUTE
    assert [db.row(each)["locked_by"] for each in held] == ["alive"] * 2


def test_what_came_back_is_told(
    db: Database, make_reaper: Callable[[], Reaping], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has count and topics, and each job is an event (U1, W3)."""
    leased(db, 2, topic="a")
    leased(db, 1, topic="b")
    db.shift_clock(2 * MINUTE)
    reaping = make_reaper()
    reaping.run()
    told = reaping.heard.all(JobRequeued)
    assert sorted((each.topic, each.attempt, each.reaped) for each in told) == [("a", 1, True)] * 2 + [("b", 1, True)]
    [line] = [record.getMessage() for record in caplog.records if "jobs_reaped" in record.getMessage()]
    assert "count=3" in line
    assert "'a': 2" in line
    assert "'b': 1" in line


def test_nothing_to_reap_says_nothing(
    db: Database, make_reaper: Callable[[], Reaping], caplog: pytest.LogCaptureFixture
) -> None:
    """A look that finds nothing leaves no line and no event."""
    leased(db, 1)
    reaping = make_reaper()
    assert reaping.run() == 0
    assert (reaping.heard.names(), caplog.records) == ([], [])


def test_more_than_a_batch(db: Database, make_reaper: Callable[[], Reaping], monkeypatch: pytest.MonkeyPatch) -> None:
    """One run reaps all there is, a batch a transaction (U1)."""
    monkeypatch.setattr("brooq_sa.upkeep.reaper.BATCH", 4)
    leased(db, 10)
    db.shift_clock(2 * MINUTE)
    assert make_reaper().run() == 10
    assert db.states() == ["pending"] * 10


def test_many_reapers(db: Database, make_reaper: Callable[[], Reaping]) -> None:
    """Many may reap at once: each job comes back once (U1)."""
    leased(db, 60)
    db.shift_clock(2 * MINUTE)
    reapers = [make_reaper() for _ in range(4)]
    together = threading.Barrier(4)
    counts: list[int] = []

    def reap(reaping: Reaping) -> None:
        together.wait(10)
        counts.append(reaping.run())

    threads = [threading.Thread(target=reap, args=(each,)) for each in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(counts), sum(counts)) == (4, 60)


def test_finished_jobs_are_left_alone(db: Database, make_reaper: Callable[[], Reaping]) -> None:
    """No terminal state is overwritten, not even where a stale lease was left in the row by hand (I3)."""
    ids = leased(db, 3)
    db.execute("UPDATE job SET state = 'canceled'")
    db.shift_clock(2 * MINUTE)
    assert make_reaper().run() == 0
    assert [db.row(each)["state"] for each in ids] == ["canceled"] * 3


def test_a_job_that_finishes_while_it_is_reaped(pg: Database) -> None:
    """A row that its holder is just settling is passed over, and its outcome stands (I3, U1)."""
    [job_id] = leased(pg, 1)
    pg.shift_clock(2 * MINUTE)
    reaping = Reaping(pg)
    with pg.engine.begin() as holder:
        assert STORE.settle(holder, "gone", [Outcome(job_id, 1, State.DONE)])
        assert reaping.run() == 0
    assert reaping.run() == 0
    assert (pg.states(), reaping.heard.names()) == (["done"], [])
    reaping.reserved.close()


def test_a_renewal_that_comes_first(pg: Database) -> None:
    """A lease that is renewed while the reaper looks is not taken away (I2)."""
    [job_id] = leased(pg, 1)
    pg.shift_clock(2 * MINUTE)
    reaping = Reaping(pg)
    with pg.engine.begin() as holder:
        STORE.renew(holder, "gone", {(job_id, 1)}, MINUTE)
        assert reaping.run() == 0
    assert (reaping.run(), pg.states()) == (0, ["processing"])
    reaping.reserved.close()


def test_a_locked_row_waits_for_the_next_time(pg: Database) -> None:
    """An expired row that somebody has locked keeps no other from coming back (U1)."""
    ids = leased(pg, 3)
    pg.shift_clock(2 * MINUTE)
    reaping = Reaping(pg)
    with pg.engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": ids[1]})
        assert reaping.run() == 2
    assert reaping.run() == 1
    wait_until(lambda: pg.states() == ["pending"] * 3, what="all being back")
    reaping.reserved.close()


def test_every_worker_reaps(db: Database) -> None:
    """A running worker brings back, and then runs, what another has left behind (U1, I11)."""
    seen: list[tuple[int, Any]] = []
    job = job_class(lambda job, claim: seen.append((claim.attempt, claim.worker)))
    put_many(db, [job()])
    with db.engine.begin() as connection:
        STORE.claim(connection, {"work": 1}, room=1, worker="killed", lease=MINUTE)
    db.shift_clock(2 * MINUTE)
    with working(db, base_of(job)) as worker:
        wait_until(lambda: db.states() == ["done"], what="the job being done")
    assert seen == [(2, worker.id)]
