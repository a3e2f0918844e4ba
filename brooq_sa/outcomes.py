"""From what a handler raised to the outcome that is written (the rules of retries).

======================== ======== ============ ==========================================
raised                   state    attempt      available again
======================== ======== ============ ==========================================
nothing                  done     charged
`CancelJob`              canceled charged
`PreserveAttempt`        failed   given back   after the backoff
`RetryAfter`             failed   charged      after its delay, at most ``backoff_max``
anything else            failed   charged      after the backoff
the last two, at the     dead     charged
last attempt
======================== ======== ============ ==========================================
"""

from __future__ import annotations

from collections.abc import Callable

from .backoff import backoff
from .exc import CancelJob, PreserveAttempt, RetryAfter
from .failure import clean_text, describe, signal_in
from .kinds import Policy
from .states import State
from .store import Holding, Outcome

ERROR_LIMIT = 8_192
"""The longest `last_error`, in characters."""

Redact = Callable[[str], str]


def done(holding: Holding) -> Outcome:
    return Outcome(*holding, State.DONE)


def released(holding: Holding) -> Outcome:
    """Back to pending as if it had not been taken."""
    return Outcome(*holding, State.PENDING, give_back=True)


def dead(holding: Holding, reason: str) -> Outcome:
    return Outcome(*holding, State.DEAD, error=clean_text(reason, ERROR_LIMIT))


def without_text(outcome: Outcome, error: BaseException) -> Outcome:
    """The outcome for when the database has refused its text with `error`."""
    return outcome._replace(error=f"(the database refused the text of the error: {type(error).__name__})")


def after(error: BaseException, holding: Holding, policy: Policy, redact: Redact | None = None) -> Outcome:
    """The outcome of an attempt that raised `error`.

    Args:
        redact: takes the secrets out of the text for `last_error`.
    """
    attempt = holding[1]
    text = describe(error, redact=redact, limit=ERROR_LIMIT)
    delay = backoff(attempt, policy.backoff_base, policy.backoff_max)
    match signal_in(error):
        case CancelJob():
            return Outcome(*holding, State.CANCELED, error=text)
        case PreserveAttempt():
            return Outcome(*holding, State.FAILED, delay, text, give_back=True)
        case RetryAfter(delay=wanted):
            delay = min(wanted, policy.backoff_max)
    if attempt >= policy.max_attempts:
        return Outcome(*holding, State.DEAD, error=text)
    return Outcome(*holding, State.FAILED, delay, text)
