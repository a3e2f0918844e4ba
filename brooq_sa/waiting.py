"""Waiting for a job to end, from whatever process, and whichever worker runs it.

It looks at the job's row again and again, each time in a transaction of its own, so that waiting holds nothing: no
connection, no snapshot, no lock. The first looks follow each other closely, later ones at most once a second.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Connection, Engine, Table

from . import access
from .durations import format_duration, parse_duration
from .engines import is_outage
from .exc import JobNotFound, UsageError
from .jobs import JobBase
from .progress import Progress, read
from .session import _check_id, explained
from .statements import inspect
from .states import TERMINAL, State

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

SHORTEST, LONGEST = 0.02, 1.0
"""Seconds between two looks, at first and after a while."""

SHARE = 0.1
"""Of the time that it has waited so far, how much it waits until the next look."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Where a job stands, and in the end how it ended.

    Attributes:
        attempts: how often it has been taken.
        error: of its last attempt that failed; None if none did, or if it was canceled from outside.
        due_in: seconds until it is due, negative ones once it is.
        progress: how far its last attempt has come, if that has told.
    """

    id: uuid.UUID
    topic: str
    state: State
    attempts: int
    error: str | None
    due_in: float
    progress: Progress | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended: done, dead or canceled."""
        return self.state in TERMINAL


Watch = Callable[[Fate], object]


@overload
def wait_for(
    engine: Engine,
    base: type[JobBase] | Table,
    job_id: uuid.UUID | str,
    *,
    timeout: timedelta | str | None = None,
    on_look: Watch | None = None,
) -> Fate: ...
@overload
def wait_for(
    engine: AsyncEngine,
    base: type[JobBase] | Table,
    job_id: uuid.UUID | str,
    *,
    timeout: timedelta | str | None = None,
    on_look: Watch | None = None,
) -> Awaitable[Fate]: ...
def wait_for(
    engine: Any,
    base: type[JobBase] | Table,
    job_id: uuid.UUID | str,
    *,
    timeout: timedelta | str | None = None,
    on_look: Watch | None = None,
) -> Fate | Awaitable[Fate]:
    """Wait until a job is done, dead or canceled; how it ended.

    That it is dead is an answer, not an error. A failed job that will be tried again has not ended. Commit the
    transaction that enqueued the job before waiting for it. A database that is lost while it waits is waited for too.

    Args:
        engine: an Engine, or an AsyncEngine, and then the answer is to be awaited. No session: it looks in
            transactions of its own.
        timeout: for how long at most, a timedelta or a string with a unit; None waits for ever.
        on_look: called with what each look has found.

    Raises:
        JobNotFound: there is no such job, or none any more: retention or somebody has deleted it.
        TimeoutError: it has not ended in time. It goes on, and can be waited for again.
        SchemaError, AccessError: the table is not there, or the role may not read it.
    """
    waiting = _Waiting(base if isinstance(base, Table) else base.__table__, _check_id(job_id), timeout, on_look)
    if isinstance(engine, Engine):
        return waiting.run(engine)
    if hasattr(engine, "sync_engine"):
        return waiting.run_async(engine)
    raise UsageError(
        f"wait_for takes an Engine or an AsyncEngine, not {type(engine).__name__}: it looks again and again, in"
        " transactions of its own. Commit what enqueued the job, then give the engine."
    )


class _Waiting:
    """One wait: what is the same for sync and async."""

    def __init__(self, table: Table, job_id: uuid.UUID, timeout: timedelta | str | None, on_look: Watch | None) -> None:
        self._table = table
        self._id = job_id
        self._timeout = None if timeout is None else parse_duration(timeout)
        self._on_look = on_look
        self._begun = time.monotonic()
        self._last: Fate | None = None

    def run(self, engine: Engine) -> Fate:
        while True:
            try:
                with engine.connect().execution_options(brooq_begin="DEFERRED") as connection:
                    row = self._look(connection)
            except Exception as error:  # noqa: BLE001 - it is raised again unless the database is out of reach
                self._bear(error)
            else:
                if (fate := self._heed(row)) is not None:
                    return fate
            time.sleep(self._pause())

    async def run_async(self, engine: AsyncEngine) -> Fate:
        while True:
            try:
                async with engine.connect() as plain:
                    connection = await plain.execution_options(brooq_begin="DEFERRED")
                    row = await connection.run_sync(self._look)
            except Exception as error:  # noqa: BLE001 - it is raised again unless the database is out of reach
                self._bear(error)
            else:
                if (fate := self._heed(row)) is not None:
                    return fate
            await asyncio.sleep(self._pause())

    def _look(self, connection: Connection) -> dict[str, Any] | None:
        with explained(connection, self._table, access.LOOK):
            row = connection.execute(inspect.fate(self._table), {"job_id": self._id}).mappings().first()
        return None if row is None else dict(row)

    def _heed(self, row: dict[str, Any] | None) -> Fate | None:
        """How the job ended, if it has.

        Raises:
            JobNotFound: there is none.
        """
        if row is None:
            raise JobNotFound(self._id, None if self._last is None else self._last.state)
        state, progress = State(row["state"]), read(row["progress"], row["attempts"])
        fate = Fate(**row | {"state": state, "due_in": float(row["due_in"]), "progress": progress})
        self._last = fate
        if self._on_look is not None:
            self._on_look(fate)
        return fate if fate.is_over else None

    def _bear(self, error: Exception) -> None:
        """Go on through an outage, once there was an answer: before that, it is more likely a mistake."""
        if self._last is None or not is_outage(error):
            raise error

    def _pause(self) -> float:
        """Seconds until the next look.

        Raises:
            TimeoutError: there is no time left for one.
        """
        waited = time.monotonic() - self._begun
        pause = min(max(waited * SHARE, SHORTEST), LONGEST)
        if self._timeout is None:
            return pause
        left = self._timeout.total_seconds() - waited
        if left <= 0:
            state = "" if self._last is None else f" It was {self._last.state} at the last look, and goes on."
            raise TimeoutError(f"Job {self._id} has not ended within {format_duration(self._timeout)}.{state}")
        return min(pause, left)
