"""One thread for all the chores, each at its own pace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(slots=True)
class Chore:
    """What is to be done every so often.

    Attributes:
        due_at: by the monotonic clock.
    """

    work: Callable[[], object]
    period: timedelta
    due_at: float = 0.0

    @property
    def due_in(self) -> float:
        """Seconds until it is due; 0 if it is."""
        return max(0.0, self.due_at - time.monotonic())

    def hurry(self) -> None:
        """It is due now."""
        self.due_at = 0.0


class Upkeep:
    """Runs chores when they are due; `turn` is one look at them."""

    def __init__(self) -> None:
        self._chores: list[Chore] = []

    def add(self, work: Callable[[], object], period: timedelta, *, is_due: bool = False) -> Chore:
        """Have something done every so often; what stands for it.

        Args:
            is_due: the first time comes at once. Otherwise it comes at random within the period, so that workers
                started together do not stay in step.
        """
        delay = 0.0 if is_due else random.uniform(0, period.total_seconds())  # noqa: S311 - no secret
        chore = Chore(work, period, time.monotonic() + delay)
        self._chores.append(chore)
        return chore

    def turn(self) -> float:
        """Do what is due.

        Raises:
            What the first chore that failed raised, once the others have had their turn; it stays due.
        """
        failures: list[Exception] = []
        for chore in self._chores:
            if chore.due_at <= time.monotonic():
                try:
                    chore.work()
                except Exception as error:  # noqa: BLE001 - raised below
                    failures.append(error)
                else:
                    chore.due_at = time.monotonic() + chore.period.total_seconds()
        if failures:
            raise failures[0]
        return max(0.0, min((chore.due_at for chore in self._chores), default=time.monotonic() + 60) - time.monotonic())
