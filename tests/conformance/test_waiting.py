"""Waiting for a job to end: every end, no end, and a job that is not there."""

from __future__ import annotations

import asyncio
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from brooq_sa import Fate, JobBase, JobNotFound, OptionError, SchemaError, State, UsageError, enqueue, wait_for
from brooq_sa import sqlite as sqlite_setup
from brooq_sa import waiting as module
from conformance.samples import AppJob, Email, claim_one, ended, put_one, settle
from databases import Database
from waiting import wait_until

Wait = Callable[..., Fate]


@pytest.fixture(params=["sync", "async"])
def wait(request: pytest.FixtureRequest, db: Database) -> Iterator[Wait]:
    """wait_for on an Engine, and on an AsyncEngine."""
    if request.param == "sync":
        yield lambda job_id, base=AppJob, **options: wait_for(db.engine, base, job_id, **options)
        return

    def run(job_id: Any, base: type[JobBase] = AppJob, **options: Any) -> Fate:
        async def main() -> Fate:
            engine = create_async_engine(db.url.replace("sqlite:", "sqlite+aiosqlite:"))
            if db.name == "sqlite":
                sqlite_setup.configure(engine)
            try:
                return await wait_for(engine, base, job_id, **options)
            finally:
                await engine.dispose()

        return asyncio.run(main())

    yield run


def end(db: Database, state: State, error: str | None = None) -> None:
    settle(db, job := claim_one(db), ended(job, state, error=error))


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELED])
def test_each_end_is_an_answer(db: Database, wait: Wait, state: State) -> None:
    """Done, dead and canceled are told alike, with the attempts and the error; none of them raises."""
    job_id = put_one(db)
    error = None if state is State.DONE else "ValueError: no"
    end(db, state, error)
    fate = wait(str(job_id))
    assert (fate.id, fate.state, fate.attempts, fate.error, fate.is_over) == (job_id, state, 1, error, True)


def test_it_waits_through_attempts(db: Database, wait: Wait) -> None:
    """A job that failed and will be tried again has not ended; each look is told."""
    job_id = put_one(db)
    seen: list[State] = []

    def act(fate: Fate) -> None:
        if fate.state not in seen:
            seen.append(fate.state)
            match fate.state, fate.attempts:
                case State.PENDING, 0:
                    end(db, State.FAILED, "ValueError: once")
                case State.FAILED, 1:
                    end(db, State.DONE)

    fate = wait(job_id, timeout="30s", on_look=act)
    assert (fate.state, fate.attempts) == (State.DONE, 2)
    assert seen == [State.PENDING, State.FAILED, State.DONE]


def test_not_in_time(db: Database, wait: Wait) -> None:
    """After the timeout it says in which state the job was left."""
    job_id = put_one(db)
    with pytest.raises(TimeoutError, match=f"Job {job_id} has not ended within 100ms. It was pending at the last look"):
        wait(job_id, timeout=timedelta(milliseconds=100))


def test_one_look_at_least(db: Database, wait: Wait) -> None:
    """A timeout of nothing asks once."""
    job_id = put_one(db)
    with pytest.raises(TimeoutError):
        wait(job_id, timeout="0s")
    end(db, State.DONE)
    assert wait(job_id, timeout="0s").state is State.DONE


def test_no_such_job(db: Database, wait: Wait) -> None:
    """An id that no job has is said at once; so is one whose enqueue has not been committed."""
    with pytest.raises(JobNotFound, match="has not committed, or it has been deleted") as found:
        wait(uuid.uuid4())
    assert found.value.last_state is None
    if db.name == "postgresql":
        with Session(db.engine) as session:
            job_id = enqueue(session, Email()).id
            with pytest.raises(JobNotFound):
                wait(job_id)


def test_a_job_that_is_deleted_meanwhile(db: Database, wait: Wait) -> None:
    """A job that retention or somebody deletes is not waited for for ever; where it was last seen is told."""
    job_id = put_one(db)
    with pytest.raises(JobNotFound, match="has been deleted; it was pending when") as found:
        wait(job_id, on_look=lambda _fate: db.execute("DELETE FROM job"))
    copy = pickle.loads(pickle.dumps(found.value))
    assert (copy.id, copy.last_state, str(copy)) == (job_id, "pending", str(found.value))


def test_what_cannot_be_meant_is_refused(db: Database) -> None:
    """A session would wait inside its own transaction; ids and times are checked before anything is asked."""
    with (
        Session(db.engine) as session,
        pytest.raises(UsageError, match="takes an Engine or an AsyncEngine, not Session"),
    ):
        wait_for(session, AppJob, uuid.uuid4())  # type: ignore[call-overload]
    with pytest.raises(OptionError):
        wait_for(db.engine, AppJob, "17")
    with pytest.raises(OptionError):
        wait_for(db.engine, AppJob, uuid.uuid4(), timeout="5")


def test_a_missing_table_is_named(db: Database, wait: Wait) -> None:
    """Where the table is not there, the error says how to make it."""

    class Elsewhere(JobBase):
        table_name = "elsewhere"

    with pytest.raises(SchemaError, match="no table 'elsewhere"):
        wait(uuid.uuid4(), Elsewhere)


def test_it_holds_nothing_while_it_waits(db: Database) -> None:
    """Between two looks no connection is taken from the pool, so that waiting holds back neither vacuum nor others."""
    job_id = put_one(db)
    looked = threading.Event()
    given = {"on_look": lambda _fate: looked.set()}
    thread = threading.Thread(target=wait_for, args=(db.engine, AppJob, job_id), kwargs=given)
    thread.start()
    assert looked.wait(10)
    wait_until(lambda: db.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
    end(db, State.DONE)
    thread.join(10)
    assert not thread.is_alive()


def test_a_database_that_is_lost_meanwhile(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage during the wait is waited through; one before the first answer is an error."""
    job_id = put_one(pg)
    lost = OperationalError(None, None, Exception("the server closed the connection"))
    look = module._Waiting._look
    outages = [lost, lost]

    def failing(self: Any, connection: Any) -> Any:
        if self._last is not None and outages:
            raise outages.pop()
        return look(self, connection)

    monkeypatch.setattr(module._Waiting, "_look", failing)

    def act(fate: Fate) -> None:
        if not outages and not fate.is_over:
            end(pg, State.DONE)

    fate = wait_for(pg.engine, AppJob, job_id, on_look=act)
    assert (fate.state, outages) == (State.DONE, [])
    monkeypatch.setattr(module._Waiting, "_look", lambda *_: (_ for _ in ()).throw(lost))
    with pytest.raises(OperationalError):
        wait_for(pg.engine, AppJob, job_id)


def test_looks_grow_rare(db: Database) -> None:
    """The first looks follow each other closely; after a while there is one a second."""
    waiting = module._Waiting(AppJob.__table__, uuid.uuid4(), None, None)
    assert waiting._pause() == module.SHORTEST
    waiting._begun -= 60
    assert waiting._pause() == module.LONGEST
