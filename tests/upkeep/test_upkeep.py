"""One thread for all the chores, each at its own pace."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from brooq_sa.upkeep import Upkeep

HOUR = timedelta(hours=1)


class Counter:
    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error

    def __call__(self) -> None:
        self.count += 1
        if self.error:
            raise self.error


def all_due(upkeep: Upkeep) -> None:
    for chore in upkeep._chores:
        chore.due_at = time.monotonic() - 1


def test_the_first_time_comes_within_the_period() -> None:
    """Workers that were started together do not stay in step: each begins at a moment of its own."""
    upkeep = Upkeep()
    for _ in range(50):
        upkeep.add(Counter(), HOUR)
    waits = [chore.due_at - time.monotonic() for chore in upkeep._chores]
    assert all(-1 <= wait <= 3600 for wait in waits)
    assert max(waits) - min(waits) > 60


def test_each_is_done_when_it_is_due() -> None:
    """A turn does what is due, and says when the next will be."""
    upkeep, soon, late = Upkeep(), Counter(), Counter()
    upkeep.add(soon, timedelta(minutes=10))
    upkeep.add(late, HOUR)
    all_due(upkeep)
    upkeep._chores[1].due_at += 1800
    assert upkeep.turn() == pytest.approx(600, abs=5)
    assert (soon.count, late.count) == (1, 0)
    assert upkeep.turn() == pytest.approx(600, abs=5)
    assert (soon.count, late.count) == (1, 0)


def test_a_chore_that_fails_keeps_no_other_from_its_turn() -> None:
    """Every chore that is due is tried before the failure is raised; the failed one stays due until it succeeds."""
    upkeep, failing, working = Upkeep(), Counter(ValueError("no")), Counter()
    upkeep.add(failing, HOUR)
    upkeep.add(working, HOUR)
    all_due(upkeep)
    for tries in (1, 2):
        with pytest.raises(ValueError, match="no"):
            upkeep.turn()
        assert (failing.count, working.count) == (tries, 1)
    failing.error = None
    upkeep.turn()
    assert upkeep.turn() > 1
    assert (failing.count, working.count) == (3, 1)


def test_without_chores_there_is_nothing_to_do() -> None:
    """A turn without chores waits."""
    assert Upkeep().turn() > 1
