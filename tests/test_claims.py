"""What a handler does with its claim: a session that commits with the outcome, and jobs chained to it.

Each test runs a worker, once with a ``def`` handler and once with an ``async def`` one that does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Delete, MetaData, Update, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from apps.embedding import Heard, bare_claim, base_of, job_class, put, put_many, work_off, working
from brooq_sa import JobBase, NewJob, RawJob, StopCause, UsageError, Worker, consume
from brooq_sa.events import JobClaimed, JobLeaseLost
from brooq_sa.exc import OptionError, PayloadError
from databases import Database
from waiting import wait_until

Body = Callable[[Any, Any, Any], None]
"""What a handler does: takes the job, the claim, and a sync session over the claim's."""


class Models(DeclarativeBase):
    pass


class Note(Models):
    """What handlers write; `word` is unique, so that a flush can fail."""

    __tablename__ = "note"

    id: Mapped[int] = mapped_column(primary_key=True)
    word: Mapped[str] = mapped_column(unique=True)


@pytest.fixture(autouse=True)
def notes(request: pytest.FixtureRequest) -> None:
    if "db" in request.fixturenames:
        Models.metadata.create_all(request.getfixturevalue("db").engine)


def words(db: Database) -> list[str]:
    return [row["word"] for row in db.execute("SELECT word FROM note ORDER BY word")]


@pytest.fixture(params=["def", "async def"])
def make(request: pytest.FixtureRequest) -> Callable[..., type[Any]]:
    """Makes a job class whose handler runs a body."""

    def job_of(body: Body, **options: Any) -> type[Any]:
        def handler(job: Any, claim: Any) -> None:
            body(job, claim, claim.session)

        async def async_handler(job: Any, claim: Any) -> None:
            await claim.session.run_sync(lambda session: body(job, claim, session))

        return job_class(handler if request.param == "def" else async_handler, **options)

    return job_of


Make = Callable[..., type[Any]]


class TestSession:
    def test_writes_commit_with_the_outcome(self, db: Database, make: Make) -> None:
        """What is written through the session is there once the job is done, and not a moment before (I11)."""
        written, go_on = threading.Event(), threading.Event()

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add(Note(word="hello"))
            session.flush()
            written.set()
            go_on.wait(10)

        job = make(body)
        put(db, job())
        with working(db, base_of(job)):
            assert written.wait(10)
            if db.name == "postgresql":  # on SQLite a reader would wait for the writer
                assert (db.states(), words(db)) == (["processing"], [])
            go_on.set()
            wait_until(lambda: db.states() == ["done"], what="the job being done")
        assert words(db) == ["hello"]

    def test_pending_objects_are_flushed(self, db: Database, make: Make) -> None:
        """What was added and not flushed is written too."""
        job = make(lambda job, claim, session: session.add(Note(word=str(job.number))))
        put_many(db, [job(number=number) for number in range(5)])
        work_off(db, job)
        assert (set(db.states()), words(db)) == ({"done"}, ["0", "1", "2", "3", "4"])

    def test_a_failure_rolls_back(self, db: Database, make: Make) -> None:
        """What a failed attempt wrote is gone, and its failure is recorded (R3)."""

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add(Note(word=f"attempt {claim.attempt}"))
            session.flush()
            if claim.attempt == 1:
                raise ValueError("once")

        job = make(body)
        put(db, job())
        work_off(db, job)
        row = db.row()
        assert (words(db), row["state"], row["attempts"]) == (["attempt 2"], "done", 2)
        assert row["last_error"].startswith("ValueError: once")

    def test_a_lost_lease_rolls_back(self, db: Database, make: Make) -> None:
        """If the job was taken away while the handler ran, its writes are rolled back (I12, I3)."""
        entered, go_on = threading.Event(), threading.Event()

        def body(job: Any, claim: Any, session: Any) -> None:
            entered.set()
            go_on.wait(10)
            session.add(Note(word="late"))

        job = make(body)
        put(db, job())
        # A heartbeat would tell the handler before it writes: here the commit itself is to find out.
        with working(db, base_of(job), lease="1h") as worker:
            heard = Heard(worker.events)
            assert entered.wait(10)
            db.execute("UPDATE job SET locked_by = 'another', attempts = 2")
            go_on.set()
            [lost] = heard.wait_for(JobLeaseLost)
        row = db.row()
        assert (lost.cause, words(db)) == ("lease lost", [])
        assert (row["state"], row["locked_by"], row["attempts"], row["last_error"]) == (
            "processing",
            "another",
            2,
            None,
        )

    def test_a_canceled_job_rolls_back(self, db: Database, make: Make) -> None:
        """If the job was canceled in plain SQL while the handler ran, its writes are rolled back (T5, I3)."""
        entered, go_on = threading.Event(), threading.Event()

        def body(job: Any, claim: Any, session: Any) -> None:
            entered.set()
            go_on.wait(10)
            session.add(Note(word="late"))

        job = make(body)
        put(db, job())
        with working(db, base_of(job), lease="1h") as worker:
            heard = Heard(worker.events)
            assert entered.wait(10)
            db.execute("UPDATE job SET state = 'canceled'")
            go_on.set()
            heard.wait_for(JobLeaseLost)
        assert (db.states(), words(db)) == (["canceled"], [])

    def test_a_failing_flush_fails_the_attempt(self, db: Database, make: Make) -> None:
        """A pending object that the database refuses when the handler has returned fails the attempt (R3)."""

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add_all([Note(word="same"), Note(word="same")])

        job = make(body, max_attempts=2)
        put(db, job())
        work_off(db, job)
        row = db.row()
        assert (row["state"], row["attempts"], words(db)) == ("dead", 2, [])
        assert "IntegrityError" in row["last_error"]

    def test_a_swallowed_flush_error_is_no_success(self, db: Database, make: Make) -> None:
        """A handler that catches a flush's error and returns is not done: its transaction is lost (R3)."""

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add_all([Note(word="same"), Note(word="same")])
            with pytest.raises(IntegrityError):
                session.flush()

        job = make(body, max_attempts=1)
        put(db, job())
        work_off(db, job)
        assert (db.states(), words(db)) == (["dead"], [])

    def test_an_error_in_a_savepoint_may_be_swallowed(self, db: Database, make: Make) -> None:
        """What fails inside a savepoint of the handler's own costs that savepoint alone."""

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add(Note(word="kept"))
            with pytest.raises(IntegrityError), session.begin_nested():
                session.add_all([Note(word="same"), Note(word="same")])

        job = make(body)
        put(db, job())
        work_off(db, job)
        assert (db.states(), words(db)) == (["done"], ["kept"])

    def test_a_savepoint_left_open(self, db: Database, make: Make) -> None:
        """A savepoint that the handler forgot to end is committed with the rest."""

        def body(job: Any, claim: Any, session: Session) -> None:
            session.begin_nested()
            session.add(Note(word="inside"))

        job = make(body)
        put(db, job())
        work_off(db, job)
        assert (db.states(), words(db)) == (["done"], ["inside"])

    @pytest.mark.parametrize(
        "ending, kept", [("commit", ["after", "before"]), ("rollback", ["after"]), ("close", ["after"])]
    )
    @pytest.mark.parametrize("then", ["done", "dead"])
    def test_a_handler_that_ends_the_transaction_itself(
        self, db: Database, make: Make, ending: str, kept: list[str], then: str
    ) -> None:
        """A handler's own commit, rollback or close neither finishes the job nor loses it (I4)."""
        states = []

        def body(job: Any, claim: Any, session: Session) -> None:
            session.add(Note(word="before"))
            session.flush()
            getattr(session, ending)()
            states.extend(db.states())
            session.add(Note(word="after"))
            session.flush()
            if then == "dead":
                raise ValueError("no")

        job = make(body, max_attempts=1)
        put(db, job())
        work_off(db, job)
        assert (states, db.states()) == (["processing"], [then])
        assert words(db) == (kept if then == "done" else [word for word in kept if word == "before"])

    def test_it_is_one_session(self, db: Database, make: Make) -> None:
        """Asking for the session again gives the same one."""
        same = []

        def body(job: Any, claim: Any, session: Any) -> None:
            first, second = claim.session, claim.session
            same.append(first is second)

        job = make(body)
        put(db, job())
        work_off(db, job)
        assert same == [True]

    def test_it_is_refused_once_the_claim_is_over(self, db: Database, make: Make) -> None:
        """A claim that a handler has kept opens no session any more, and chains nothing (I12)."""
        kept: list[Any] = []
        job = make(lambda job, claim, session: kept.append(claim))
        put(db, job())
        work_off(db, job)
        with pytest.raises(UsageError, match="is over"):
            _ = kept[0].session
        with pytest.raises(UsageError, match="is over"):
            kept[0].chain(job())


def test_an_aborted_transaction_is_no_success(pg: Database, make: Make) -> None:
    """A SQL error that the handler swallowed leaves its transaction aborted: the job is not done (R3)."""

    def body(job: Any, claim: Any, session: Session) -> None:
        session.execute(text("INSERT INTO note (word) VALUES ('lost')"))
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT 1/0"))

    Models.metadata.create_all(pg.engine)
    job = make(body, max_attempts=1)
    put(pg, job())
    work_off(pg, job)
    row = pg.row()
    assert (row["state"], words(pg)) == ("dead", [])
    assert "InFailedSqlTransaction" in row["last_error"]


def test_a_deferred_constraint_fails_the_attempt(pg: Database, make: Make) -> None:
    """What fails only at the commit fails the attempt, whose success was in the same transaction (R3, I11)."""
    pg.execute("CREATE TABLE pair (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    def body(job: Any, claim: Any, session: Session) -> None:
        session.execute(text("INSERT INTO pair VALUES (1), (1)"))

    job = make(body, max_attempts=1)
    put(pg, job())
    work_off(pg, job)
    row = pg.row()
    assert row["state"] == "dead"
    assert "UniqueViolation" in row["last_error"]


def test_no_connection_is_taken_without_need(db: Database) -> None:
    """A handler that does not ask for the session costs no connection of the application's pool (I9)."""
    engine = create_engine(db.url)
    job = job_class(lambda job, claim: None)
    put(db, job())
    with Worker(engine, base_of(job), poll_interval="20ms"):
        wait_until(lambda: db.states() == ["done"], what="the job being done")
    assert engine.pool.checkedin() == 0  # type: ignore[attr-defined]
    engine.dispose()


def test_a_session_factory(db: Database) -> None:
    """Sessions come from the application's own factory where it gives one, and are closed at the end."""
    closed = []

    class Own(Session):
        def close(self) -> None:
            closed.append(self)
            super().close()

    job = job_class(lambda job, claim: claim.session.add(Note(word="own")))
    put(db, job())
    work_off(db, job, session_factory=lambda: Own(db.engine))
    assert (words(db), len(closed)) == (["own"], 1)


def test_a_session_that_routes_its_writes(db: Database) -> None:
    """A claim's session that reads from one database and writes to another completes the job where it writes."""

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **others: Any) -> Any:
            assert self._flushing or isinstance(clause, Update | Delete)
            return db.engine

    def run(self: Any, claim: Any) -> None:
        claim.session.add(Note(word=str(self.number)))
        if self.number == 0:
            claim.chain(type(self)(number=1))

    job = job_class(run)
    put(db, job(number=0))
    work_off(db, job, session_factory=Routing)
    assert (db.states(), words(db)) == (["done", "done"], ["0", "1"])


def test_an_async_session_factory(db: Database) -> None:
    """So do those of async handlers."""
    engine = create_async_engine(db.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    opened = []

    def open_session() -> AsyncSession:
        opened.append(AsyncSession(engine))
        return opened[-1]

    async def handler(job: Any, claim: Any) -> None:
        await claim.session.execute(text("INSERT INTO note (word) VALUES ('own')"))

    job = job_class(handler)
    put(db, job())
    work_off(db, job, async_session_factory=open_session)
    assert (words(db), len(opened)) == (["own"], 1)


def test_a_session_factory_that_fails(db: Database, make: Make) -> None:
    """A factory that raises fails the attempt, and nothing else."""

    def refuse() -> Any:
        raise RuntimeError("no session today")

    job = make(lambda job, claim, session: None, max_attempts=1)
    put(db, job())
    work_off(db, job, session_factory=refuse, async_session_factory=refuse)
    assert db.row()["last_error"].startswith("RuntimeError: no session today")


@pytest.mark.parametrize("style", ["def", "async def"])
def test_workers_on_an_async_engine(db: Database, style: str) -> None:
    """An AsyncEngine serves handlers of both styles."""
    engine = create_async_engine(db.url.replace("sqlite:", "sqlite+aiosqlite:"))

    def handler(job: Any, claim: Any) -> None:
        claim.session.add(Note(word=style))

    async def async_handler(job: Any, claim: Any) -> None:
        claim.session.add(Note(word=style))

    job = job_class(handler if style == "def" else async_handler)
    put(db, job())
    with Worker(engine, base_of(job), poll_interval="20ms"):
        wait_until(lambda: db.states() == ["done"], what="the job being done")
    assert words(db) == [style]


class TestChain:
    """`claim.chain`: the next job is there if this one is done, and only then (S1)."""

    def test_on_success(self, db: Database, make: Make) -> None:
        """The chained job exists once the first is done, with the options it was given (S1)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            claim.chain(RawJob("next", {"from": job.number}), key="k", priority=3, delay="1h")

        job = make(body)
        put(db, job(number=4))
        with working(db, base_of(job)):
            wait_until(lambda: db.rows(state="done"), what="the job being done")
        [following] = db.rows(topic="next")
        assert (following["payload"], following["idempotency_key"]) == ({"from": 4}, "k")
        assert (following["priority"], following["state"]) == (3, "pending")
        assert following["available_at"] - datetime.now(UTC) > timedelta(minutes=50)

    def test_in_the_transaction_of_the_outcome(self, db: Database, make: Make) -> None:
        """The chained job and the outcome commit together: what keeps the one from it keeps the other (S1)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            claim.chain(RawJob("next", 1))
            session.add(Note(word="late"))

        def take_away(event: Any) -> None:
            if isinstance(event, JobClaimed):  # published before the handler is started
                db.execute("UPDATE job SET attempts = 2, locked_by = 'another'")

        job = make(body)
        with working(db, base_of(job), lease="1h") as worker:
            heard = Heard(worker.events)
            worker.events.subscribe(take_away)
            job_id = put(db, job())
            heard.wait_for(JobLeaseLost)
        assert [row["id"] for row in db.rows()] == [job_id]
        assert words(db) == []

    def test_not_on_failure(self, db: Database, make: Make) -> None:
        """An attempt that fails leaves no chained job, however often it is tried (S1)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            claim.chain(RawJob("next", 1))
            raise ValueError("no")

        job = make(body, max_attempts=3)
        put(db, job())
        work_off(db, job)
        assert [(row["topic"], row["state"]) for row in db.rows()] == [("work", "dead")]

    def test_a_key_that_exists(self, db: Database, make: Make) -> None:
        """A key that is taken adds no job, and the outcome is success all the same (S1, I8)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            claim.chain(RawJob("next", "second"), key="k")

        job = make(body)
        put(db, RawJob("next", "first"), key="k")
        put(db, job())
        with working(db, base_of(job)):
            wait_until(lambda: db.rows(state="done"), what="the job being done")
        assert [row["payload"] for row in db.rows(topic="next")] == ["first"]

    def test_several(self, db: Database, make: Make) -> None:
        """Each chained job is enqueued, in the order they were chained in (S1, I10)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            for number in range(3):
                claim.chain(RawJob("next", number))

        job = make(body)
        put(db, job())
        with working(db, base_of(job)):
            wait_until(lambda: db.rows(state="done"), what="the job being done")
        assert [row["payload"] for row in db.rows(topic="next")] == [0, 1, 2]

    def test_a_chain_runs_on(self, db: Database, make: Make) -> None:
        """A job that chains its like runs until it stops doing so (S1)."""

        def body(job: Any, claim: Any, session: Any) -> None:
            session.add(Note(word=str(job.number)))
            if job.number:
                claim.chain(type(job)(number=job.number - 1))

        job = make(body)
        put(db, job(number=5))
        with working(db, base_of(job)):
            wait_until(lambda: len(db.rows(state="done")) == 6, what="six jobs done")
        assert words(db) == ["0", "1", "2", "3", "4", "5"]


def test_chaining_alone_commits_with_the_outcome(db: Database) -> None:
    """A handler that chains, and asks for no session, still has both or none (S1)."""
    job = job_class(lambda job, claim: claim.chain(RawJob("next", 1)))
    put(db, job())
    with working(db, base_of(job)):
        wait_until(lambda: db.rows(state="done"), what="the job being done")
    assert [row["topic"] for row in db.rows(state="pending")] == ["next"]


def test_faults_of_a_chained_job_are_raised_at_once() -> None:
    """What `enqueue` would refuse is refused where the handler chains it, and nothing is chained (S1)."""
    claim = bare_claim()
    with pytest.raises(PayloadError):
        claim.chain(RawJob("next", float("nan")))
    with pytest.raises(OptionError):
        claim.chain(RawJob("next", 1), delay="5")
    with pytest.raises(OptionError):
        claim.chain(NewJob(RawJob("next", 1)))
    assert claim._has_transaction is False


def test_a_chained_job_of_another_table(db: Database) -> None:
    """A job of another base goes to that base's table, in the same transaction (S1, M3)."""

    class Others(JobBase, metadata=MetaData(), table_name="other_job"):
        pass

    class Other(Others, topic="other"):
        pass

    Others.metadata.create_all(db.engine)
    job = job_class(lambda job, claim: claim.chain(Other()))
    put(db, job())
    work_off(db, job)
    assert [row["topic"] for row in db.execute("SELECT topic FROM other_job")] == ["other"]


def test_a_chained_raw_job_stays_in_the_table(db: Database) -> None:
    """A RawJob goes to the table of the job that chains it, unless it has a base of its own (S1, M3)."""

    class Others(JobBase, metadata=MetaData(), table_name="other_job"):
        pass

    class Home(JobBase):
        pass

    Others.metadata.create_all(db.engine)
    put(db, RawJob("other", 0, Others))
    for claim in consume(db.engine, Others, ["other"], stop_when_empty=True):
        with claim as job:
            claim.chain(RawJob("next", 1))
            claim.chain(RawJob("home", 1, Home))
            if job.payload == 0:
                claim.chain(RawJob(job.topic, 1))
    topics = "SELECT topic FROM {} ORDER BY topic"
    assert [row["topic"] for row in db.execute(topics.format("other_job"))] == ["next", "next", "other", "other"]
    assert [row["topic"] for row in db.execute(topics.format("job"))] == ["home", "home"]


class TestStopSignal:
    def test_waiting_hears_at_once(self) -> None:
        """A handler that waits on the signal instead of sleeping hears when it is set (T2)."""
        claim = bare_claim()
        threading.Timer(0.05, lambda: claim._stop(StopCause.CANCELED)).start()
        started = time.monotonic()
        assert claim.should_stop.wait(60)
        assert time.monotonic() - started < 30
        assert (bool(claim.should_stop), claim.should_stop.is_set()) == (True, True)

    @pytest.mark.parametrize("timeout", [0.001, timedelta(milliseconds=1)])
    def test_a_wait_has_its_timeout(self, timeout: float | timedelta) -> None:
        """The timeout is in seconds or a timedelta; the answer says whether the attempt was told to stop."""
        claim = bare_claim()
        assert claim.should_stop.wait(timeout) is False
        assert (bool(claim.should_stop), claim.cause) == (False, None)


def test_a_claim_shows_what_it_holds() -> None:
    """Its representation names topic, job and attempt."""
    claim = bare_claim(attempt=2)
    assert repr(claim) == f"Claim('work', id={claim.id}, attempt=2)"
