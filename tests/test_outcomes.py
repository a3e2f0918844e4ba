"""From what a handler raised to the outcome that is written."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from brooq_sa.exc import CancelJob, PreserveAttempt, RetryAfter, Signal
from brooq_sa.kinds import Policy
from brooq_sa.outcomes import ERROR_LIMIT, after, dead, done, released, without_text
from brooq_sa.states import State
from brooq_sa.store import Outcome

JOB = uuid.UUID(int=7)
FIRST, LAST = (JOB, 1), (JOB, 3)
POLICY = Policy(
    max_attempts=3,
    attempt_timeout=timedelta(seconds=1),
    max_execution_timeout=timedelta(seconds=2),
    backoff_base=timedelta(seconds=8),
    backoff_max=timedelta(seconds=20),
)


def caused_by(signal: Signal) -> Exception:
    """An error that a handler raised `from` another, which came `from` the signal."""
    middle, outer = ValueError("in the middle"), RuntimeError("on the outside")
    middle.__cause__, outer.__cause__ = signal, middle
    return outer


def test_an_error_fails_the_attempt() -> None:
    """Any exception fails the attempt, which stays charged, and another follows after the backoff (R3, R1)."""
    outcome = after(ValueError("no"), FIRST, POLICY)
    assert (outcome.state, outcome.give_back, outcome.error) == (State.FAILED, False, "ValueError: no")
    assert outcome.delay is not None
    assert timedelta(seconds=4) <= outcome.delay <= timedelta(seconds=8)


def test_an_error_of_the_last_attempt_kills() -> None:
    """On the last attempt any exception makes the job dead (R3, I7)."""
    outcome = after(ValueError("no"), LAST, POLICY)
    assert (outcome.state, outcome.delay, outcome.error) == (State.DEAD, None, "ValueError: no")


def test_attempts_beyond_the_last_kill_too() -> None:
    """A job that an operator sent round again, or whose kind allows fewer attempts now, dies of its next failure."""
    assert after(ValueError("no"), (JOB, 9), POLICY).state is State.DEAD


@pytest.mark.parametrize("wrap", [lambda signal: signal, caused_by], ids=["raised", "as a cause"])
class TestSignals:
    """A signal counts the same when it is raised and when it is the cause of what was raised (R2)."""

    def test_retry_after(self, wrap: object) -> None:
        """The handler's own delay goes before the backoff; the attempt stays charged (R2)."""
        outcome = after(wrap(RetryAfter("15s")), FIRST, POLICY)  # type: ignore[operator]
        assert (outcome.state, outcome.delay, outcome.give_back) == (State.FAILED, timedelta(seconds=15), False)

    def test_retry_after_is_clamped(self, wrap: object) -> None:
        """No delay is longer than the kind's `backoff_max` (R2)."""
        outcome = after(wrap(RetryAfter("1h")), FIRST, POLICY)  # type: ignore[operator]
        assert outcome.delay == timedelta(seconds=20)

    def test_retry_after_on_the_last_attempt(self, wrap: object) -> None:
        """Asking for another attempt does not give one more than there are (R2, I7)."""
        assert after(wrap(RetryAfter("1s")), LAST, POLICY).state is State.DEAD  # type: ignore[operator]

    @pytest.mark.parametrize("holding", [FIRST, LAST, (JOB, 99)])
    def test_preserve(self, wrap: object, holding: tuple[uuid.UUID, int]) -> None:
        """The attempt is given back, and no attempt is the last one (R2)."""
        outcome = after(wrap(PreserveAttempt("down")), holding, POLICY)  # type: ignore[operator]
        assert (outcome.state, outcome.give_back) == (State.FAILED, True)
        assert outcome.delay is not None
        assert timedelta(0) < outcome.delay <= timedelta(seconds=20)

    @pytest.mark.parametrize("holding", [FIRST, LAST])
    def test_cancel(self, wrap: object, holding: tuple[uuid.UUID, int]) -> None:
        """The job is canceled, whatever attempts remain (R2)."""
        outcome = after(wrap(CancelJob("no use")), holding, POLICY)  # type: ignore[operator]
        assert (outcome.state, outcome.delay, outcome.give_back) == (State.CANCELED, None, False)
        assert "no use" in str(outcome.error)


def test_a_context_is_no_cause() -> None:
    """A signal that was being handled when something else went wrong decides nothing (R2)."""
    error = ValueError("this")
    error.__context__ = CancelJob("not this")
    assert after(error, FIRST, POLICY).state is State.FAILED


def test_secrets_are_taken_out() -> None:
    """What the hook takes out is in no outcome's text (R3)."""
    outcome = after(ValueError("key=hunter2"), FIRST, POLICY, lambda text: text.replace("hunter2", "***"))
    assert outcome.error == "ValueError: key=***"


def test_texts_are_bounded() -> None:
    """No text is longer than the limit, and none has what PostgreSQL refuses (R3)."""
    for outcome in (after(ValueError("\0" * 1_000_000), FIRST, POLICY), dead(FIRST, "x\0" * 1_000_000)):
        assert outcome.error is not None
        assert len(outcome.error) <= ERROR_LIMIT
        assert "\0" not in outcome.error


def test_success_and_release() -> None:
    """Success keeps the attempt; a release gives it back and leaves the text and the time as they were (I6)."""
    assert done(FIRST) == Outcome(JOB, 1, State.DONE)
    assert released(FIRST) == Outcome(JOB, 1, State.PENDING, give_back=True)


def test_a_refused_text_is_replaced() -> None:
    """The outcome stays as it is, but for its text, which says that the database refused the first (R3)."""
    first = after(ValueError("no"), FIRST, POLICY)
    second = without_text(first, UnicodeError())
    assert (second.state, second.delay, second.holding) == (first.state, first.delay, first.holding)
    assert second.error == "(the database refused the text of the error: UnicodeError)"
