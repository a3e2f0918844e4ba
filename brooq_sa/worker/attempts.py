"""Running one attempt: decode, handle, complete; and whatever goes wrong becomes its outcome."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.exc import DBAPIError

from ..backoff import backoff
from ..claims import AsyncClaim, Claim
from ..durations import format_duration
from ..exc import LeaseLost, UsageError
from ..failure import causes, signal_in
from ..kinds import Kind, Policy
from ..log import ABOUT, bind, get_logger
from ..outcomes import Redact, after, done, released
from ..states import StopCause
from ..store import Outcome

CONFLICTS = ("40001", "40P01")
"""PostgreSQL's serialization_failure and deadlock_detected."""

FIRST_RERUN = timedelta(milliseconds=50)
LAST_RERUN = timedelta(seconds=2)


@dataclass(slots=True)
class Assignment:
    """A claim and how to run it.

    Attributes:
        taken_at: when it was claimed, by the monotonic clock.
        started_at: by the monotonic clock; None while it waits for its slot.
        reruns: how often the handler was run again after a conflict.
    """

    claim: Any
    kind: Kind
    policy: Policy
    taken_at: float = 0.0
    started_at: float | None = None
    reruns: int = 0

    def begin(self) -> None:
        """The slot is here: from now on the time limits count."""
        claim, policy = self.claim, self.policy
        self.started_at = now = time.monotonic()
        claim._attempt_ends = now + policy.attempt_seconds
        claim._max_execution_ends = now + policy.max_execution_seconds
        if claim._observer is not None:
            claim._observer.started(claim.topic, claim.waited.total_seconds() + now - self.taken_at)


class Finished(NamedTuple):
    """An attempt that has ended.

    Attributes:
        outcome: to be written; None if the lease was lost, and nothing may be.
        seconds: that its handler ran.
        is_written: whether the claim's own transaction has written it already.
    """

    claim: Any
    outcome: Outcome | None
    seconds: float = 0.0
    is_written: bool = False


def run(assignment: Assignment, redact: Redact | None) -> Finished:
    """Run a ``def`` handler. Returns whatever happens: nothing that a handler raises leaves its slot."""
    if assignment.claim._is_lost:
        return _never_begun(assignment)
    return copy_context().run(_run, assignment, redact)  # what a handler sets in its context ends with it


def _run(assignment: Assignment, redact: Redact | None) -> Finished:
    claim: Claim = assignment.claim
    bind(claim.id, claim.topic, claim.attempt, claim.worker)
    assignment.begin()
    while True:
        is_written = False
        try:
            job = assignment.kind.codec.decode(claim.payload)
            _refuse_unrun(_handler(assignment)(job, claim), assignment.kind)
            is_written = claim._complete()
            outcome: Outcome | None = done(claim._holding)
        except BaseException as error:  # noqa: BLE001 - SystemExit too ends an attempt, and not the worker
            if pause := _pause_after_conflict(error, assignment):
                claim._begin_again()
                _close(claim, claim._close_session)
                if not claim.should_stop.wait(pause):
                    continue
            outcome = _outcome_of(error, assignment, redact)
        _close(claim, claim._close)
        return Finished(claim, outcome, _elapsed(assignment), is_written)


async def run_async(
    assignment: Assignment, redact: Redact | None, loop: asyncio.AbstractEventLoop | None = None
) -> Finished:
    """Run an ``async def`` handler, as `run` does, in the current task, which is canceled to tell it to stop.

    Args:
        loop: the one that runs; to ask for it costs a system call.
    """
    claim: AsyncClaim = assignment.claim
    if claim._is_lost:
        return _never_begun(assignment)
    loop = loop or asyncio.get_running_loop()
    claim._interrupted_by(partial(_cancel_soon, loop, asyncio.current_task(loop), claim))
    bind(claim.id, claim.topic, claim.attempt, claim.worker)
    assignment.begin()
    while True:
        is_written = False
        try:
            job = assignment.kind.codec.decode(claim.payload)
            await _handler(assignment)(job, claim)
            is_written = await claim._complete() if claim._has_transaction else False
            outcome: Outcome | None = done(claim._holding)
        except BaseException as error:  # noqa: BLE001 - as above
            if pause := _pause_after_conflict(error, assignment):
                claim._begin_again()
                await _close_async(claim, claim._close_session())
                with suppress(asyncio.CancelledError):  # told to stop
                    await asyncio.sleep(pause)
                if not claim.should_stop:
                    continue
            outcome = _outcome_of(error, assignment, redact)
        if claim._session is None:
            claim._is_over = True
        else:
            await _close_async(claim, claim._close())
        claim._interrupt = None  # which knows the claim: left there, each job would be one for the garbage collector
        return Finished(claim, outcome, _elapsed(assignment), is_written)


def _cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None, claim: AsyncClaim) -> None:
    loop.call_soon_threadsafe(_cancel, task, claim)


def _cancel(task: asyncio.Task[Any] | None, claim: AsyncClaim) -> None:
    # Looked at on the loop's own thread: a commit that has begun must not be canceled.
    if task is not None and not claim._is_over:
        task.cancel()


def _never_begun(assignment: Assignment) -> Finished:
    """The end of an attempt whose job was canceled, or its lease lost, while it waited for its slot."""
    assignment.claim._is_over = True
    return Finished(assignment.claim, None)


def _pause_after_conflict(error: BaseException, assignment: Assignment) -> float | None:
    """Seconds until the handler is run again, if its session lost out to another transaction; None if it is not to be.

    Nothing of it was committed, and the same work will most likely succeed: PostgreSQL's manual (section 13.5) has
    applications prepared for that. It is no failure of the job, so the attempt goes on.
    """
    claim = assignment.claim
    if (
        claim._session is None
        or claim.should_stop
        or assignment.reruns >= assignment.policy.conflict_reruns
        or not is_conflict(error)
    ):
        return None
    assignment.reruns += 1
    get_logger().info("handler_rerun", **about(claim))
    return backoff(assignment.reruns, FIRST_RERUN, LAST_RERUN).total_seconds()


def is_conflict(error: BaseException) -> bool:
    """Whether the error, or its cause, says that one transaction had to give way to another."""
    for cause in causes(error):
        if isinstance(cause, DBAPIError):
            state = getattr(cause.orig, "sqlstate", getattr(cause.orig, "pgcode", None))
            return state in CONFLICTS or getattr(cause.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")
    return False


def _handler(assignment: Assignment) -> Callable[[Any, Any], Any]:
    handler = assignment.kind.handler
    if handler is None:
        raise UsageError(f"Topic {assignment.kind.topic!r} has no handler.")
    return handler


def _refuse_unrun(result: object, kind: Kind) -> None:
    """Refuse what a call of a function that has not run yet gives; taken for a success, it would lose the job."""
    if inspect.iscoroutine(result):
        result.close()  # or Python warns that nobody awaited it
    if inspect.isawaitable(result):
        problem = (
            "is no 'async def' and returned an awaitable, so nothing has run. Make it 'async def', or let it await"
        )
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        problem = "has a 'yield' in it, which made it a generator, so nothing has run. Take the 'yield' out"
    else:
        return
    raise UsageError(f"The handler of topic {kind.topic!r} {problem}.")


def _outcome_of(error: BaseException, assignment: Assignment, redact: Redact | None) -> Outcome | None:
    claim = assignment.claim
    try:
        return _judged(error, assignment, redact)
    except BaseException as trouble:  # noqa: BLE001 - an exception's attributes and the redact hook are the user's
        get_logger().error("failure_not_described", **about(claim), exc_info=trouble)
        return after(RuntimeError("the failure could not be described"), claim._holding, assignment.policy)


def _judged(error: BaseException, assignment: Assignment, redact: Redact | None) -> Outcome | None:
    claim, policy = assignment.claim, assignment.policy
    if claim._is_lost or (isinstance(error, LeaseLost) and claim._is_over):
        return None
    if claim.cause is StopCause.SHUTDOWN and signal_in(error) is None:
        return released(claim._holding)
    return after(_explained(error, assignment), claim._holding, policy, redact)


def _explained(error: BaseException, assignment: Assignment) -> BaseException:
    """The error, with what the attempt was told when it was told to stop."""
    claim, policy = assignment.claim, assignment.policy
    limits = {StopCause.ATTEMPT_TIMEOUT: policy.attempt_timeout, StopCause.MAX_EXECUTION: policy.max_execution_timeout}
    if limit := limits.get(claim.cause):
        return _caused(TimeoutError(f"{claim.cause} after {format_duration(limit)}"), error)
    judged: BaseException = claim._judge(error)
    return judged


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def _close(claim: Claim, close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:  # noqa: BLE001 - a session of the user's may raise anything
        get_logger().warning("session_not_closed", **about(claim), exc_info=True)


async def _close_async(claim: AsyncClaim, close: Coroutine[Any, Any, None]) -> None:
    # Shielded: a second cancellation must not leave a connection checked out.
    try:
        await asyncio.shield(close)
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - as above
        get_logger().warning("session_not_closed", **about(claim), exc_info=True)


def _elapsed(assignment: Assignment) -> float:
    return 0.0 if assignment.started_at is None else time.monotonic() - assignment.started_at


def about(claim: Any) -> dict[str, Any]:
    """What a line about the attempt says; said again here, for whose configuration does not merge context variables."""
    return dict(zip(ABOUT, (str(claim.id), claim.topic, claim.attempt, claim.worker), strict=True))
