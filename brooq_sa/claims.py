"""What a handler receives: its hold on one job.

A claim's session is opened when it is first asked for. What is written through it is committed in one transaction with
the job's ``done``, and only if the claim still holds the job::

    handler returns ─▶ flush ─▶ enqueue the chained jobs ─▶ settle, fenced ─┬─ 1 row ──▶ commit
                                                                            └─ 0 rows ─▶ roll back: the lease was lost
    handler raises ──▶ roll back; the failure is written on another connection
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from .engines import is_outage, is_overlong_transaction, is_read_only
from .exc import LeaseLost, PreserveAttempt, UsageError
from .failure import causes, signal_in
from .jobs import JobBase, RawJob
from .observer import Observer
from .outcomes import done
from .progress import Progress, checked, tell_of_news
from .session import NewRow, check_new, connection_for, put
from .states import StopCause
from .store import Claimed, Holding, JobStore

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: F401 - named in a string below

S = TypeVar("S")


class StopSignal:
    """Whether an attempt has been told to stop: true once it has, and can be waited for."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None  # made when somebody waits: few do, and it is costly

    def is_set(self) -> bool:
        return self._is_set

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until told to stop, `timeout` (seconds, if a number) at most; whether it was.

        A handler that would sleep waits here instead, and so hears at once.
        """
        with _making_events:
            if self._is_set:
                return True
            event = self._event = self._event or threading.Event()
        return event.wait(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)

    def _set(self) -> None:
        with _making_events:
            self._is_set = True
            event = self._event
        if event is not None:
            event.set()


_making_events = threading.Lock()


class _Claim(Generic[S]):
    """What `Claim` and `AsyncClaim` share.

    Attributes:
        id: of the job.
        topic: of the job.
        attempt: which taking of the job this is, from 1.
        max_attempts: the attempt whose failure makes the job dead.
        key: the job's idempotency key, or None.
        payload: the job's payload as JSON text.
        worker: who holds the job.
        should_stop: true once the attempt has been told to stop; can be waited for.
        cause: why it has been told to, or None.
    """

    # Most of these stay as they are for most jobs.
    cause: StopCause | None = None
    _session: S | None = None
    _is_over = False
    _interrupt: Callable[[], object] | None = None
    _observer: Observer | None = None
    # For the worker, by the monotonic clock: when the lease can no longer be trusted, and the time limits.
    _lease_ends: float
    _attempt_ends = math.inf
    _max_execution_ends = math.inf
    _is_renewed = True
    _told_at = math.inf
    _has_ended = False
    # What the handler has told of how far it is, and what of that has been written.
    _progress: Progress | None = None
    _reported: Progress | None = None
    _is_hung = False

    def __init__(
        self,
        claimed: Claimed,
        worker: str,
        max_attempts: int,
        table: Table,
        open_session: Callable[[], S],
        lease_ends: float,
    ) -> None:
        self.id, self.topic, self.payload, self.attempt, _, self._waited, self.key, _ = claimed
        self.max_attempts = max_attempts
        self.worker = worker
        self.should_stop = StopSignal()
        self._holding: Holding = (self.id, self.attempt)
        self._chained: list[NewRow] = []
        self._table = table
        self._open_session = open_session
        self._lease_ends = lease_ends

    @property
    def waited(self) -> timedelta:
        """How long the job had been ready when it was taken."""
        return timedelta(seconds=max(self._waited, 0.0))

    @property
    def session(self) -> S:
        """A session whose writes are committed with the job's outcome, or not at all; opened at first use.

        Raises:
            UsageError: the claim is over.
        """
        if self._session is None:
            self._refuse_if_over()
            self._session = self._open_session()
        return self._session

    def chain(
        self,
        job: JobBase | RawJob,
        *,
        key: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
    ) -> None:
        """Enqueue a job in the transaction that marks this one as done, and only then.

        Takes the options of `brooq_sa.enqueue`, and raises what it raises about them. A RawJob without a base goes to
        the table that this claim's job is in.
        """
        self._refuse_if_over()
        self._chained.append(check_new(job, key, available_at, delay, priority, self._table))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Tell how far the attempt has come, for people: `show`, `top`, `enqueue --wait` and the metrics have it.

        It costs next to nothing, so a loop may call it each time around. The worker writes the last word of all its
        attempts at most once a second.

        Args:
            done: how much is done, in whatever unit.
            total: how much there is; None if that is not known.
            note: what it is at, in up to 200 characters.

        Raises:
            OptionError: a number that is none, or not from 0 to 1e15; or a note that is no text.
        """
        told, self._progress = self._progress, checked(done, total, note)
        if told is self._reported:  # or who writes it knows already that there is something new
            tell_of_news(self.worker)

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise UsageError(f"The claim on job {self.id} is over: its outcome has been decided.")

    @property
    def _has_transaction(self) -> bool:
        """Whether success is to be written in the claim's own transaction, and not in the worker's next batch."""
        return self._session is not None or bool(self._chained)

    @property
    def _is_lost(self) -> bool:
        """Whether nothing may be written for this claim any more."""
        return self._is_hung or (self.cause is not None and self.cause in (StopCause.LEASE_LOST, StopCause.CANCELED))

    def _stop(self, cause: StopCause) -> None:
        """Tell the attempt to stop. The first cause stands, but that the lease is lost outweighs any other.

        Once its outcome has been decided there is nothing left to stop: the fence judges what is written then.
        """
        if self._is_over:
            return
        if self.cause is None or cause in (StopCause.LEASE_LOST, StopCause.CANCELED):
            self.cause = cause
        self._told_at = min(self._told_at, time.monotonic())
        self.should_stop._set()
        if (interrupt := self._interrupt) is not None:
            interrupt()

    def _interrupted_by(self, interrupt: Callable[[], object]) -> None:
        """Call `interrupt` when the attempt is told to stop; at once, if it has been."""
        self._interrupt = interrupt
        if self.should_stop:
            interrupt()

    def _judge(self, error: BaseException) -> BaseException:
        """What the attempt failed of: the error, or a PreserveAttempt where the database failed, and not the job.

        That is so if the claim's session has lost its connection, could get none, or may not write because the server
        lets nobody write. Nothing was committed then; or nobody knows whether it was, and if it was, the fence refuses
        this outcome.
        """
        if self._session is None or signal_in(error) is not None or not self._is_cut_off(list(causes(error))):
            return error
        judged = PreserveAttempt(
            "the connection was lost while the outcome was being committed"
            if self._is_over
            else "the database was lost while the handler ran"
        )
        judged.__cause__ = error
        return judged

    def _is_cut_off(self, errors: list[BaseException]) -> bool:
        if any(is_overlong_transaction(error) for error in errors):
            return False  # the handler's doing, which would be the same the next time
        connections = self._connections
        if any(connection.invalidated for connection in connections):
            return True
        # As long as it has its connection, what was out of reach is some other database.
        return any(is_read_only(error) or (is_outage(error) and not connections) for error in errors)

    @property
    def _connections(self) -> list[Connection]:
        """Those that the claim's session holds in its transaction."""
        return [] if self._session is None else _connections_of(self._session)

    def _begin_again(self) -> None:
        """Forget what the handler has done, so that it can be run once more; its session is to be closed."""
        self._chained.clear()
        self._is_over = False

    def _settle_in(self, session: Session) -> None:
        """Write the job's success into the session's transaction, with all that goes with it.

        Raises:
            LeaseLost: the claim does not hold the job any more.
        """
        _refuse_autocommit(connection_for(session, self._table))
        session.flush()
        for row in self._chained:
            put(connection_for(session, row.table), row)
        # Last, so that the row is locked for as short a time as can be.
        connection = connection_for(session, self._table)
        if self._is_lost or not JobStore(self._table).settle(connection, self.worker, [done(self._holding)]):
            raise LeaseLost(f"Job {self.id} is no longer held by attempt {self.attempt} of {self.worker}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, id={self.id}, attempt={self.attempt})"


def _refuse_autocommit(connection: Connection) -> None:
    driver_connection = connection.connection.driver_connection
    if getattr(driver_connection, "autocommit", None) is True:
        raise UsageError(
            "The engine of claim.session commits each statement by itself (AUTOCOMMIT), so what a handler writes would"
            " not be committed together with its job. Give the session an engine at another isolation level."
        )


class Claim(_Claim[Session]):
    """A handler's hold on its job, for ``def`` handlers and `consume`."""

    def _complete(self) -> bool:
        """Commit the session's work and the job's success together; False if there is no session to commit.

        Raises:
            LeaseLost: the claim does not hold the job any more. Nothing was written.
        """
        if not self._has_transaction:
            return False
        session = self.session
        self._is_over = True
        self._settle_in(session)
        session.commit()
        return True

    def _close(self) -> None:
        """End the claim: what its session has not committed is rolled back."""
        self._is_over = True
        self._close_session()

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class AsyncClaim(_Claim["AsyncSession"]):
    """A handler's hold on its job, for ``async def`` handlers; its session is an AsyncSession."""

    async def _complete(self) -> bool:
        """As `Claim._complete`."""
        if not self._has_transaction:
            return False
        session = self.session
        self._is_over = True
        await session.run_sync(self._settle_in)
        await session.commit()
        return True

    async def _close(self) -> None:
        self._is_over = True
        await self._close_session()

    async def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _connections_of(session: object) -> list[Connection]:
    """Those that a session, sync or async, holds in its transaction."""
    sync_session = getattr(session, "sync_session", session)
    transaction = sync_session.get_transaction() if isinstance(sync_session, Session) else None
    if transaction is None:
        return []
    if hasattr(transaction, "connections"):  # from SQLAlchemy 2.1.7 on
        return list(transaction.connections)
    return [entry[0] for entry in transaction._connections.values()]
