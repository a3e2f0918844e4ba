"""The worker put together: what it takes to start, what it uses while it runs, and how it stops."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from apps.embedding import FAST, Heard, base_of, is_idle, job_class, put, put_many, work_off, working
from brooq_sa import (
    CancelJob,
    JobBase,
    PreserveAttempt,
    RetryAfter,
    SettingsError,
    StopCause,
    UsageError,
    Worker,
    WorkerSettings,
    migrations,
)
from brooq_sa.events import Event, JobClaimed, JobDone, JobLeaseLost, JobRequeued
from databases import Database
from processes import Processes
from waiting import wait_until


def nothing(job: Any, claim: Any) -> None:
    """A handler with nothing to do."""


class TestBuilding:
    def test_nothing_is_started_and_nothing_opened(self, processes: Processes) -> None:
        """Importing everything and building a worker and a consumer leaves no thread, no connection, no file (I9)."""
        child = processes.script(
            """
            import socket, sqlite3, threading, pathlib

            def refuse(*arguments, **options):
                raise AssertionError("a connection was opened")

            import brooq_sa, brooq_sa.worker, brooq_sa.consumer, brooq_sa.asyncio, brooq_sa.upkeep
            import psycopg
            from sqlalchemy import create_engine
            from sqlalchemy.ext.asyncio import create_async_engine

            sqlite3.connect = sqlite3.dbapi2.connect = psycopg.connect = psycopg.Connection.connect = refuse
            socket.socket.connect = refuse

            class Jobs(brooq_sa.JobBase):
                pass

            class Job(Jobs, topic="t"):
                def run(self, claim): ...

            for url in ("sqlite:///none.sqlite", "postgresql+psycopg://nowhere.invalid/none"):
                engine = create_engine(url)
                brooq_sa.Worker(engine, Jobs)
                brooq_sa.consume(engine, Jobs, ["t"])
                brooq_sa.Worker(create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:")), Jobs)
            assert threading.active_count() == 1, threading.enumerate()
            assert not pathlib.Path("none.sqlite").exists()
            print("clean")
            """
        )
        assert (child.wait(), child.output().strip()) == (0, "clean")

    def test_ids_are_unique(self, sqlite: Database) -> None:
        """Two workers of one name in one process have two ids, and `locked_by` shows them (I12)."""
        base = base_of(job_class(nothing))
        ids = {Worker(sqlite.engine, base, name="mill").id for _ in range(10)}
        assert len(ids) == 10
        assert all(each.startswith("mill-") for each in ids)

    def test_locked_by_is_the_id(self, db: Database) -> None:
        """Who holds a job can be read in its row (W1, I1)."""
        seen: list[Any] = []
        job = job_class(lambda job, claim: seen.append((db.row()["locked_by"], claim.worker)))
        put(db, job())
        with working(db, base_of(job), name="mill") as worker:
            wait_until(lambda: db.states() == ["done"], what="the job being done")
        assert seen == [(worker.id, worker.id)]

    def test_settings_at_fault(self, sqlite: Database) -> None:
        """All problems of the settings are told at once, before anything is started (U3)."""
        with pytest.raises(SettingsError) as caught:
            Worker(sqlite.engine, base_of(job_class(nothing)), workers=0, lease="5", nonsense=1)
        assert len(caught.value.problems) == 3

    def test_settings_and_changes(self, sqlite: Database) -> None:
        """Single settings go before the whole that was given."""
        worker = Worker(sqlite.engine, base_of(job_class(nothing)), settings=WorkerSettings(workers=7), lease="9s")
        assert (worker.settings.workers, worker.settings.lease.total_seconds()) == (7, 9)

    @pytest.mark.parametrize(
        "topics, message",
        [("work", "Give a list"), ([], "is empty"), (["other"], "'other' has no handler in base .* work")],
    )
    def test_topics_at_fault(self, sqlite: Database, topics: Any, message: str) -> None:
        """Topics that nobody here can run are refused when the worker is made."""
        with pytest.raises(UsageError, match=message):
            Worker(sqlite.engine, base_of(job_class(nothing)), topics=topics)

    def test_a_base_without_handlers(self, sqlite: Database) -> None:
        """A worker with nothing to run says what may have been forgotten."""

        class Jobs(JobBase):
            pass

        class Declared(Jobs, topic="declared"):
            pass

        with pytest.raises(UsageError, match="Import the modules"):
            Worker(sqlite.engine, Jobs)
        with pytest.raises(UsageError, match="is no base"):
            Worker(sqlite.engine, object)  # type: ignore[arg-type]

    def test_a_database_in_memory(self) -> None:
        """An in-memory database is refused, and the message says what to give (S2)."""
        with pytest.raises(UsageError, match="Give the engine a file"):
            Worker(create_engine("sqlite://"), base_of(job_class(nothing)))


class TestContainment:
    """Whatever a handler throws, its job is failed and the worker lives on."""

    ERRORS = (
        ValueError("plain"),
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        BaseExceptionGroup("group", [SystemExit(2), ValueError("inside")]),
        type("Unspeakable", (Exception,), {"__str__": lambda self: 1 / 0})(),
        RuntimeError("a\0b\ud800c" + "long" * 1_000_000),
    )

    @pytest.mark.parametrize("style", ["def", "async def"])
    def test_errors(self, db: Database, style: str) -> None:
        """Each error that can be thrown ends as the failure of its own job, with a text; others run on (R3, R4)."""

        def handler(job: Any, claim: Any) -> None:
            if job.number < len(self.ERRORS):
                raise self.ERRORS[job.number]

        async def async_handler(job: Any, claim: Any) -> None:
            handler(job, claim)

        job = job_class(handler if style == "def" else async_handler, max_attempts=1)
        ids = put_many(db, [job(number=number) for number in range(len(self.ERRORS) + 3)])
        with working(db, base_of(job)) as worker:
            wait_until(lambda: is_idle(db), what="every job having ended")
            assert worker.troubles == {}
            after = put(db, job(number=99))
            wait_until(lambda: db.row(after)["state"] == "done", what="a later job being done")
        rows = [db.row(each) for each in ids]
        assert [row["state"] for row in rows] == ["dead"] * len(self.ERRORS) + ["done"] * 3
        for row, error in zip(rows, self.ERRORS, strict=False):
            assert type(error).__name__ in row["last_error"]
            assert len(row["last_error"]) <= 8_192
            assert "\0" not in row["last_error"]

    @pytest.mark.parametrize("style", ["def", "async def"])
    @pytest.mark.parametrize("wrapped", [False, True], ids=["raised", "as a cause"])
    def test_signals(self, db: Database, style: str, wrapped: bool) -> None:
        """Signals choose the outcome in the row, raised or standing behind what was raised (R2)."""
        signals = [RetryAfter("1h"), PreserveAttempt("later"), CancelJob("no use"), RetryAfter("1s")]

        def handler(job: Any, claim: Any) -> None:
            signal = signals[job.number]
            if wrapped:
                raise ValueError("outside") from signal
            raise signal

        async def async_handler(job: Any, claim: Any) -> None:
            handler(job, claim)

        job = job_class(
            handler if style == "def" else async_handler, max_attempts=2, backoff_base="30m", backoff_max="30m"
        )
        ids = put_many(db, [job(number=number) for number in range(4)])
        db.execute("UPDATE job SET attempts = 1 WHERE id = :id", id=ids[3].hex if db.name == "sqlite" else ids[3])
        with working(db, base_of(job)):
            wait_until(
                lambda: sorted(db.states()) == ["canceled", "dead", "failed", "failed"], what="all being settled"
            )
        retry, preserve, cancel, last = (db.row(each) for each in ids)
        assert [row["attempts"] for row in (retry, preserve, cancel, last)] == [1, 0, 1, 2]
        # An hour was asked for, and half an hour is the most of the kind; the backoff is its upper half.
        for row, least, most in ((retry, 29, 30), (preserve, 14, 30)):
            minutes = (row["available_at"] - row["updated_at"]).total_seconds() / 60
            assert least <= minutes <= most + 0.1
        assert last["state"] == "dead"

    def test_backoff_grows(self, db: Database) -> None:
        """Each failure waits twice as long as the one before, never more than the longest (R1)."""

        def handler(job: Any, claim: Any) -> None:
            raise ValueError("no")

        job = job_class(handler, max_attempts=6, backoff_base="8s", backoff_max="60s")
        job_id = put(db, job())
        waits = []
        with working(db, base_of(job)):
            for attempt in range(1, 6):
                has_failed = partial(db.rows, state="failed", attempts=attempt)
                wait_until(has_failed, what="a failure")
                row = db.row(job_id)
                waits.append((row["available_at"] - row["updated_at"]).total_seconds())
                db.execute("UPDATE job SET available_at = updated_at")
        for wait, longest in zip(waits, [8, 16, 32, 60, 60], strict=True):
            assert longest / 2 - 0.1 <= wait <= longest + 0.1

    @pytest.mark.parametrize("attempts", [30, 63, 1024, 2**31 - 3])
    def test_backoff_at_huge_attempts(self, db: Database, attempts: int) -> None:
        """However often a job was taken, its failure is recorded with a finite delay (R1)."""

        def handler(job: Any, claim: Any) -> None:
            raise ValueError("no")

        job = job_class(handler, max_attempts=1_000_000, backoff_base="1s", backoff_max="60s")
        put(db, job())
        db.execute("UPDATE job SET attempts = :attempts", attempts=attempts)
        with working(db, base_of(job)):
            wait_until(lambda: db.states() != ["pending"] and db.row()["locked_by"] is None, what="the outcome")
        row = db.row()
        assert row["attempts"] == attempts + 1
        if row["state"] == "failed":
            assert 29 <= (row["available_at"] - row["updated_at"]).total_seconds() <= 61
        else:
            assert (row["state"], attempts > 1_000_000) == ("dead", True)


class TestRunning:
    def test_every_job_once(self, db: Database) -> None:
        """Two workers with several slots each share the jobs, and each job is run once (I2, I11)."""
        runs: list[int] = []
        lock = threading.Lock()

        def handler(job: Any, claim: Any) -> None:
            with lock:
                runs.append(job.number)

        job = job_class(handler)
        put_many(db, [job(number=number) for number in range(300)])
        with working(db, base_of(job), workers=8), working(db, base_of(job), workers=8):
            wait_until(lambda: is_idle(db), what="every job having ended", timeout=30)
        assert sorted(runs) == list(range(300))
        assert {(row["state"], row["attempts"]) for row in db.rows()} == {("done", 1)}

    def test_both_styles_side_by_side(self, db: Database) -> None:
        """One worker runs ``def`` and ``async def`` handlers in the same slots."""
        order: list[str] = []

        class Jobs(JobBase):
            pass

        class InThread(Jobs, topic="in-thread"):
            def run(self, claim: Any) -> None:
                order.append(threading.current_thread().name.rstrip("0123456789"))

        class OnLoop(Jobs, topic="on-loop"):
            async def run(self, claim: Any) -> None:
                order.append(threading.current_thread().name)

        put_many(db, [InThread(), OnLoop(), InThread(), OnLoop()])
        with working(db, Jobs):
            wait_until(lambda: is_idle(db), what="every job having ended")
        assert sorted(order) == ["brooq-event-loop"] * 2 + ["brooq-slot-"] * 2

    def test_connections_do_not_grow_with_slots(self, pg: Database) -> None:
        """A worker whose fifty handlers are busy has no more connections than one with none (T4)."""
        started = threading.Semaphore(0)
        go_on = threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.release()
            go_on.wait(20)

        job = job_class(handler)
        put_many(pg, [job() for _ in range(50)])
        engine = create_engine(pg.url, connect_args={"application_name": "under test"})
        ours = "FROM pg_stat_activity WHERE application_name = 'under test'"
        with Worker(engine, base_of(job), **FAST | {"workers": 50}):
            for _ in range(50):
                assert started.acquire(timeout=10)
            [row] = pg.execute(f"SELECT count(*) AS n {ours}")
            go_on.set()
            wait_until(lambda: is_idle(pg), what="every job having ended")
        assert 1 <= row["n"] <= 3
        wait_until(lambda: not pg.execute(f"SELECT 1 {ours}"), what="every connection being closed")
        engine.dispose()

    def test_handlers_that_hold_every_connection(self, pg: Database) -> None:
        """Handlers that have emptied the application's pool cost no lease: renewals have their own connection (T4)."""
        engine = create_engine(pg.url, pool_size=2, max_overflow=0, pool_timeout=20)

        def handler(job: Any, claim: Any) -> None:
            claim.session.execute(text("SELECT pg_sleep(1.5)"))

        job = job_class(handler)
        put_many(pg, [job() for _ in range(4)])
        worker = Worker(engine, base_of(job), **FAST | {"lease": "1s"})
        heard = Heard(worker.events)
        with worker:
            heard.wait_for(JobDone, 4)
        assert heard.all(JobLeaseLost) == []
        assert {(row["state"], row["attempts"]) for row in pg.rows()} == {("done", 1)}
        engine.dispose()

    def test_it_survives_the_loss_of_its_connections(self, pg: Database) -> None:
        """A worker whose connections are all ended again and again goes on by itself, and no job suffers (I11)."""
        job = job_class(lambda job, claim: claim.session.execute(text("INSERT INTO effect VALUES (1)")))
        pg.execute("CREATE TABLE effect (x int)")
        engine = create_engine(pg.url, connect_args={"application_name": "under test"})
        worker = Worker(engine, base_of(job), **FAST)
        heard = Heard(worker.events)
        with worker:
            for round_ in range(1, 4):
                put_many(pg, [job(number=number) for number in range(20)])
                heard.wait_for(JobDone, 20 * round_ - 10)
                pg.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'under test'"
                )
            # A claim whose answer was lost comes back by the reaper, a success whose connection was lost by a failure.
            wait_until(lambda: is_idle(pg), timeout=30, what="every job having ended")
        assert pg.states() == ["done"] * 60
        assert len(pg.execute("SELECT x FROM effect")) == 60
        engine.dispose()

    def test_an_engine_at_another_isolation_level(self, pg: Database) -> None:
        """Engines at REPEATABLE READ or SERIALIZABLE have workers that skip what others hold, like any other (I2)."""
        engine = create_engine(pg.url, isolation_level="SERIALIZABLE")
        job = job_class(lambda job, claim: claim.session.execute(text("SELECT 1")))
        put_many(pg, [job() for _ in range(40)])
        one, other = (Worker(engine, base_of(job), **FAST) for _ in range(2))
        with one, other:
            wait_until(lambda: is_idle(pg), what="every job having ended")
            assert (one.troubles, other.troubles) == ({}, {})
        assert {row["state"] for row in pg.rows()} == {"done"}
        engine.dispose()

    def test_an_unconfigured_sqlite_engine(self, sqlite: Database) -> None:
        """A worker sets its own connections up; the application's engine may be as it comes (S2)."""
        engine = create_engine(sqlite.url)
        job = job_class(lambda job, claim: claim.session.execute(text("SELECT 1")))
        put_many(sqlite, [job() for _ in range(20)])
        with Worker(engine, base_of(job), **FAST):
            wait_until(lambda: is_idle(sqlite), what="every job having ended")
        assert {row["state"] for row in sqlite.rows()} == {"done"}
        engine.dispose()

    def test_one_engine_for_all_sessions(self, sqlite: Database) -> None:
        """Slots that ask for their first sessions at the same moment share one engine."""
        together = threading.Barrier(8)
        engines: set[int] = set()

        def handler(job: Any, claim: Any) -> None:
            together.wait(10)
            engines.add(id(claim.session.get_bind()))

        job = job_class(handler)
        put_many(sqlite, [job() for _ in range(8)])
        work_off(sqlite, job, workers=8)
        assert len(engines) == 1

    def test_a_subscriber_changes_nothing(self, db: Database) -> None:
        """Whatever a subscriber raises, jobs end as they would have, and the others hear of it (I4)."""
        job = job_class(nothing)
        worker = Worker(db.engine, base_of(job), **FAST)

        def trouble(event: Event) -> None:
            raise SystemExit(1) if isinstance(event, JobClaimed) else ValueError("no")

        worker.events.subscribe(trouble)
        heard = Heard(worker.events)
        put_many(db, [job(), job()])
        with worker:
            heard.wait_for(JobDone, 2)
            assert worker.troubles == {}
        assert db.states() == ["done", "done"]


class TestStopping:
    @pytest.fixture(autouse=True)
    def short_notice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Handlers that were told to stop get little time."""
        monkeypatch.setattr("brooq_sa.worker.worker.NOTICE", 0.3)

    def test_a_worker_runs_once(self, sqlite: Database) -> None:
        """Starting twice is refused; stopping twice, or before the start, is nothing."""
        worker = Worker(sqlite.engine, base_of(job_class(nothing)), **FAST)
        worker.stop()
        worker.start()
        with pytest.raises(UsageError, match="Make another one"):
            worker.start()
        worker.stop()
        worker.stop()
        with pytest.raises(UsageError, match="Make another one"):
            worker.start()

    def test_waiting_for_the_end(self, sqlite: Database) -> None:
        """`wait` returns once the worker has stopped, and says whether it has."""
        with working(sqlite, base_of(job_class(nothing))) as worker:
            assert worker.wait(0.01) is False
        assert worker.wait(0.01) is True

    def test_an_idle_worker_stops_at_once(self, db: Database) -> None:
        """With nothing to do, a stop takes no time, however long the poll interval and the lease are (T6)."""
        with working(db, base_of(job_class(nothing)), poll_interval="1h", lease="1h") as worker:
            wait_until(lambda: not worker.troubles, what="the start")
            before = time.monotonic()
            worker.stop()
            assert time.monotonic() - before < 2

    def test_nothing_is_left(self, db: Database) -> None:
        """After a stop none of the worker's threads runs on (I9)."""

        async def async_nothing(job: Any, claim: Any) -> None:
            claim.session.add_all([])

        before = set(threading.enumerate())
        for handler in (nothing, async_nothing):
            job = job_class(handler)
            put(db, job())
            work_off(db, job)
        wait_until(lambda: set(threading.enumerate()) <= before, what="all threads having ended")

    def test_running_jobs_may_end_within_the_grace(self, db: Database) -> None:
        """A stop claims nothing more and waits for what runs, whose leases are renewed to the end (T6, T4)."""
        started, runs = threading.Event(), []

        def handler(job: Any, claim: Any) -> None:
            runs.append((job.number, claim.attempt))
            started.set()
            if job.number == 0:
                claim.should_stop.wait(2.0)

        job = job_class(handler)
        first = put(db, job(number=0))
        one = Worker(db.engine, base_of(job), **FAST | {"lease": "1s", "workers": 1})
        heard = Heard(one.events)
        with one:
            assert started.wait(10)
            stopping = threading.Thread(target=one.stop, kwargs={"grace": "20s"})
            stopping.start()
            wait_until(lambda: not one._slots._is_claiming, what="the stop having begun")
            second = put(db, job(number=1))
            with working(db, base_of(job), lease="1s", topics=["work"], reaper_period="50ms"):
                stopping.join(20)
                wait_until(lambda: db.row(second)["state"] == "done", what="the other job being done")
        assert sorted(runs) == [(0, 1), (1, 1)]
        assert (db.row(first)["state"], heard.all(JobLeaseLost)) == ("done", [])

    @pytest.mark.parametrize("style", ["def", "async def"])
    def test_past_the_grace_they_are_told(self, db: Database, style: str) -> None:
        """A handler that runs on is told to stop; its job goes back, its attempt given back (T6, T2)."""
        started = threading.Event()
        causes: list[StopCause | None] = []

        def handler(job: Any, claim: Any) -> None:
            started.set()
            claim.should_stop.wait(20)
            causes.append(claim.cause)
            raise ValueError("interrupted")

        async def async_handler(job: Any, claim: Any) -> None:
            started.set()
            try:
                await asyncio.sleep(20)
            finally:
                causes.append(claim.cause)

        job = job_class(handler if style == "def" else async_handler)
        put(db, job())
        with working(db, base_of(job)) as worker:
            heard = Heard(worker.events)
            assert started.wait(10)
            worker.stop(grace="0s")
        row = db.row()
        assert (row["state"], row["attempts"], row["locked_by"], row["last_error"]) == ("pending", 0, None, None)
        assert causes == [StopCause.SHUTDOWN]
        assert [each.reaped for each in heard.all(JobRequeued)] == [False]

    @pytest.mark.parametrize("style", ["def", "async def"])
    def test_a_handler_that_will_not_stop(self, db: Database, style: str) -> None:
        """A stop does not wait for ever: the job goes back, and no late outcome is written (T6, I12)."""
        started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.set()
            go_on.wait(30)
            ended.set()

        async def async_handler(job: Any, claim: Any) -> None:
            handler(job, claim)  # it blocks the event loop

        job = job_class(handler if style == "def" else async_handler)
        put(db, job())
        with working(db, base_of(job)) as worker:
            assert started.wait(10)
            before = time.monotonic()
            worker.stop(grace="0s")
            assert time.monotonic() - before < 15
        assert worker.wait(0)
        before_the_end = db.row()
        assert (before_the_end["state"], before_the_end["attempts"]) == ("pending", 0)
        go_on.set()
        assert ended.wait(10)
        assert db.row() == before_the_end

    def test_stopping_from_two_threads(self, db: Database) -> None:
        """Whoever asks for a stop gets back when it is done."""
        started, go_on = threading.Event(), threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.set()
            go_on.wait(20)

        job = job_class(handler)
        put(db, job())
        with working(db, base_of(job)) as worker:
            assert started.wait(10)
            stopping = [threading.Thread(target=worker.stop) for _ in range(2)]
            for thread in stopping:
                thread.start()
            go_on.set()
            for thread in stopping:
                thread.join(20)
            assert worker.wait(0)
        assert db.states() == ["done"]

    def test_an_error_in_the_block_stops_it_too(self, sqlite: Database, tmp_path: Path) -> None:
        """A worker used as a context manager stops whatever the block raises."""
        worker = Worker(sqlite.engine, base_of(job_class(nothing)), **FAST)

        def fail() -> None:
            with worker:
                raise RuntimeError("in the block")

        with pytest.raises(RuntimeError, match="in the block"):
            fail()
        assert worker.wait(0)


def test_a_missing_table_is_told_with_the_way_to_make_it(db: Database) -> None:
    """A worker on a database without the table says how to migrate, and works once that is done (M1)."""
    migrations.downgrade(db.engine)
    try:
        with working(db, base_of(job_class(lambda job, claim: None))) as worker:
            wait_until(lambda: "migrate" in worker.troubles.get("claiming", ""), what="the worker's saying so")
            assert "has no table 'job'" in worker.troubles["claiming"]
            migrations.upgrade(db.engine)
            wait_until(lambda: not worker.troubles, timeout=30, what="the worker's recovery")
    finally:
        migrations.upgrade(db.engine)
