"""Leases of held jobs are renewed, and handlers hear when they are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from apps.embedding import FAST, Heard, bare_claim, base_of, job_class, put, put_many, working
from brooq_sa import State, StopCause, Worker
from brooq_sa.engines import Reserved
from brooq_sa.events import JobDone, JobLeaseLost
from brooq_sa.settings import WorkerSettings
from brooq_sa.store import JobStore, Outcome
from brooq_sa.worker.heartbeat import Heartbeat
from brooq_sa.worker.held import Held
from databases import JOB, Database
from waiting import wait_until

LEASE = timedelta(seconds=30)


class Holding:
    """A worker "w" that holds claims, and its heartbeat, which beats when the test says so."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.held = Held()
        self.store = JobStore(JOB)
        self.reserved = Reserved(db.engine)
        self.heartbeat = Heartbeat(self.store, self.reserved, WorkerSettings(lease=LEASE), worker="w", held=self.held)

    def claims(self, count: int) -> list[Any]:
        """Claims on jobs that are put and taken now, with a lease of a second."""
        job = job_class(lambda job, claim: None)
        put_many(self.db, [job() for _ in range(count)])
        with self.db.engine.begin() as connection:
            claimed = self.store.claim(connection, {"work": count}, room=count, worker="w", lease=timedelta(seconds=1))
        ends = time.monotonic() + 1
        made = [bare_claim(id=each.id, attempt=each.attempt, lease_ends=ends) for each in claimed]
        self.held.add(made)
        return made

    def seconds_left(self, claim: Any) -> float:
        locked_until: datetime = self.db.row(claim.id)["locked_until"]
        return (locked_until - datetime.now(UTC)).total_seconds()


@pytest.fixture
def holding(db: Database) -> Iterator[Holding]:
    made = Holding(db)
    yield made
    made.reserved.close()


class TestOneBeat:
    def test_a_lease_that_was_called_lost_is_left_to_run_out(self, holding: Holding) -> None:
        """What has been told that its lease is lost is not renewed, so that others may have the job (I13)."""
        lost, kept = holding.claims(2)
        lost._stop(StopCause.LEASE_LOST)
        holding.heartbeat.turn()
        assert holding.seconds_left(lost) < 2
        assert holding.seconds_left(kept) > 20

    def test_it_hurries_after_a_cancel(self, holding: Holding) -> None:
        """A cancel that is still being committed is looked for again at once, and for a moment only (T5)."""
        assert holding.heartbeat.turn() > 5
        holding.heartbeat.hurry()
        assert holding.heartbeat.turn() < 0.1
        wait_until(lambda: holding.heartbeat.turn() > 5, what="the end of the hurry")

    def test_all_are_renewed_in_one_statement(self, holding: Holding) -> None:
        """Every lease moves to a full one from now, in one statement for all (T4)."""
        claims = holding.claims(20)
        statements: list[str] = []
        event.listen(
            holding.reserved._engine,
            "before_cursor_execute",
            lambda *given: statements.append(given[2]),
        )
        holding.heartbeat.turn()
        assert len([each for each in statements if each.startswith("UPDATE")]) == 1
        for claim in claims:
            assert holding.seconds_left(claim) == pytest.approx(30, abs=5)
            assert claim._lease_ends == pytest.approx(time.monotonic() + 30, abs=5)
            assert claim.cause is None

    def test_the_next_beat_comes_after_a_third(self, holding: Holding) -> None:
        """Leases are renewed every third of their length (T4)."""
        assert holding.heartbeat.turn() == pytest.approx(10, abs=1)

    @pytest.mark.parametrize(
        "change, cause",
        [
            ("locked_by = 'another'", StopCause.LEASE_LOST),
            ("attempts = attempts + 1", StopCause.LEASE_LOST),
            ("state = 'pending', locked_by = NULL, locked_until = NULL", StopCause.LEASE_LOST),
            ("state = 'done', locked_by = NULL, locked_until = NULL", StopCause.LEASE_LOST),
            ("state = 'canceled'", StopCause.CANCELED),
            ("state = 'canceled', locked_by = NULL, locked_until = NULL", StopCause.CANCELED),
        ],
    )
    def test_a_lost_job_is_told_of(self, holding: Holding, change: str, cause: StopCause) -> None:
        """The handler of a job that is somebody else's, or canceled, is told so; the others are renewed (T2, T5)."""
        lost, kept = holding.claims(2)
        holding.db.execute(f"UPDATE job SET {change} WHERE id = :id", id=sql_id(holding.db, lost))
        before = holding.db.row(lost.id)
        holding.heartbeat.turn()
        assert (lost.cause, bool(lost.should_stop), kept.cause) == (cause, True, None)
        assert holding.db.row(lost.id) == before
        assert holding.seconds_left(kept) > 20

    def test_a_deleted_job_is_told_of(self, holding: Holding) -> None:
        """The handler of a job whose row is gone is told that its lease is lost (T2)."""
        [lost] = holding.claims(1)
        holding.db.execute("DELETE FROM job")
        holding.heartbeat.turn()
        assert lost.cause is StopCause.LEASE_LOST

    def test_a_lapsed_lease_that_nobody_took_is_renewed(self, holding: Holding) -> None:
        """A lease that ran out and was not reaped is still the holder's (I12)."""
        [late] = holding.claims(1)
        holding.db.shift_clock(timedelta(minutes=5))
        holding.heartbeat.turn()
        assert late.cause is None
        assert holding.seconds_left(late) > 20

    def test_a_decided_claim_is_renewed_and_told_nothing(self, holding: Holding) -> None:
        """Until its outcome is written a job is kept; its handler, which has ended, hears nothing (T4)."""
        kept, lost = holding.claims(2)
        for claim in (kept, lost):
            claim._close()
        holding.db.execute("UPDATE job SET locked_by = 'another' WHERE id = :id", id=sql_id(holding.db, lost))
        holding.heartbeat.turn()
        assert (kept.cause, lost.cause) == (None, None)
        assert holding.seconds_left(kept) > 20

    def test_past_the_longest_execution_nothing_is_renewed(self, holding: Holding) -> None:
        """A claim past `max_execution_timeout` is left to run out (T1)."""
        [old] = holding.claims(1)
        old._is_renewed = False
        holding.heartbeat.turn()
        assert (old.cause, holding.seconds_left(old) < 2) == (None, True)

    def test_settled_between_look_and_beat(self, holding: Holding) -> None:
        """A job that was settled while the beat was under way is not a lost one."""
        [done] = holding.claims(1)
        done._close()
        with holding.db.engine.begin() as connection:
            holding.store.settle(connection, "w", [Outcome(done.id, 1, State.DONE)])
        holding.heartbeat.turn()
        assert done.cause is None

    def test_nothing_held_asks_nothing(self, db: Database) -> None:
        """A worker that holds nothing sends nothing."""
        holding = Holding(db)
        holding.heartbeat.turn()
        assert holding.reserved._connection is None

    def test_a_locked_row_is_not_lost(self, pg: Database) -> None:
        """A row that somebody has locked is skipped: nobody is told, and the rest does not wait (T4)."""
        holding = Holding(pg)
        locked, free = holding.claims(2)
        ends = locked._lease_ends
        with pg.engine.begin() as holder:
            holder.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": locked.id})
            before = time.monotonic()
            holding.heartbeat.turn()
            assert time.monotonic() - before < 5
        assert (locked.cause, locked._lease_ends, free.cause) == (None, ends, None)
        assert holding.seconds_left(free) > 20
        holding.reserved.close()


def sql_id(db: Database, claim: Any) -> object:
    return claim.id.hex if db.name == "sqlite" else claim.id


class TestInAWorker:
    def test_a_handler_may_outlast_its_lease(self, db: Database) -> None:
        """Ten handlers that outlast their leases are each run once, though another worker is idle (T4, I2)."""
        runs: list[int] = []
        lock = threading.Lock()

        def handler(job: Any, claim: Any) -> None:
            with lock:
                runs.append(claim.attempt)
            claim.should_stop.wait(3.5)

        job = job_class(handler)
        put_many(db, [job() for _ in range(10)])
        one, other = (Worker(db.engine, base_of(job), **FAST | {"workers": 10, "lease": "1500ms"}) for _ in range(2))
        heard = Heard(one.events)
        other.events.subscribe(heard)
        with one, other:
            heard.wait_for(JobDone, 10)
        assert runs == [1] * 10
        assert [(row["state"], row["attempts"]) for row in db.rows()] == [("done", 1)] * 10
        assert heard.all(JobLeaseLost) == []

    @pytest.mark.parametrize("style", ["def", "async def"])
    @pytest.mark.parametrize("how", ["canceled", "taken"])
    def test_a_handler_hears_within_a_third_of_the_lease(self, db: Database, how: str, style: str) -> None:
        """A running handler hears of a cancel in plain SQL, and of its lease being lost, by the next beat (T5, T2)."""
        told: list[tuple[StopCause | None, float]] = []
        started = threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.set()
            claim.should_stop.wait(30)
            told.append((claim.cause, time.monotonic()))

        async def async_handler(job: Any, claim: Any) -> None:
            import asyncio

            started.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                told.append((claim.cause, time.monotonic()))
                raise

        job = job_class(handler if style == "def" else async_handler)
        put(db, job())
        with working(db, base_of(job), lease="1500ms") as worker:
            heard = Heard(worker.events)
            assert started.wait(10)
            changed_at = time.monotonic()
            if how == "canceled":
                db.execute("UPDATE job SET state = 'canceled'")
            else:
                db.execute("UPDATE job SET locked_by = 'another', attempts = 2")
            [lost] = heard.wait_for(JobLeaseLost)
        [(cause, told_at)] = told
        wanted = StopCause.CANCELED if how == "canceled" else StopCause.LEASE_LOST
        assert (cause, lost.cause) == (wanted, wanted)
        assert told_at - changed_at < 1.5
        row = db.row()
        assert row["state"] == ("canceled" if how == "canceled" else "processing")
        assert row["last_error"] is None

    def test_without_the_database_the_clock_decides(self, db: Database) -> None:
        """A worker that cannot renew stops trusting its lease when its own clock says that it has run out (I13)."""
        told: list[StopCause | None] = []
        started = threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.set()
            claim.should_stop.wait(30)
            told.append(claim.cause)

        job = job_class(handler)
        put(db, job())
        options = {"lease": "1s", "reaper_period": "1h"}
        with pytest.MonkeyPatch.context() as patch, working(db, base_of(job), **options) as worker:
            heard = Heard(worker.events)
            assert started.wait(10)
            patch.setattr(JobStore, "renew", refuse)
            before = time.monotonic()
            wait_until(lambda: told, what="the handler being told")
            assert 0.3 < time.monotonic() - before < 5
            heard.wait_for(JobDone)  # nobody had taken the job: its success counts
        assert told == [StopCause.LEASE_LOST]

    def test_the_time_limits(self, db: Database) -> None:
        """A handler past a limit hears which, and past the second its lease is renewed no more (T1, T2)."""
        seen: list[tuple[StopCause | None, bool]] = []

        def handler(job: Any, claim: Any) -> None:
            claim.should_stop.wait(10)
            seen.append((claim.cause, claim._is_renewed))
            wait_until(lambda: not claim._is_renewed, what="the end of renewals")
            raise ValueError("stopped")

        job = job_class(handler, attempt_timeout="200ms", max_execution_timeout="600ms", max_attempts=1)
        put(db, job())
        with working(db, base_of(job)):
            wait_until(lambda: db.states() == ["dead"], what="the job being dead")
        assert seen == [(StopCause.ATTEMPT_TIMEOUT, True)]
        assert db.row()["last_error"].startswith("TimeoutError: attempt timed out after 200ms")

    def test_an_execution_without_end(self, db: Database) -> None:
        """A handler that ignores everything loses its lease in the end, and another worker runs its job (T1, I7)."""
        release = threading.Event()
        attempts: list[int] = []

        def handler(job: Any, claim: Any) -> None:
            attempts.append(claim.attempt)
            if claim.attempt == 1:
                release.wait(20)

        job = job_class(handler, attempt_timeout="100ms", max_execution_timeout="200ms", max_attempts=1)
        put(db, job())
        with working(db, base_of(job), lease="1s", watchdog_grace="1h") as worker:
            heard = Heard(worker.events)
            heard.wait_for(JobDone)
            release.set()
            heard.wait_for(JobLeaseLost)
        assert (attempts, db.states(), db.row()["attempts"]) == ([1, 2], ["done"], 2)


def refuse(*arguments: Any, **options: Any) -> Any:
    raise ConnectionError("out of reach")


def test_the_claim_counts_from_before_it_was_asked_for(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is trusted from when the claim was sent, not from when its answer came (I13)."""
    claim: Callable[..., Any] = JobStore.claim

    def slow(*arguments: Any, **options: Any) -> Any:
        claimed = claim(*arguments, **options)
        if claimed:
            time.sleep(0.3)  # a slow answer
        return claimed

    monkeypatch.setattr(JobStore, "claim", slow)
    seen: list[float] = []
    job = job_class(lambda job, claim: seen.append(claim._lease_ends - time.monotonic()))
    put(db, job())
    with working(db, base_of(job), lease="10s"):
        wait_until(lambda: db.states() == ["done"], what="the job being done")
    assert seen[0] < 9.75
