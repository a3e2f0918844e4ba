"""A handler whose own session loses the database has not failed: its attempt is given back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from apps.embedding import Heard, base_of, is_idle, job_class, put, working
from brooq_sa import CancelJob, RetryAfter, consume
from brooq_sa.events import JobFailed
from databases import Database
from waiting import wait_until

Body = Callable[[Any, Any], None]
"""What a handler does, given its claim and the sync session of it."""

MYSELF = text("SELECT pg_terminate_backend(pg_backend_pid())")


class Model(DeclarativeBase): ...


class Note(Model):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


class Runner:
    """Runs one job by a body, in one of the styles of handlers, until it has ended for good."""

    def __init__(self, db: Database, style: str) -> None:
        self.db = db
        self.style = style
        Model.metadata.create_all(db.engine)

    def __call__(self, body: Body, **options: Any) -> dict[str, Any]:
        """The job's row at the end."""
        if self.style == "consume":
            return self._consume(body, **options)
        job = job_class(self._handler(body), **options)
        job_id = put(self.db, job())
        with working(self.db, base_of(job)):
            wait_until(lambda: is_idle(self.db), what="the job having ended")
        return self.db.row(job_id)

    def _handler(self, body: Body) -> Callable[[Any, Any], Any]:
        async def in_async(job: Any, claim: Any) -> None:
            await claim.session.run_sync(lambda session: body(claim, session))

        def in_def(job: Any, claim: Any) -> None:
            body(claim, claim.session)

        return in_async if self.style == "async def" else in_def

    def _consume(self, body: Body, **options: Any) -> dict[str, Any]:
        job = job_class(lambda job, claim: None, **options)
        job_id = put(self.db, job())
        settings: dict[str, Any] = {"backoff_base": "0s", "backoff_max": "0s", "poll_interval": "20ms"}
        for claim in consume(self.db.engine, base_of(job), ["work"], stop_when_empty=True, **settings):
            with claim:
                body(claim, claim.session)
        return self.db.row(job_id)


@pytest.fixture(params=["def", "async def", "consume"])
def run(request: pytest.FixtureRequest, pg: Database) -> Runner:
    return Runner(pg, request.param)


class Once:
    """True the first time that it is asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self._lock.acquire(blocking=False)


def end(session: Session) -> None:
    """Have the server end the session's own connection, which raises."""
    session.execute(MYSELF)


def passed_on(claim: Any, session: Session) -> None:
    end(session)


def wrapped(claim: Any, session: Session) -> None:
    try:
        end(session)
    except DBAPIError as error:
        raise RuntimeError("the order was not saved") from error


def hidden(claim: Any, session: Session) -> None:
    try:
        end(session)
    except DBAPIError:
        raise RuntimeError("no cause is named") from None


def swallowed(claim: Any, session: Session) -> None:
    try:
        end(session)
    except DBAPIError:
        return


def rolled_back(claim: Any, session: Session) -> None:
    try:
        end(session)
    except DBAPIError:
        session.rollback()
        raise


def flushed(claim: Any, session: Session) -> None:
    pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    engine = create_engine(session.get_bind().engine.url)
    with engine.connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    engine.dispose()
    session.add(Note(id=7))
    session.flush()


def in_a_savepoint(claim: Any, session: Session) -> None:
    with session.begin_nested():
        end(session)


def at_the_end(claim: Any, session: Session) -> None:
    """The loss is noticed by the completion alone."""
    pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    engine = create_engine(session.get_bind().engine.url)
    with engine.connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    engine.dispose()


@pytest.mark.parametrize(
    "loss", [passed_on, wrapped, hidden, swallowed, rolled_back, flushed, in_a_savepoint, at_the_end]
)
def test_a_lost_connection_is_not_charged(run: Runner, loss: Body) -> None:
    """However a handler takes the loss of its session's connection, its attempt is given back (I6, R2)."""
    is_first = Once()

    def body(claim: Any, session: Session) -> None:
        session.add(Note(id=1))
        session.flush()
        if is_first:
            loss(claim, session)

    row = run(body, max_attempts=1)
    assert (row["state"], row["attempts"]) == ("done", 1)
    assert "the database was lost while" in row["last_error"] or "the connection was lost while" in row["last_error"]
    assert run.db.execute("SELECT id FROM note") == [{"id": 1}]


def test_no_connection_to_be_had(run: Runner) -> None:
    """A handler whose session finds the server out of reach has not failed (I6)."""
    is_first = Once()

    def body(claim: Any, session: Session) -> None:
        if is_first:
            nowhere = create_engine("postgresql+psycopg://localhost:1/x", connect_args={"host": "127.0.0.1"})
            session.bind = nowhere
        session.add(Note(id=1))
        session.flush()

    row = run(body, max_attempts=1)
    assert (row["state"], row["attempts"]) == ("done", 1)


def test_an_exhausted_pool(pg: Database) -> None:
    """A handler that waits in vain for a connection of the pool has not failed (I6)."""
    engine = create_engine(pg.url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    taken = engine.connect()
    job = job_class(lambda job, claim: claim.session.execute(text("SELECT 1")), max_attempts=1)
    db = Database(pg.url)
    db.engine = engine
    job_id = put(pg, job())
    with working(db, base_of(job)) as worker:
        heard = Heard(worker.events)
        wait_until(lambda: heard.all(JobFailed), what="a handler without a connection")
        taken.close()
        wait_until(lambda: pg.row(job_id)["state"] == "done", what="the job being done")
    assert pg.row(job_id)["attempts"] == 1
    assert "QueuePool limit" in heard.all(JobFailed)[0].error
    engine.dispose()


def test_another_database_is_the_handlers_own_affair(run: Runner) -> None:
    """While its own session is whole, a handler that loses some other connection has failed like any other (R3)."""

    def body(claim: Any, session: Session) -> None:
        session.add(Note(id=claim.attempt))
        session.flush()
        engine = create_engine(session.get_bind().engine.url)
        try:
            with engine.connect() as other:
                other.execute(MYSELF)
        finally:
            engine.dispose()

    row = run(body, max_attempts=2)
    assert (row["state"], row["attempts"]) == ("dead", 2)
    assert run.db.execute("SELECT id FROM note") == []


def test_without_a_session(pg: Database) -> None:
    """A handler that never asked for its session and loses a connection of its own has failed (R3)."""

    def handler(job: Any, claim: Any) -> None:
        with pg.engine.connect() as own:
            own.execute(MYSELF)

    job = job_class(handler, max_attempts=2)
    job_id = put(pg, job())
    with working(pg, base_of(job)):
        wait_until(lambda: is_idle(pg), what="the job having ended")
    assert (pg.row(job_id)["state"], pg.row(job_id)["attempts"]) == ("dead", 2)


@pytest.mark.parametrize("signal, state", [(CancelJob("no use"), "canceled"), (RetryAfter("0s"), "dead")])
def test_a_signal_goes_first(run: Runner, signal: Exception, state: str) -> None:
    """A handler that answers the loss with a signal of its own has decided (R2)."""

    def body(claim: Any, session: Session) -> None:
        try:
            end(session)
        except DBAPIError as error:
            raise signal from error

    assert run(body, max_attempts=1)["state"] == state


def test_a_statement_that_the_server_refuses(run: Runner) -> None:
    """A SQL error that is no outage is a failed attempt, recorded on another connection; its writes are gone (R3)."""

    def body(claim: Any, session: Session) -> None:
        session.add(Note(id=claim.attempt))
        session.flush()
        session.execute(text("SELECT 1/0"))

    row = run(body, max_attempts=2)
    assert (row["state"], row["attempts"]) == ("dead", 2)
    assert "division by zero" in row["last_error"]
    assert run.db.execute("SELECT id FROM note") == []


def test_a_transaction_left_idle(run: Runner) -> None:
    """A handler that leaves its session idle for longer than the server allows has failed: it would again (R3)."""

    def body(claim: Any, session: Session) -> None:
        session.execute(text("SET idle_in_transaction_session_timeout = '50ms'"))
        claim.should_stop.wait(0.5)
        session.execute(text("SELECT 1"))

    row = run(body, max_attempts=2)
    assert (row["state"], row["attempts"]) == ("dead", 2)
    assert "idle-in-transaction timeout" in row["last_error"]
