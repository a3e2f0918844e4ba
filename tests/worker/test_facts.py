"""From an outcome to the event that tells of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.embedding import bare_claim
from brooq_sa.events import JobCanceled, JobDead, JobDone, JobFailed, JobLeaseLost, JobRequeued
from brooq_sa.states import State, StopCause
from brooq_sa.store import Outcome
from brooq_sa.worker import facts

TOOK, DELAY = timedelta(seconds=2), timedelta(seconds=3)
CLAIM = bare_claim(attempt=4)
ABOUT = (CLAIM.id, "work", 4, "w")


@pytest.mark.parametrize(
    "state, given, event",
    [
        (State.DONE, {}, JobDone(*ABOUT, TOOK)),
        (State.FAILED, {"delay": DELAY, "error": "no"}, JobFailed(*ABOUT, TOOK, DELAY, "no")),
        (State.DEAD, {"error": "no"}, JobDead(*ABOUT, TOOK, "no")),
        (State.CANCELED, {"error": "no"}, JobCanceled(*ABOUT, TOOK, "no")),
        (State.PENDING, {"give_back": True}, JobRequeued(*ABOUT, reaped=False)),
    ],
)
def test_each_outcome_has_its_event(state: State, given: dict[str, Any], event: object) -> None:
    """Each state that an attempt can end in is a fact of its own, with job, topic, attempt and worker (W3)."""
    assert facts.settled(CLAIM, Outcome(CLAIM.id, 4, state, **given), TOOK) == event


@pytest.mark.parametrize(
    "cause, told",
    [
        (None, "lease lost"),
        (StopCause.LEASE_LOST, "lease lost"),
        (StopCause.CANCELED, "canceled"),
        (StopCause.ATTEMPT_TIMEOUT, "lease lost"),
    ],
)
def test_a_lost_lease_says_why(cause: StopCause | None, told: str) -> None:
    """Nothing was written: because the job was canceled, or because somebody else has it."""
    claim = bare_claim()
    if cause is not None:
        claim._stop(cause)
    assert facts.lost(claim) == JobLeaseLost(claim.id, "work", 1, "w", told)
