"""What handlers tell of their progress gets into their rows: soon, rarely, and by the fence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from apps.embedding import bare_claim, base_of, job_class, put, put_many, working
from brooq_sa import State, StopCause
from brooq_sa.engines import Reserved
from brooq_sa.progress import read
from brooq_sa.settings import WorkerSettings
from brooq_sa.store import JobStore
from brooq_sa.worker import reporting as module
from brooq_sa.worker.heartbeat import Heartbeat
from brooq_sa.worker.held import Held
from brooq_sa.worker.reporting import Reporting
from databases import JOB, Database
from waiting import wait_until


class Holding:
    """A worker "w" that holds claims, and its reports, which come when the test says so."""

    def __init__(self, db: Database) -> None:
        self.db, self.held, self.store, self.reserved = db, Held(), JobStore(JOB), Reserved(db.engine)
        settings = WorkerSettings(lease=timedelta(seconds=30))
        self.heartbeat = Heartbeat(self.store, self.reserved, settings, worker="w", held=self.held)
        self.reporting = Reporting(self.heartbeat, self.store, self.reserved, worker="w", held=self.held)
        self.statements: list[str] = []
        engine = self.reserved._engine
        event.listen(engine, "before_cursor_execute", lambda *given: self.statements.append(given[2]))

    def claims(self, count: int) -> list[Any]:
        job = job_class(lambda job, claim: None)
        put_many(self.db, [job() for _ in range(count)])
        with self.db.engine.begin() as connection:
            lease = timedelta(minutes=1)
            claimed = self.store.claim(connection, {"work": count}, room=count, worker="w", lease=lease)
        made = [bare_claim(id=each.id, attempt=each.attempt) for each in claimed]
        self.held.add(made)
        return made

    def turn(self) -> list[str]:
        """The updates that a turn sends."""
        self.statements.clear()
        self.reporting.turn()
        return [each for each in self.statements if "UPDATE" in each]

    def progress(self, claim: Any) -> Any:
        row = self.db.row(claim.id)
        return read(row["progress"], row["attempts"])


@pytest.fixture
def holding(db: Database) -> Iterator[Holding]:
    made = Holding(db)
    yield made
    made.reserved.close()


def test_all_words_in_one_statement(holding: Holding) -> None:
    """What many attempts have told is written in one statement; where nothing is new, none is sent."""
    claims = holding.claims(10)
    assert len(holding.turn()) == 1  # the beat
    for number, claim in enumerate(claims):
        claim.progress(number, 10, f"step {number}\0")
    assert len(holding.turn()) == 1
    assert [holding.progress(claim).done for claim in claims] == list(range(10))
    assert holding.progress(claims[3]).note == "step 3\\x00"
    holding.reporting._reports_at = 0.0
    assert holding.turn() == []


def test_no_more_than_one_a_second(holding: Holding) -> None:
    """However often handlers tell, a report follows another after a second, and has the last word."""
    [claim] = holding.claims(1)
    holding.turn()
    claim.progress(1)
    assert len(holding.turn()) == 1
    claim.progress(2)
    assert holding.turn() == []
    assert 0 < holding.reporting.turn() <= module.SPACING
    claim.progress(3)
    holding.reporting._reports_at = 0.0
    holding.turn()
    assert holding.progress(claim).done == 3


def test_leases_are_renewed_when_it_is_time_for_that(holding: Holding) -> None:
    """A report is no beat: it renews nothing, and puts off nothing."""
    [claim] = holding.claims(1)
    assert any("locked_until" in each.partition("SET")[2].partition("WHERE")[0] for each in holding.turn())
    claim.progress(1)
    [report] = holding.turn()
    assert "locked_until" not in report.partition("SET")[2].partition("WHERE")[0]
    holding.reporting._beats_at = 0.0
    assert len(holding.turn()) == 1


def test_a_lost_claim_writes_nothing(holding: Holding) -> None:
    """An attempt that does not hold its job any more leaves no word in the row of another (I12)."""
    lost, canceled, retaken = holding.claims(3)
    for claim in (lost, canceled, retaken):
        claim.progress(5)
    lost._stop(StopCause.LEASE_LOST)
    holding.db.execute("UPDATE job SET state = 'canceled' WHERE id = :id", id=_stored(holding.db, canceled.id))
    holding.db.execute("UPDATE job SET attempts = 2 WHERE id = :id", id=_stored(holding.db, retaken.id))
    holding.heartbeat.turn()
    holding.reporting._beats_at = time.monotonic() + 60
    holding.turn()
    assert [holding.db.row(claim.id)["progress"] for claim in (lost, canceled, retaken)] == [None] * 3


def _stored(db: Database, job_id: Any) -> Any:
    return job_id.hex if db.name == "sqlite" else job_id


@pytest.mark.parametrize("is_async", [False, True])
def test_a_word_is_in_the_row_within_a_moment(db: Database, is_async: bool) -> None:
    """A handler's word is written long before the next heartbeat, and its metrics stand for it."""
    go_on = threading.Event()

    def run(job: Any, claim: Any) -> None:
        claim.progress(30, 100, "reading")
        assert go_on.wait(20)

    async def run_async(job: Any, claim: Any) -> None:
        import asyncio

        claim.progress(30, 100, "reading")
        await asyncio.to_thread(go_on.wait, 20)

    job = job_class(run_async if is_async else run)
    job_id = put(db, job())
    with working(db, base_of(job), lease=timedelta(minutes=10)):
        told = wait_until(lambda: read(db.row(job_id)["progress"], 1), timeout=5)
        assert str(told) == "30 of 100 (30%): reading"
        go_on.set()
        wait_until(lambda: db.row(job_id)["state"] == State.DONE)
