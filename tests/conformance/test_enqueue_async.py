"""The same enqueue, awaited: AsyncSession, async_scoped_session and AsyncConnection on psycopg and aiosqlite."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import brooq_sa
from brooq_sa import (
    CancelResult,
    Enqueued,
    NewJob,
    PayloadError,
    RawJob,
    RetryResult,
    cancel,
    enqueue,
    enqueue_many,
    retry,
)
from brooq_sa.sqlite import configure
from conformance.samples import AppJob, Email
from databases import Database


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


@asynccontextmanager
async def async_engine(db: Database) -> AsyncIterator[AsyncEngine]:
    """An async engine on the same database, configured as a careful user would."""
    engine = create_async_engine(db.url.replace("sqlite://", "sqlite+aiosqlite://"), pool_pre_ping=True)
    if db.name == "sqlite":
        configure(engine)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def _scoped(engine: AsyncEngine) -> AsyncIterator[async_scoped_session[AsyncSession]]:
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    yield session
    await session.remove()


Target = Callable[[AsyncEngine], AbstractAsyncContextManager[AsyncSession]]
TARGETS: dict[str, Any] = {  # the scoped session and the connection stand in for a session
    "AsyncSession": AsyncSession,
    "brooq_sa.AsyncSession": brooq_sa.AsyncSession,
    "async_scoped_session": _scoped,
    "AsyncConnection": lambda engine: engine.connect(),
}


@pytest.fixture(params=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    """One of the async things that an enqueue takes."""
    chosen: Target = TARGETS[request.param]
    return chosen


def run(db: Database, work: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
    """The result of the coroutine function, called with an async engine on the database."""

    async def main() -> Any:
        async with async_engine(db) as engine:
            return await work(engine)

    return asyncio.run(main())


def _enqueue_in(session: Any, job: Email) -> Enqueued:
    """By the method of the sync session inside."""
    answer: Enqueued = session.enqueue(job)
    return answer


def test_a_job_exists_if_and_only_if_the_caller_commits(db: Database, target: Target) -> None:
    """Nothing is there after a rollback, and the job after a commit; the answer is awaited."""

    async def work(engine: AsyncEngine) -> Enqueued:
        async with target(engine) as session:
            await enqueue(session, Email(number=1))
            await session.rollback()
            pending = enqueue(session, Email(number=2), key="key", priority=3)
            assert inspect.isawaitable(pending)
            answer = await pending
            assert await enqueue(session, Email(number=3), key="key") == Enqueued(answer.id, False)
            await session.commit()
            return answer

    answer = run(db, work)
    row = db.row()
    assert (row["id"], row["payload"], row["priority"], answer.created) == (answer.id, {"number": 2}, 3, True)


def test_many_jobs_and_an_operators_moves(db: Database, target: Target) -> None:
    """enqueue_many, cancel and retry are awaited likewise."""

    async def work(engine: AsyncEngine) -> list[Enqueued]:
        async with target(engine) as session:
            answers = await enqueue_many(
                session, [Email(number=1), NewJob(Email(number=2), "key"), RawJob("raw", b"x")]
            )
            assert await cancel(session, AppJob, answers[0].id) == CancelResult.CANCELED
            assert await cancel(session, AppJob, answers[1].id) == CancelResult.CANCELED
            assert await retry(session, AppJob, answers[1].id) == RetryResult.RETRIED
            await session.commit()
            return list(answers)

    answers = run(db, work)
    assert {row["id"]: row["state"] for row in db.rows()} == {
        answers[0].id: "canceled",
        answers[1].id: "pending",
        answers[2].id: "pending",
    }


def test_the_session_class_has_the_methods(db: Database) -> None:
    """An AsyncSession with the mixin enqueues by methods, on its sync session too, which flush first."""

    async def work(engine: AsyncEngine) -> list[Enqueued]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with brooq_sa.AsyncSession(engine) as session, session.begin():
            session.add(note := Note())
            one = await session.enqueue(Email(number=1), key="one")
            assert note.id is not None
            two = await session.enqueue_many([Email(number=2), NewJob(Email(number=3), "one")])
            three = await session.run_sync(lambda sync: _enqueue_in(sync, Email(number=4)))
            return [one, *two, three]

    one, two, again, three = run(db, work)
    assert again == Enqueued(one.id, False)
    assert [row["id"] for row in db.rows()] == [one.id, two.id, three.id]


def test_savepoints_hold(db: Database, target: Target) -> None:
    """A rolled back savepoint takes its job along, a released one commits nothing by itself."""

    async def work(engine: AsyncEngine) -> None:
        async with target(engine) as session:
            async with session.begin_nested():
                await enqueue(session, Email(number=1), key="key")
            await session.rollback()
            assert db.rows() == []
            await enqueue(session, Email(number=2))
            inner = await session.begin_nested()
            await enqueue(session, Email(number=3))
            await inner.rollback()
            await session.commit()

    run(db, work)
    assert db.row()["payload"] == {"number": 2}


def test_what_comes_back_is_plain_data(db: Database) -> None:
    """The answer can be read after commit, close and dispose, copied and pickled, with no IO, and equals the row."""

    async def work(engine: AsyncEngine) -> Enqueued:
        async with AsyncSession(engine) as session:
            answer = await enqueue(session, Email())
            await session.commit()
            repr(answer)
            assert answer.id == db.row()["id"]
            return answer

    answer = run(db, work)
    assert copy.deepcopy(answer) == pickle.loads(pickle.dumps(answer)) == answer
    assert json.dumps(answer._asdict(), default=str) == json.dumps({"id": str(db.row()["id"]), "created": True})
    assert repr(answer) == f"Enqueued(id={db.row()['id']!r}, created=True)"


def test_a_bad_payload_leaves_the_transaction_usable(db: Database) -> None:
    """A refused payload sent nothing, and the async transaction goes on."""

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(PayloadError):
                await enqueue(session, RawJob("raw", float("nan")))
            await enqueue(session, RawJob("raw", 1.5))

    run(db, work)
    assert db.row()["payload"] == 1.5


def test_a_connection_from_a_session_is_taken(db: Database) -> None:
    """The AsyncConnection under a session joins the same transaction."""

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            connection: AsyncConnection = await session.connection()
            await enqueue(connection, Email())
            await session.rollback()

    run(db, work)
    assert db.rows() == []
