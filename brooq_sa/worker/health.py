"""Whether a worker does what it is there for, as its own threads show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from ..durations import format_duration
from ..engines import Reserved
from ..observer import Observer
from .loop import Loop

SUPPORTING = ("listener", "metrics", "upkeep", "watchdog")
"""Loops without which jobs are run all the same."""

ASKING = "claiming"
"""The loop whose first turn has reached the database."""

SILENCE = 10.0
"""Seconds without an answer from the database, or without a look of the watchdog, that are too many."""

STANDSTILL = 90.0
"""Seconds that a heartbeat may take in an outage, over its period, before the process itself is at fault."""


class Beat:
    """The heartbeat's turn, which says how late it comes.

    Attributes:
        due_at: by the monotonic clock; None before the first.
    """

    def __init__(self, turn: Callable[[], float], period: timedelta, observer: Observer) -> None:
        self._turn = turn
        self._period = period.total_seconds()
        self._observer = observer
        self.due_at: float | None = None

    def __call__(self) -> float:
        begun_at = time.monotonic()
        if self.due_at is not None:
            self._observer.beaten(max(0.0, begun_at - self.due_at))
        pause = self._turn()
        self.due_at = begun_at + self._period
        return pause

    @property
    def is_on_time(self) -> bool:
        """Whether leases hold for sure: no more than one renewal has been missed."""
        return self.due_at is not None and time.monotonic() < self.due_at + self._period


class Health:
    """What the threads of a worker say of it.

    Args:
        loops: its loops, which may be added to.
        reserved: its connections, likewise.
    """

    def __init__(self, loops: Sequence[Loop], reserved: Sequence[Reserved], beat: Beat, lease: timedelta) -> None:
        self._loops = loops
        self._reserved = reserved
        self._beat = beat
        self._lease = lease

    def unready(self) -> list[str]:
        """What keeps the worker from being ready, a sentence each: connected, claiming, heartbeats on time."""
        faults = [
            f"{loop.name} fails: {loop.trouble}"
            for loop in self._loops
            if loop.name not in SUPPORTING and loop.trouble is not None
        ]
        if not all(loop.has_turned for loop in self._loops if loop.name == ASKING):
            faults.append("the database has not been asked for jobs yet")
        elif not self._beat.is_on_time:
            faults.append(f"heartbeats are late, and leases hold for {format_duration(self._lease)}")
        if any(_silence(reserved) > SILENCE for reserved in self._reserved):
            faults.append("the database does not answer")
        return faults

    def is_alive(self) -> bool:
        """Whether the worker's threads turn. They do in an outage too, which starting anew would not mend."""
        now = time.monotonic()
        allowed = {"watchdog": SILENCE, "heartbeat": self._lease.total_seconds() / 3 + STANDSTILL}
        return not any(
            loop.has_ended or now - loop.turned_at > allowed.get(loop.name, float("inf")) for loop in self._loops
        )


def _silence(reserved: Reserved) -> float:
    """For how many seconds the connection's transaction has gone on."""
    since = reserved._busy_since
    return 0.0 if since is None else time.monotonic() - since
