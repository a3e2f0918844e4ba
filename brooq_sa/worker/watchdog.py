"""Telling attempts that are out of time to stop, by the monotonic clock alone.

It talks to nobody, so that no connection that hangs can keep a handler from hearing that its lease is gone; and it
breaks the connections that hang, so that the worker's other parts get on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ..engines import Reserved
from ..log import get_logger
from ..states import StopCause
from .held import Held
from .slots import Slots

TICK = 0.1
IDLE = 1.0

TO_WRITE = 5.0
"""Seconds that the heartbeat gets on SQLite to write what it could not, once it can."""


class Watchdog:
    """Watches the claims that are held; `turn` is one look.

    Args:
        connections: broken when they take too long.
        grace: how long a handler may outlive being told to stop.
        give_up: called with the claim of one that has.
        has_one_writer: whether the database is SQLite. While a handler has its session open there, nobody can renew a
            lease, nor take what it holds: a lease that runs out meanwhile is as good as before.
        worker: whose it is, for its lines in the log.
        slots: whose waiting jobs go back when they wait too long.
    """

    def __init__(
        self,
        held: Held,
        connections: Sequence[Reserved] = (),
        *,
        grace: timedelta = timedelta.max,
        give_up: Callable[[Any], None] = lambda _: None,
        has_one_writer: bool = False,
        slots: Slots | None = None,
        worker: str | None = None,
    ) -> None:
        self._held = held
        self._slots = slots
        self._connections = connections
        self._grace = grace.total_seconds()
        self._give_up = give_up
        self._has_one_writer = has_one_writer
        self._worker = worker

    def turn(self) -> float:
        is_idle = not self._held.wait(IDLE)
        for reserved in self._connections:
            if reserved.break_if_overdue():
                get_logger().error("connection_silent", worker=self._worker)
        if is_idle:
            return 0.0
        if self._slots is not None:
            self._slots.give_stale_back()
        now = time.monotonic()
        claims = self._held.snapshot().values()
        if self._has_one_writer and any(claim._session is not None for claim in claims):
            for claim in claims:
                claim._lease_ends = max(claim._lease_ends, now + TO_WRITE)
        # One that was given up stays held until its outcome is written, which may take as long as an outage.
        for claim in (claim for claim in claims if not claim._is_hung):
            if claim._told_at + self._grace <= now and not claim._is_over and claim.cause is not StopCause.SHUTDOWN:
                self._give_up(claim)
            elif claim._lease_ends <= now:
                claim._stop(StopCause.LEASE_LOST)
            elif claim._max_execution_ends <= now:
                claim._is_renewed = False
                claim._stop(StopCause.MAX_EXECUTION)
            elif claim._attempt_ends <= now:
                claim._stop(StopCause.ATTEMPT_TIMEOUT)
        return TICK
