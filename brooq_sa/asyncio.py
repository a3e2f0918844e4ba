"""Async sessions: the same functions, run on the sync session or connection inside.

Imported only once somebody has an async session, since ``sqlalchemy.ext.asyncio`` needs greenlet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession as _AsyncSession
from sqlalchemy.ext.asyncio import async_scoped_session

from .jobs import JobBase, NewJob, RawJob
from .session import Session, enqueue, enqueue_many
from .states import Enqueued


async def run_in(target: Any, work: Callable[[Any], Any]) -> Any:
    """Run `work` on the sync session or connection of an AsyncSession, async_scoped_session or AsyncConnection."""
    session = target() if isinstance(target, async_scoped_session) else target
    return await session.run_sync(work)


class AsyncEnqueueMixin:
    """Gives an AsyncSession class the methods ``enqueue`` and ``enqueue_many``; see the functions."""

    async def enqueue(
        self,
        job: JobBase | RawJob,
        *,
        key: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
    ) -> Enqueued:
        """`brooq_sa.enqueue` into this session."""
        target = cast("_AsyncSession", self)
        return await enqueue(target, job, key=key, available_at=available_at, delay=delay, priority=priority)

    async def enqueue_many(
        self,
        jobs: Iterable[JobBase | RawJob | NewJob],
        *,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
    ) -> list[Enqueued]:
        """`brooq_sa.enqueue_many` into this session."""
        target = cast("_AsyncSession", self)
        return await enqueue_many(target, jobs, available_at=available_at, delay=delay, priority=priority)


class AsyncSession(AsyncEnqueueMixin, _AsyncSession):
    """A SQLAlchemy AsyncSession with ``enqueue``, also on the sync session inside."""

    sync_session_class = Session
