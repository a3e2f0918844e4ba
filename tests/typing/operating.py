"""An operator's calls as type checkers see them, sync and async alike."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import assert_type

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from brooq_sa import Fate, JobBase, Reason, State, Why, pause, resume, wait_for, why
from brooq_sa.bulk import Bulk, Move, Preview, Tally


class AppJob(JobBase): ...


def sync(session: Session, connection: Connection, job_id: uuid.UUID) -> None:
    assert_type(pause(session, AppJob, "a.b", reason="down", by="anna"), bool)
    assert_type(resume(connection, AppJob, "a.b"), bool)
    answer = why(session, AppJob, job_id)
    assert_type(answer, Why)
    assert_type(answer.reason, Reason)
    assert_type(answer.notes, tuple[str, ...])


async def asynchronous(session: AsyncSession, connection: AsyncConnection, job_id: uuid.UUID) -> None:
    assert_type(pause(session, AppJob, "a.b"), Awaitable[bool])
    assert_type(await resume(connection, AppJob, "a.b"), bool)
    assert_type(await why(session, AppJob, str(job_id)), Why)


def in_bulk(engine: Engine) -> None:
    bulk = Bulk(engine, AppJob, Move.RETRY, topics=["a.b"], states=[State.DEAD], older_than="1h")
    assert_type(bulk.preview(), Preview)
    assert_type(bulk.run(lambda tally: print(tally.moved)), Tally)


def waiting(engine: Engine, job_id: uuid.UUID) -> None:
    fate = wait_for(engine, AppJob, job_id, timeout="30s", on_look=lambda seen: print(seen.state))
    assert_type(fate, Fate)
    assert_type(fate.state, State)


async def waiting_asynchronously(engine: AsyncEngine) -> None:
    assert_type(await wait_for(engine, AppJob, "0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f"), Fate)


def mistakes(session: Session, engine: Engine) -> None:
    pause(engine, AppJob, "a.b")  # type: ignore[call-overload]
    pause(session, AppJob, "a.b", "reason")  # type: ignore[call-overload]
    resume(session, "a.b")  # type: ignore[call-overload]
    wait_for(session, AppJob, uuid.uuid4())  # type: ignore[call-overload]
    why(session, AppJob, 17)  # type: ignore[call-overload]
    Bulk(engine, AppJob, "retry")  # type: ignore[arg-type]
