"""What type checkers make of enqueuing into each kind of session. Checked by mypy and pyright, never run.

A line that must be an error carries an ignore comment: checkers report one that ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

import uuid
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import sqlmodel
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import brooq_sa
from brooq_sa import (
    CancelResult,
    Enqueued,
    JobBase,
    NewJob,
    RawJob,
    RetryResult,
    cancel,
    enqueue,
    enqueue_many,
    retry,
)


class AppJob(JobBase):
    pass


class Index(AppJob, topic="index"):
    word: str


job = Index(word="a")
moment = datetime.now(UTC)
job_id = uuid.uuid4()


def into_sync_sessions(
    session: Session,
    scoped: scoped_session[Session],
    model_session: sqlmodel.Session,
    own: brooq_sa.Session,
    connection: Connection,
) -> None:
    assert_type(enqueue(session, job), Enqueued)
    assert_type(enqueue(scoped, job), Enqueued)
    assert_type(enqueue(model_session, job), Enqueued)
    assert_type(enqueue(own, job), Enqueued)
    assert_type(enqueue(connection, job), Enqueued)
    assert_type(enqueue_many(session, [job, RawJob("raw", 1), NewJob(job, key="a")]), list[Enqueued])
    assert_type(enqueue_many(scoped, (each for each in [job])), list[Enqueued])
    assert_type(own.enqueue(job, key="a", delay="5m"), Enqueued)
    assert_type(own.enqueue_many([job], priority=1), list[Enqueued])
    assert_type(cancel(session, AppJob, job_id), CancelResult)
    assert_type(retry(connection, AppJob, job_id), RetryResult)


async def into_async_sessions(
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    own: brooq_sa.AsyncSession,
    connection: AsyncConnection,
) -> None:
    assert_type(enqueue(session, job), Awaitable[Enqueued])
    assert_type(await enqueue(session, job), Enqueued)
    assert_type(await enqueue(scoped, job), Enqueued)
    assert_type(await enqueue(own, job), Enqueued)
    assert_type(await enqueue(connection, job), Enqueued)
    assert_type(await enqueue_many(session, [job]), list[Enqueued])
    assert_type(await own.enqueue(job, available_at=moment), Enqueued)
    assert_type(await own.enqueue_many([job, NewJob(job)]), list[Enqueued])
    assert_type(await cancel(session, AppJob, job_id), CancelResult)
    assert_type(await retry(connection, AppJob, job_id), RetryResult)


def options(session: Session) -> None:
    enqueue(session, job, key=None, available_at=None, delay=None, priority=None)
    enqueue(session, job, key="a", available_at=moment, priority=5)
    enqueue(session, job, delay=timedelta(seconds=5))
    enqueue(session, RawJob("raw", b"bytes", base=AppJob))


class EnqueuingSession(brooq_sa.EnqueueMixin, sqlmodel.Session):
    pass


def into_a_session_of_ones_own(session: EnqueuingSession) -> None:
    assert_type(session.enqueue(job), Enqueued)
    assert_type(enqueue(session, job), Enqueued)


def answers(answer: Enqueued) -> None:
    assert_type(answer.id, uuid.UUID)
    assert_type(answer.created, bool)
    found, created = answer
    assert_type(found, uuid.UUID)
    assert_type(created, bool)


def mistakes(session: Session, engine: Engine, async_engine: AsyncEngine) -> None:
    enqueue(engine, job)  # type: ignore[call-overload]
    enqueue(async_engine, job)  # type: ignore[call-overload]
    enqueue(session, Index)  # type: ignore[call-overload]
    enqueue(session, NewJob(job))  # type: ignore[call-overload]
    enqueue(session, job, "key")  # type: ignore[call-overload]
    enqueue(session, job, key=5)  # type: ignore[call-overload]
    enqueue(session, job, delay=5)  # type: ignore[call-overload]
    enqueue(session, job, available_at="2031-01-01")  # type: ignore[call-overload]
    enqueue(session, job, retries=5)  # type: ignore[call-overload]
    enqueue_many(session, job)  # type: ignore[call-overload]
    enqueue_many(session, ["job"])  # type: ignore[list-item]
    cancel(session, job, job_id)  # type: ignore[call-overload]
    retry(session, AppJob, 17)  # type: ignore[call-overload]
    RawJob("raw", 1, base=job)  # type: ignore[arg-type]
    NewJob("job")  # type: ignore[arg-type]


async def async_mistakes(session: AsyncSession, own: brooq_sa.AsyncSession) -> None:
    answer = enqueue(session, job)
    answer.id  # type: ignore[attr-defined]  # noqa: B018 - not awaited
    waiting: Any = own.enqueue("job")  # type: ignore[arg-type]
    await waiting
