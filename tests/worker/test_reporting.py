"""What handlers tell of their progress gets into their rows: soon, rarely, and by the fence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from apps.embedding import bare_claim, base_of, job_class, put, put_many, working
from brooq_sa import State, StopCause, Worker
from brooq_sa.engines import Reserved
from brooq_sa.outcomes import released
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


def test_a_snapshot_of_its_own_is_spared(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While claim.session is at REPEATABLE READ nothing is written that would make its own outcome fail."""
    ran: list[Any] = []
    tries: list[int] = []
    write = Reporting._write

    def watched(self: Reporting, *given: Any) -> None:
        write(self, *given)
        tries.append(1)

    def run(job: Any, claim: Any) -> None:
        ran.append(claim.session.execute(text("SELECT 1")).scalar())
        claim.progress(1, 2)
        before = len(tries)
        wait_until(lambda: len(tries) >= before + 2, what="reports being tried")

    job = job_class(run)
    job_id = put(pg, job())
    monkeypatch.setattr(module, "SPACING", 0.02)
    monkeypatch.setattr(Reporting, "_write", watched)
    engine = pg.engine.execution_options(isolation_level="REPEATABLE READ")
    with Worker(engine, base_of(job), poll_interval="20ms"):
        wait_until(lambda: pg.row(job_id)["state"] == State.DONE)
    assert (ran, pg.row(job_id)["attempts"]) == ([1], 1)


def test_beside_a_session(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """At READ COMMITTED words are written while claim.session is in a transaction; on SQLite they wait for its end."""
    reports: list[int] = []
    report = JobStore.report

    def watched(self: JobStore, *given: Any) -> None:
        reports.append(1)
        report(self, *given)

    def run(job: Any, claim: Any) -> None:
        claim.session.execute(text("SELECT 1"))
        claim.progress(1, 2)
        until = time.monotonic() + 0.3
        while time.monotonic() < until and not reports:
            time.sleep(0.01)
        during.extend(reports)

    during: list[int] = []
    job = job_class(run)
    job_id = put(db, job())
    monkeypatch.setattr(module, "SPACING", 0.02)
    monkeypatch.setattr(JobStore, "report", watched)
    with working(db, base_of(job)):
        wait_until(lambda: db.row(job_id)["state"] == State.DONE)
    assert (during, db.row(job_id)["attempts"]) == ([1] if db.name == "postgresql" else [], 1)


def test_a_refused_report_costs_no_lease(holding: Holding, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """It is logged once until one succeeds; beats go on, and the last word is written when that is possible."""
    [claim] = holding.claims(1)
    holding.turn()
    report = holding.store.report
    monkeypatch.setattr(holding.store, "report", _refuse)
    beats = []

    def beat() -> float:
        beats.append(time.monotonic())
        return 0.0

    monkeypatch.setattr(holding.reporting, "_beat", beat)
    holding.reporting._beats_at = 0.0
    claim.progress(1)
    for _ in range(3):
        holding.reporting._reports_at = 0.0
        holding.reporting.turn()
    assert len([each for each in caplog.records if "progress_not_written" in each.getMessage()]) == 1
    assert len(beats) == 3
    monkeypatch.setattr(holding.store, "report", report)
    holding.reporting._reports_at = 0.0
    holding.reporting.turn()
    assert holding.progress(claim).done == 1


def _refuse(*_: Any) -> None:
    raise OperationalError("UPDATE", {}, Exception("no"))


def test_the_next_attempt_starts_anew(holding: Holding) -> None:
    """Also one that has the number of an attempt that was given back."""
    [claim] = holding.claims(1)
    claim.progress(8, 10)
    holding.turn()
    assert holding.progress(claim).done == 8
    with holding.db.engine.begin() as connection:
        holding.store.settle(connection, "w", [released(claim._holding)])
        [again] = holding.store.claim(connection, {"work": 1}, room=1, worker="w", lease=timedelta(minutes=1))
    assert again.holding == claim._holding
    assert holding.progress(claim) is None
