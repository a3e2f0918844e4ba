"""Running one attempt: whatever happens in it becomes its outcome."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from apps.embedding import bare_claim, job_class
from brooq_sa import CancelJob, LeaseLost, PreserveAttempt, RetryAfter
from brooq_sa.claims import AsyncClaim, Claim
from brooq_sa.settings import WorkerSettings
from brooq_sa.states import State, StopCause
from brooq_sa.worker.attempts import Assignment, Finished, run, run_async

Body = Callable[[Any, Any], Any]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text to be had")


def run_def(body: Body, **options: Any) -> Finished:
    """What becomes of an attempt whose ``def`` handler is `body`."""
    return run(assigned(body, Claim, **options), None)


def run_async_def(body: Body, **options: Any) -> Finished:
    """What becomes of an attempt whose ``async def`` handler does what `body` does."""

    async def handler(job: Any, claim: Any) -> None:
        await asyncio.sleep(0)
        body(job, claim)

    return asyncio.run(_awaited(assigned(handler, AsyncClaim, **options)))


async def _awaited(assignment: Assignment) -> Finished:
    return await run_async(assignment, None)


def assigned(handler: Body, claim_class: type[Any], *, attempt: int = 1, **options: Any) -> Assignment:
    kind = job_class(handler, **options).__kind__
    return Assignment(bare_claim(claim_class, attempt=attempt), kind, kind.policy(WorkerSettings()))


def raiser(error: BaseException) -> Body:
    def body(job: Any, claim: Any) -> None:
        raise error

    return body


@pytest.fixture(params=[run_def, run_async_def], ids=["def", "async def"])
def attempt(request: pytest.FixtureRequest) -> Callable[..., Finished]:
    """Runs an attempt with a body for its handler."""
    chosen: Callable[..., Finished] = request.param
    return chosen


def test_success(attempt: Callable[..., Finished]) -> None:
    """A handler that returns is done, and has been given the job of the payload and its claim (I5, I6)."""
    seen: list[Any] = []
    finished = attempt(lambda job, claim: seen.extend([job.number, claim.attempt, claim.topic]))
    assert finished.outcome is not None
    assert (finished.outcome.state, finished.is_written, seen) == (State.DONE, False, [1, 1, "work"])


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        BaseExceptionGroup("both", [SystemExit(1), ValueError("no")]),
        ExceptionGroup("two", [ValueError("a"), TypeError("b")]),
        Unspeakable(),
        RecursionError(),
        MemoryError(),
        StopIteration(),
        LeaseLost("raised by the handler itself"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_fails_the_attempt(attempt: Callable[..., Finished], error: BaseException) -> None:
    """Nothing that a handler raises leaves its slot: each is a failed attempt with a text (R3, R4)."""
    finished = attempt(raiser(error))
    assert finished.outcome is not None
    assert (finished.outcome.state, finished.outcome.give_back) == (State.FAILED, False)
    assert type(error).__name__ in str(finished.outcome.error)


@pytest.mark.parametrize(
    "signal, state, given_back",
    [
        (RetryAfter("1s"), State.FAILED, False),
        (PreserveAttempt(), State.FAILED, True),
        (CancelJob(), State.CANCELED, False),
    ],
    ids=["retry", "preserve", "cancel"],
)
def test_signals_choose_the_outcome(
    attempt: Callable[..., Finished], signal: Exception, state: State, given_back: bool
) -> None:
    """A signal stands in what was raised or behind it (R2)."""

    def body(job: Any, claim: Any) -> None:
        raise RuntimeError("outside") from signal

    for raised in (raiser(signal), body):
        outcome = attempt(raised).outcome
        assert outcome is not None
        assert (outcome.state, outcome.give_back) == (state, given_back)


def test_the_last_attempt_kills(attempt: Callable[..., Finished]) -> None:
    """The attempt that the kind names as its last makes the job dead when it fails (I7)."""
    outcome = attempt(raiser(ValueError("no")), attempt=2, max_attempts=2).outcome
    assert outcome is not None
    assert outcome.state is State.DEAD


@pytest.mark.parametrize(
    "cause, text",
    [
        (StopCause.ATTEMPT_TIMEOUT, "TimeoutError: attempt timed out after 1m"),
        (StopCause.MAX_EXECUTION, "TimeoutError: max execution exceeded after 5m"),
    ],
)
def test_a_timeout_is_named_in_the_error(attempt: Callable[..., Finished], cause: StopCause, text: str) -> None:
    """A handler that ends by an error after being told to stop has failed of the limit (T1)."""

    def body(job: Any, claim: Any) -> None:
        claim._stop(cause)
        raise ValueError("interrupted")

    outcome = attempt(body).outcome
    assert outcome is not None
    assert outcome.state is State.FAILED
    assert str(outcome.error).startswith(text)
    assert "Caused by ValueError: interrupted" in str(outcome.error)


@pytest.mark.parametrize("cause", [StopCause.ATTEMPT_TIMEOUT, StopCause.MAX_EXECUTION, StopCause.SHUTDOWN])
def test_success_in_spite_of_a_limit(attempt: Callable[..., Finished], cause: StopCause) -> None:
    """A handler that was told to stop and succeeds all the same is done (T1, I7)."""
    outcome = attempt(lambda job, claim: claim._stop(cause)).outcome
    assert outcome is not None
    assert outcome.state is State.DONE


@pytest.mark.parametrize("cause", [StopCause.LEASE_LOST, StopCause.CANCELED])
def test_nothing_is_written_for_a_lost_job(attempt: Callable[..., Finished], cause: StopCause) -> None:
    """A failure of an attempt whose job is another's, or canceled, is written nowhere (T5, I12)."""

    def body(job: Any, claim: Any) -> None:
        claim._stop(cause)
        raise ValueError("no")

    assert attempt(body).outcome is None


def test_a_shutdown_gives_the_job_back(attempt: Callable[..., Finished]) -> None:
    """A handler that a shutdown has interrupted has not failed: its attempt is given back (T6)."""

    def body(job: Any, claim: Any) -> None:
        claim._stop(StopCause.SHUTDOWN)
        raise ValueError("interrupted")

    outcome = attempt(body).outcome
    assert outcome is not None
    assert (outcome.state, outcome.give_back, outcome.error) == (State.PENDING, True, None)


def test_a_signal_counts_during_a_shutdown_too(attempt: Callable[..., Finished]) -> None:
    """A handler that cancels its job while the worker stops has decided, and is not run again (R2, T6)."""

    def body(job: Any, claim: Any) -> None:
        claim._stop(StopCause.SHUTDOWN)
        raise CancelJob("pointless")

    outcome = attempt(body).outcome
    assert outcome is not None
    assert outcome.state is State.CANCELED


def test_the_limits_count_from_the_start(attempt: Callable[..., Finished]) -> None:
    """Before its handler runs an attempt has no end; then it has those of its kind (T1)."""
    seen: list[float] = []

    def body(job: Any, claim: Any) -> None:
        seen.append(claim._max_execution_ends - claim._attempt_ends)

    attempt(body, attempt_timeout="2s", max_execution_timeout="5s")
    assert seen == [pytest.approx(3.0)]


def test_an_undecodable_payload_fails_before_the_handler(attempt: Callable[..., Finished]) -> None:
    """A payload that does not fit fails the attempt with the field's path, and no handler sees it."""
    job = job_class(raiser(AssertionError("it ran")))
    claim = bare_claim()
    claim.payload = '{"number": "many"}'
    outcome = run(Assignment(claim, job.__kind__, job.__kind__.policy(WorkerSettings())), None).outcome
    assert outcome is not None
    assert outcome.state is State.FAILED
    assert "at `$.number`" in str(outcome.error)


@pytest.mark.parametrize("kind", ["coroutine", "future", "generator", "async generator"])
def test_a_handler_that_has_not_run_has_not_succeeded(kind: str) -> None:
    """What a call returns that only promises to run is no success: it would lose the job in silence."""

    async def coroutine(job: Any, claim: Any) -> None: ...

    def generator(job: Any, claim: Any) -> Iterator[None]:
        yield

    async def async_generator(job: Any, claim: Any) -> AsyncIterator[None]:
        yield

    class Awaitable:
        def __await__(self) -> Iterator[None]:
            yield

    handlers: dict[str, Body] = {
        "coroutine": coroutine,
        "future": lambda job, claim: Awaitable(),
        "generator": generator,
        "async generator": async_generator,
    }
    outcome = run_def(handlers[kind]).outcome
    assert outcome is not None
    assert outcome.state is State.FAILED
    assert "nothing has run" in str(outcome.error)


@pytest.mark.parametrize("trouble", [SystemExit(1), ValueError("x")], ids=["exit", "error"])
def test_a_hook_that_fails_does_not_cost_the_slot(trouble: BaseException) -> None:
    """The hook that takes secrets out may raise anything: the failure is recorded, and no secret with it (R3, R4)."""

    def redact(text: str) -> str:
        raise trouble

    assignment = assigned(raiser(ValueError("hunter2")), Claim)
    outcome = run(assignment, redact).outcome
    assert outcome is not None
    assert outcome.state is State.FAILED
    assert "hunter2" not in str(outcome.error)


def test_a_signal_out_of_shape_is_a_failure() -> None:
    """A RetryAfter whose delay somebody made into something else fails the attempt, and the slot lives on (R4)."""
    signal = RetryAfter("1s")
    signal.delay = "soon"  # type: ignore[assignment]
    outcome = run_def(raiser(signal)).outcome
    assert outcome is not None
    assert (outcome.state, outcome.error) == (State.FAILED, "RuntimeError: the failure could not be described")


def test_a_session_that_does_not_close_costs_nothing(attempt: Callable[..., Finished]) -> None:
    """The outcome stands, whatever closing the session raises."""

    class Stubborn:
        def close(self) -> None:
            raise RuntimeError("will not close")

    def body(job: Any, claim: Any) -> None:
        claim._session = Stubborn()
        raise ValueError("no")

    outcome = run_def(body).outcome
    assert outcome is not None
    assert str(outcome.error).startswith("ValueError: no")


def test_durations_are_measured(attempt: Callable[..., Finished]) -> None:
    """An attempt's duration is that of its handler, by the monotonic clock (I13)."""
    finished = attempt(lambda job, claim: claim.should_stop.wait(0.02))
    assert 0.02 <= finished.seconds < 5


def test_ids_are_those_of_the_claim(attempt: Callable[..., Finished]) -> None:
    """The outcome is about the very claim that was run (I12)."""
    finished = attempt(lambda job, claim: None, attempt=3)
    assert finished.outcome is not None
    assert isinstance(finished.outcome.id, uuid.UUID)
    assert finished.outcome.holding == finished.claim._holding == (finished.claim.id, 3)


@pytest.mark.parametrize("cause", [StopCause.CANCELED, StopCause.LEASE_LOST])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_was_lost_while_it_waited_for_its_slot(cause: StopCause, is_async: bool) -> None:
    """A handler is not begun once its job is canceled, or its lease gone; nothing is written (T5, I12)."""
    ran: list[int] = []

    async def handler(job: Any, claim: Any) -> None:
        ran.append(1)

    if is_async:
        assignment = assigned(handler, AsyncClaim)
        assignment.claim._stop(cause)
        finished = asyncio.run(_awaited(assignment))
    else:
        assignment = assigned(lambda job, claim: ran.append(1), Claim)
        assignment.claim._stop(cause)
        finished = run(assignment, None)
    assert (ran, finished.outcome, finished.is_written) == ([], None, False)
