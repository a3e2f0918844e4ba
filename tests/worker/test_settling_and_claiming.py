"""Settling and claiming, on both databases, and what happens when the database does not take an outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

import apps.contexts
from apps.embedding import FAST, Heard, bare_claim, base_of, is_idle, job_class, put, put_many, work_off, working
from brooq_sa import CancelJob, JobBase, PreserveAttempt, RawJob, RetryAfter, Worker
from brooq_sa.events import JobClaimed, JobDead, JobDone, JobFailed, JobLeaseLost, JobRequeued
from brooq_sa.schema import ATTEMPTS_CEILING
from brooq_sa.store import Holding, JobStore, Outcome
from brooq_sa.worker.attempts import Finished
from databases import Database
from waiting import wait_until


def nothing(job: Any, claim: Any) -> None:
    """A handler with nothing to do."""


class TestSettling:
    def test_every_outcome_in_one_batch(self, db: Database) -> None:
        """Outcomes of every kind, settled together, each reach their own row (R2, R3, I4)."""
        together = threading.Barrier(6)
        preserved: list[Any] = []

        def handler(job: Any, claim: Any) -> None:
            if not preserved:
                together.wait(10)
            match job.number:
                case 1:
                    raise ValueError("dead")
                case 2:
                    raise CancelJob("canceled")
                case 3:
                    raise RetryAfter("0s")
                case 4 if not preserved:
                    preserved.append(job)
                    raise PreserveAttempt("preserved")

        job = job_class(handler, max_attempts=1)
        with working(db, base_of(job), workers=6) as worker:
            heard = Heard(worker.events)
            ids = put_many(db, [job(number=number) for number in range(6)])
            wait_until(lambda: is_idle(db), what="every job having ended")
            assert len(heard.all(JobFailed)) == 1
        rows = [db.row(each) for each in ids]
        assert [row["state"] for row in rows] == ["done", "dead", "canceled", "dead", "done", "done"]
        assert rows[4]["last_error"].startswith("brooq_sa.exc.PreserveAttempt: preserved")

    def test_attempts_are_counted(self, db: Database) -> None:
        """Each taking is charged, and the first is number 1 (I6)."""
        seen = []

        def handler(job: Any, claim: Any) -> None:
            seen.append(claim.attempt)
            raise ValueError("no")

        job = job_class(handler, max_attempts=3)
        put(db, job())
        work_off(db, job)
        assert (seen, db.row()["attempts"], db.states()) == ([1, 2, 3], 3, ["dead"])

    def test_a_preserved_attempt_is_taken_again_and_again(self, db: Database) -> None:
        """A handler that preserves its attempt is run again past any number of attempts (R2, I7)."""
        runs = 0

        def handler(job: Any, claim: Any) -> None:
            nonlocal runs
            runs += 1
            if runs < 6:
                raise PreserveAttempt

        job = job_class(handler, max_attempts=2)
        put(db, job())
        work_off(db, job)
        assert (runs, db.row()["attempts"], db.states()) == (6, 1, ["done"])

    def test_a_failed_job_waits(self, db: Database) -> None:
        """A failed job is not taken before its delay is over by the database's clock (R1, I13)."""
        runs = []

        def handler(job: Any, claim: Any) -> None:
            runs.append(claim.attempt)
            if claim.attempt == 1:
                raise ValueError("no")

        job = job_class(handler, backoff_base="1h", backoff_max="1h")
        with working(db, base_of(job)) as worker:
            heard = Heard(worker.events)
            put(db, job())
            [failed] = heard.wait_for(JobFailed)
            assert timedelta(minutes=30) <= failed.delay <= timedelta(hours=1)
            assert (runs, db.states()) == ([1], ["failed"])
            db.shift_clock(timedelta(hours=1))
            heard.wait_for(JobDone)
        assert runs == [1, 2]

    def test_batches_form_by_themselves(self, db: Database) -> None:
        """Many short jobs take far fewer transactions than there are jobs, and each is written."""
        job = job_class(nothing)
        put_many(db, [job() for _ in range(300)])
        settled: list[int] = []
        with watching(lambda outcomes: settled.append(len(outcomes))):
            work_off(db, job, workers=50)
        assert sum(settled) == 300
        assert max(settled) > 1


@contextmanager
def watching(look: Callable[[Collection[Outcome]], Any]) -> Any:
    """During the block `look` sees each batch of outcomes before it is written; what it raises fails the write."""
    settle = JobStore.settle

    def watched(self: JobStore, connection: Connection, worker: str, outcomes: Collection[Outcome]) -> set[Holding]:
        look(outcomes)
        return settle(self, connection, worker, outcomes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobStore, "settle", watched)
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked rows are not waited for long, and outcomes that were put off are tried again soon."""
    monkeypatch.setattr("brooq_sa.engines.LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr("brooq_sa.worker.settling.RETRY_LOCKED", 0.1)


@pytest.mark.usefixtures("impatient")
class TestOutcomesThatCannotBeWritten:
    def test_a_locked_row_holds_nobody_up(self, pg: Database) -> None:
        """While somebody keeps a row locked the other jobs go on, and the locked one is settled after (I11)."""
        started, go_on = threading.Event(), threading.Event()

        def handler(job: Any, claim: Any) -> None:
            if job.number == 0:
                started.set()
                go_on.wait(20)

        job = job_class(handler)
        with working(pg, base_of(job), workers=2, lease="60s") as worker:
            heard = Heard(worker.events)
            locked = put(pg, job(number=0))
            assert started.wait(10)
            with pg.engine.begin() as holder:
                holder.execute(text("UPDATE job SET priority = 1 WHERE id = :id"), {"id": locked})
                go_on.set()
                for number in range(1, 6):
                    put_many(pg, [job(number=number) for _ in range(20)])
                    heard.wait_for(JobDone, 20 * number)
                assert pg.row(locked)["state"] == "processing"
            heard.wait_for(JobDone, 101)
        assert (pg.row(locked)["state"], pg.row(locked)["attempts"]) == ("done", 1)
        assert heard.all(JobLeaseLost) == []

    def test_a_worker_that_is_busy_comes_back_to_it(self, db: Database) -> None:
        """An outcome that was put off is due when its time has come, though the worker never waits for work (I11)."""
        job = job_class(nothing)
        worker = Worker(db.engine, base_of(job), **FAST)
        heard = Heard(worker.events)
        worker._settling._postponed.append((time.monotonic(), Finished(bare_claim(), None)))
        worker._slots.give_up([Finished(bare_claim(), None)])
        worker._settling.turn()
        assert (worker._settling._postponed, len(heard.all(JobLeaseLost))) == ([], 2)

    def test_many_locked_rows(self, pg: Database) -> None:
        """However many rows somebody keeps locked, the others are settled meanwhile, and those in the end (I11)."""
        started, go_on = threading.Semaphore(0), threading.Event()

        def handler(job: Any, claim: Any) -> None:
            if job.number:
                started.release()
                go_on.wait(20)

        job = job_class(handler)
        worker = Worker(pg.engine, base_of(job), **FAST | {"workers": 20, "lease": "60s"})
        heard = Heard(worker.events)
        with worker:
            locked = put_many(pg, [job(number=number) for number in range(1, 16)])
            for _ in locked:
                assert started.acquire(timeout=10)
            with pg.engine.begin() as holder:
                holder.execute(text("UPDATE job SET priority = 1"))
                go_on.set()
                for turn in range(1, 4):
                    put_many(pg, [job(number=0) for _ in range(10)])
                    heard.wait_for(JobDone, 10 * turn)
            heard.wait_for(JobDone, 45)
        assert [(row["state"], row["attempts"]) for row in pg.rows()] == [("done", 1)] * 45

    def test_a_locked_row_at_a_stop(self, pg: Database) -> None:
        """A stop waits for an outcome whose row was locked, and writes it (T6)."""
        started, go_on = threading.Event(), threading.Event()

        def handler(job: Any, claim: Any) -> None:
            started.set()
            go_on.wait(20)

        job = job_class(handler)
        put(pg, job())
        worker = Worker(pg.engine, base_of(job), **FAST)
        with worker:
            assert started.wait(10)
            with pg.engine.begin() as holder:
                holder.execute(text("UPDATE job SET priority = 1"))
                go_on.set()
                stopping = threading.Thread(target=worker.stop)
                stopping.start()
                wait_until(lambda: worker._settling._postponed, what="the outcome being put off")
            stopping.join(20)
        assert pg.states() == ["done"]

    def test_a_refused_text_is_replaced(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """A text that the database refuses is replaced; the failure, and those beside it, are recorded (R3)."""
        describe = "nothing that a database refuses"

        def odd(error: BaseException, **options: Any) -> str:
            return "\0" if "refused" in str(error) else describe

        monkeypatch.setattr("brooq_sa.outcomes.describe", odd)
        if db.name == "sqlite":  # which takes a NUL: let it refuse what PostgreSQL does
            event.listen(Engine, "before_execute", refuse_nul)
        together = threading.Barrier(3)

        def handler(job: Any, claim: Any) -> None:
            together.wait(10)
            if job.number:
                raise ValueError("refused" if job.number == 1 else "fine")

        job = job_class(handler, max_attempts=1)
        try:
            with working(db, base_of(job)) as worker:
                heard = Heard(worker.events)
                ids = put_many(db, [job(number=number) for number in range(3)])
                heard.wait_for(JobDone)
                heard.wait_for(JobDead, 2)
        finally:
            if db.name == "sqlite":
                event.remove(Engine, "before_execute", refuse_nul)
        assert [db.row(each)["state"] for each in ids] == ["done", "dead", "dead"]
        assert db.row(ids[1])["last_error"].startswith("(the database refused the text of the error")
        assert db.row(ids[2])["last_error"] == describe
        assert heard.all(JobLeaseLost) == []

    def test_one_of_a_batch_is_refused(self, db: Database) -> None:
        """A trigger of the user's that refuses one outcome does not touch those settled with it (I4)."""
        refuse_outcomes_of_topic(db, "odd")
        together = threading.Barrier(4)

        class Jobs(JobBase):
            pass

        class Odd(Jobs, topic="odd"):
            def run(self, claim: Any) -> None:
                together.wait(10)

        class Even(Jobs, topic="even"):
            def run(self, claim: Any) -> None:
                together.wait(10)
                together_again.wait(10)

        together_again = threading.Barrier(3)
        with working(db, Jobs, lease="60s") as worker:
            heard = Heard(worker.events)
            [odd, *even] = put_many(db, [Odd(), Even(), Even(), Even()])
            heard.wait_for(JobDone, 3)
            assert [db.row(each)["state"] for each in even] == ["done"] * 3
            assert db.row(odd)["state"] == "processing"
            allow_outcomes(db)
            heard.wait_for(JobDone, 4)
        assert heard.all(JobLeaseLost) == []

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_an_outage_while_settling(self, db: Database, when: str) -> None:
        """Whether the connection breaks before or after the write, the outcome is written and told once (I11)."""
        breaks = [2]
        settle = JobStore.settle

        def breaking(self: JobStore, connection: Connection, worker: str, outcomes: Any) -> set[Holding]:
            written = settle(self, connection, worker, outcomes) if when == "after" else set()
            if breaks[0]:
                breaks[0] -= 1
                if when == "after":
                    connection.commit()
                raise DBAPIError("UPDATE", {}, Exception("gone"), connection_invalidated=True)
            return written if when == "after" else settle(self, connection, worker, outcomes)

        def handler(job: Any, claim: Any) -> None:
            if job.number and claim.attempt == 1:
                raise ValueError("no")

        job = job_class(handler)
        with pytest.MonkeyPatch.context() as patch, working(db, base_of(job)) as worker:
            patch.setattr(JobStore, "settle", breaking)
            heard = Heard(worker.events)
            put_many(db, [job(number=0), job(number=1)])
            heard.wait_for(JobDone, 2)
            assert worker.troubles == {}
        assert (set(db.states()), breaks) == ({"done"}, [0])
        assert (len(heard.all(JobFailed)), heard.all(JobLeaseLost)) == (1, [])

    def test_trouble_is_visible(self, db: Database) -> None:
        """While outcomes cannot be written the worker says so, and no longer once they can."""
        is_down = threading.Event()
        is_down.set()

        def look(outcomes: Collection[Outcome]) -> None:
            if is_down.is_set():
                raise DBAPIError("UPDATE", {}, Exception("server gone"), connection_invalidated=True)

        job = job_class(nothing)
        put(db, job())
        with watching(look), working(db, base_of(job)) as worker:
            wait_until(lambda: worker.troubles, what="trouble")
            assert worker.troubles == {"settling": "Exception: server gone"}
            is_down.clear()
            wait_until(lambda: db.states() == ["done"], what="the job being done")
            wait_until(lambda: not worker.troubles, what="trouble being over")


def refuse_nul(connection: Connection, clause: Any, many: Any, single: Any, options: Any) -> None:
    if isinstance(single, dict) and any(entry.get("error") == "\0" for entry in single.get("entries", {}).values()):
        raise ValueError("a NUL")


def refuse_outcomes_of_topic(db: Database, topic: str) -> None:
    """Let a trigger refuse every outcome of a topic."""
    if db.name == "sqlite":
        db.execute(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON job WHEN NEW.state = 'done' AND NEW.topic = '{topic}'"
            " BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )
        return
    db.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today'; END $$"
    )
    db.execute(
        f"CREATE TRIGGER refuse BEFORE UPDATE ON job FOR EACH ROW WHEN (NEW.state = 'done' AND NEW.topic = '{topic}')"
        " EXECUTE FUNCTION refuse()"
    )


def allow_outcomes(db: Database) -> None:
    db.execute("DROP TRIGGER refuse" + (" ON job" if db.name == "postgresql" else ""))


class TestClaiming:
    @pytest.mark.parametrize("seconds, ahead", [(0.1, 0), (0.005, 60)])
    def test_no_more_than_the_slots(self, db: Database, seconds: float, ahead: int) -> None:
        """Never more handlers run than there are slots (I2).

        Besides, jobs are leased whose outcome is on its way; and if they are short, such as wait for a slot: as many as
        three slots can end within twice `AHEAD`.
        """
        most, running, lock = 0, 0, threading.Lock()

        def handler(job: Any, claim: Any) -> None:
            nonlocal most, running
            with lock:
                running += 1
                most = max(most, running)
            claim.should_stop.wait(seconds)
            with lock:
                running -= 1

        job = job_class(handler)
        put_many(db, [job() for _ in range(40 if seconds > 0.05 else 300)])
        leased: list[int] = []
        with working(db, base_of(job), workers=3):
            while not is_idle(db):
                leased.append(len(db.rows(state="processing")))
        assert most == 3
        assert max(leased) <= 2 * 3 + ahead

    def test_in_order(self, db: Database) -> None:
        """One slot runs the jobs of a topic by priority, then ready time, then enqueuing (I10)."""
        seen: list[int] = []
        job = job_class(lambda job, claim: seen.append(job.number))
        for number, priority in enumerate([0, 0, 5, -5, 0]):
            put(db, job(number=number), priority=priority)
        work_off(db, job, workers=1)
        assert seen == [3, 0, 1, 4, 2]

    def test_many_topics_share_the_slots(self, db: Database) -> None:
        """A topic with a deep backlog does not keep others from their turn."""
        order: list[str] = []

        class Jobs(JobBase):
            pass

        def declare(topic: str) -> type[Any]:
            class Job(Jobs, topic=topic):
                def run(self, claim: Any) -> None:
                    order.append(claim.topic)

            return Job

        deep, *others = [declare(f"topic-{number}") for number in range(6)]
        put_many(db, [deep() for _ in range(60)])
        put_many(db, [each() for each in others for _ in range(5)])
        with working(db, Jobs, workers=1):
            wait_until(lambda: len(db.rows(state="done")) == 85, what="all being done")
        last_of_others = max(index for index, topic in enumerate(order) if topic != "topic-0")
        # Six topics take turns: five jobs of each of the others are done within a few rounds of six.
        assert last_of_others < 40

    @pytest.mark.parametrize("isolation", [None, "process"])
    def test_what_a_handler_sets_in_its_context_ends_with_it(self, db: Database, isolation: str | None) -> None:
        """Coroutines that follow each other in a slot, or in a child, each have a context of their own (W3)."""
        job = apps.contexts.Isolated if isolation else apps.contexts.Setting
        put_many(db, [job(number=number) for number in range(1, 6)])
        with working(db, base_of(job), workers=1):
            wait_until(lambda: is_idle(db), timeout=30, what="every job having ended")
        assert [row["last_error"] for row in db.rows()] == [None] * 5

    def test_a_flood_does_not_hide_other_topics(self, db: Database) -> None:
        """While one topic's jobs wait here by the hundred, a job of another is started soon."""

        class Jobs(JobBase):
            pass

        left = threading.Event()

        class Flood(Jobs, topic="flood"):
            def run(self, claim: Any) -> None:
                if not left.is_set():
                    time.sleep(0.0005)

        class Other(Jobs, topic="other"):
            def run(self, claim: Any) -> None:
                left.set()

        put_many(db, [Flood() for _ in range(6_000)])
        with working(db, Jobs, workers=2) as worker:
            wait_until(lambda: len(worker._held) > 50, what="jobs being taken ahead")
            put(db, Other())
            assert left.wait(10)
            assert db.execute("SELECT count(*) AS count FROM job WHERE topic = 'flood' AND state = 'pending'")[0][
                "count"
            ]

    def test_unknown_topics_are_left_alone(self, db: Database) -> None:
        """A topic that the base does not know, or that the worker was not given, is not touched (I5, I6)."""
        other = put(db, RawJob("unknown", 1))

        class Jobs(JobBase):
            pass

        class Wanted(Jobs, topic="wanted"):
            def run(self, claim: Any) -> None: ...

        class NotWanted(Jobs, topic="not-wanted"):
            def run(self, claim: Any) -> None: ...

        class NoHandler(Jobs, topic="no-handler"):
            pass

        [wanted, *left] = put_many(db, [Wanted(), NotWanted(), NoHandler()])
        before = [db.row(each) for each in [other, *left]]
        with working(db, Jobs, topics=["wanted"]):
            wait_until(lambda: db.row(wanted)["state"] == "done", what="the wanted job being done")
        assert [db.row(each) for each in [other, *left]] == before
        knowing = job_class(nothing, topic="unknown")
        with working(db, base_of(knowing)):  # and when a worker comes that knows it, it is run
            wait_until(lambda: db.row(other)["state"] != "pending", what="the job being taken")

    def test_a_claim_is_told_with_how_long_it_waited(self, db: Database) -> None:
        """`waited` is from ready to claimed, by the database's clock (I13)."""
        job = job_class(nothing)
        put(db, job())
        db.shift_clock(timedelta(hours=2))
        worker = Worker(db.engine, base_of(job), **FAST)
        heard = Heard(worker.events)
        with worker:
            [claimed] = heard.wait_for(JobClaimed)
        assert timedelta(hours=2) <= claimed.waited < timedelta(hours=2, minutes=1)

    def test_attempts_at_their_ceiling(self, db: Database) -> None:
        """A row whose attempts can be counted no further is parked as dead, and those claimed with it run (I6)."""
        job = job_class(nothing)
        [impossible, *others] = put_many(db, [job(number=number) for number in range(4)])
        db.execute(
            "UPDATE job SET attempts = :most WHERE idempotency_key IS NULL AND id = :id",
            most=ATTEMPTS_CEILING,
            id=str(impossible) if db.name == "postgresql" else impossible.hex,
        )
        work_off(db, job)
        assert db.row(impossible)["state"] == "dead"
        assert "beyond which none can be counted" in db.row(impossible)["last_error"]
        assert [db.row(each)["state"] for each in others] == ["done"] * 3

    def test_undecodable_payloads_in_a_batch(self, db: Database) -> None:
        """Payloads that cannot be read fail their own jobs with a reason; the others of the batch run at once (I5)."""
        job = job_class(nothing, max_attempts=1)
        ids = put_many(db, [job(number=number) for number in range(10)])
        bad = dict(zip(ids, ["null", "[]", '{"number": "x"}', '"text"'], strict=False))
        for each, payload in bad.items():
            db.execute(
                "UPDATE job SET payload = :payload WHERE id = :id"
                if db.name == "sqlite"
                else "UPDATE job SET payload = CAST(:payload AS jsonb) WHERE id = CAST(:id AS uuid)",
                payload=payload,
                id=each.hex,
            )
        with working(db, base_of(job), workers=10) as worker:
            heard = Heard(worker.events)
            wait_until(lambda: is_idle(db), what="every job having ended")
            assert worker.troubles == {}
        assert [db.row(each)["state"] for each in ids] == ["dead"] * 4 + ["done"] * 6
        assert all("PayloadError" in db.row(each)["last_error"] for each in bad)
        assert heard.all(JobLeaseLost) == []

    def test_a_class_that_will_not_be_made(self, db: Database) -> None:
        """A job class whose constructor raises fails that job alone, as its handler would have (R3, R4)."""

        class Jobs(JobBase):
            pass

        class Picky(Jobs, topic="picky", max_attempts=1):
            number: int

            def __post_init__(self) -> None:
                if self.number < 0:
                    raise SystemExit("not with me")

            def run(self, claim: Any) -> None: ...

        ids = put_many(db, [RawJob("picky", {"number": number}) for number in (-1, 1, 2)])
        with working(db, Jobs) as worker:
            wait_until(lambda: is_idle(db), what="every job having ended")
            assert worker.troubles == {}
        assert [db.row(each)["state"] for each in ids] == ["dead", "done", "done"]
        assert db.row(ids[0])["last_error"].startswith("SystemExit: not with me")


class TestStopping:
    def test_a_claim_under_way(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """Jobs that a claim brings after the stop was asked for go back at once, their attempts given back (T6, I6)."""
        asked, go_on = threading.Event(), threading.Event()
        claim = JobStore.claim

        def slow(self: JobStore, *arguments: Any, **options: Any) -> Sequence[Any]:
            claimed = claim(self, *arguments, **options)
            if claimed:
                asked.set()
                go_on.wait(10)
            return claimed

        monkeypatch.setattr(JobStore, "claim", slow)
        ran = []
        job = job_class(lambda job, claim: ran.append(job))
        put_many(db, [job(), job()])
        worker = Worker(db.engine, base_of(job), **FAST)
        heard = Heard(worker.events)
        worker.start()
        assert asked.wait(10)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        stopping.join(0.3)  # time enough for a stop that does not wait for the claim
        go_on.set()
        stopping.join(20)
        assert [(row["state"], row["attempts"], row["locked_by"]) for row in db.rows()] == [("pending", 0, None)] * 2
        assert (ran, len(heard.all(JobRequeued))) == ([], 2)

    def test_no_thread_for_an_attempt(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """Jobs for which the system gives no thread go back, and run once there is one (I6)."""
        refusals = [2]
        start = threading.Thread.start

        def refusing(self: threading.Thread) -> None:
            if self.name.startswith("brooq-slot") and refusals[0]:
                refusals[0] -= 1
                raise RuntimeError("can't start new thread")
            start(self)

        monkeypatch.setattr(threading.Thread, "start", refusing)
        job = job_class(nothing)
        put_many(db, [job() for _ in range(3)])
        work_off(db, job)
        assert [(row["state"], row["attempts"]) for row in db.rows()] == [("done", 1)] * 3
        assert refusals == [0]
