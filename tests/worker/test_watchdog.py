"""Attempts that are out of time are told to stop, by the monotonic clock alone."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from apps.embedding import bare_claim
from brooq_sa.states import StopCause
from brooq_sa.worker.held import Held
from brooq_sa.worker.watchdog import Watchdog

PAST, FUTURE = -1.0, 3600.0


def watched(lease_ends: float = FUTURE, attempt_ends: float = FUTURE, max_execution_ends: float = FUTURE) -> object:
    """A claim with these ends, counted from now, that a watchdog has looked at."""
    now, claim, held = time.monotonic(), bare_claim(), Held()
    claim._lease_ends = now + lease_ends
    claim._attempt_ends, claim._max_execution_ends = now + attempt_ends, now + max_execution_ends
    held.add([claim])
    Watchdog(held).turn()
    return claim


@pytest.mark.parametrize(
    "ends, cause",
    [
        ({}, None),
        ({"attempt_ends": PAST}, StopCause.ATTEMPT_TIMEOUT),
        ({"attempt_ends": PAST, "max_execution_ends": PAST}, StopCause.MAX_EXECUTION),
        ({"lease_ends": PAST}, StopCause.LEASE_LOST),
        ({"lease_ends": PAST, "attempt_ends": PAST, "max_execution_ends": PAST}, StopCause.LEASE_LOST),
    ],
)
def test_each_limit_has_its_cause(ends: dict[str, float], cause: StopCause | None) -> None:
    """The cause says which limit was passed; a lease that ran out outweighs the others (T1, T2, I13)."""
    claim = watched(**ends)
    assert (claim.cause, bool(claim.should_stop)) == (cause, cause is not None)  # type: ignore[attr-defined]


def test_a_lease_is_not_renewed_past_the_longest_execution() -> None:
    """Past `max_execution_timeout` the lease is let run out, past `attempt_timeout` alone it is not (T1)."""
    assert watched(attempt_ends=PAST)._is_renewed is True  # type: ignore[attr-defined]
    assert watched(max_execution_ends=PAST)._is_renewed is False  # type: ignore[attr-defined]


def test_the_first_cause_stands() -> None:
    """What an attempt was told first stays its cause, but for the loss of its lease (T2)."""
    claim = bare_claim()
    for told, standing in [
        (StopCause.SHUTDOWN, StopCause.SHUTDOWN),
        (StopCause.ATTEMPT_TIMEOUT, StopCause.SHUTDOWN),
        (StopCause.LEASE_LOST, StopCause.LEASE_LOST),
    ]:
        claim._stop(told)
        assert claim.cause is standing


def test_a_decided_attempt_is_told_nothing() -> None:
    """Once its outcome has been decided there is nothing to stop."""
    claim = bare_claim()
    claim._close()
    claim._stop(StopCause.LEASE_LOST)
    assert (claim.cause, bool(claim.should_stop)) == (None, False)


def test_a_hung_handler_is_given_up_once() -> None:
    """While its outcome cannot be written, a hung attempt stays held; its slot is given up a single time (T3)."""
    claim, held, given_up = bare_claim(), Held(), []

    def give_up(hung: Any) -> None:
        given_up.append(hung)
        hung._is_hung = True

    claim._stop(StopCause.ATTEMPT_TIMEOUT)
    held.add([claim])
    watchdog = Watchdog(held, grace=timedelta(0), give_up=give_up)
    for _ in range(3):
        watchdog.turn()
    assert given_up == [claim]
