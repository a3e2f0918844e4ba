"""From an outcome that the database has accepted to the event that tells of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ..events import (
    Event,
    HandlerHung,
    JobCanceled,
    JobDead,
    JobDone,
    JobFailed,
    JobLeaseLost,
    JobRequeued,
    LateOutcomeRefused,
)
from ..states import State, StopCause
from ..store import Outcome


def settled(claim: Any, outcome: Outcome, duration: timedelta) -> Event:
    """What is true once `outcome` is written."""
    about, error = _about(claim), outcome.error or ""
    match outcome.state:
        case State.DONE:
            return JobDone(*about, duration)
        case State.FAILED:
            return JobFailed(*about, duration, outcome.delay or timedelta(0), error)
        case State.DEAD:
            return JobDead(*about, duration, error)
        case State.CANCELED:
            return JobCanceled(*about, duration, error)
        case _:
            return JobRequeued(*about, reaped=False)


def lost(claim: Any) -> Event:
    """What is true once an outcome was refused, or given up."""
    return JobLeaseLost(*_about(claim), str(claim.cause if claim._is_lost else StopCause.LEASE_LOST))


def hung(claim: Any) -> Event:
    """What is true once a handler is given up that does not end."""
    return HandlerHung(*_about(claim), str(claim.cause))


def late(claim: Any) -> Event:
    """What is true once it has ended after all."""
    return LateOutcomeRefused(*_about(claim))


def _about(claim: Any) -> tuple[Any, str, int, str]:
    return claim.id, claim.topic, claim.attempt, claim.worker
