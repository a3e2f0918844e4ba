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

TICK = 0.1
IDLE = 1.0


class Watchdog:
    """Watches the claims that are held; `turn` is one look.

    Args:
        connections: broken when they take too long.
        grace: how long a handler may outlive being told to stop.
        give_up: called with the claim of one that has.
    """

    def __init__(
        self,
        held: Held,
        connections: Sequence[Reserved] = (),
        *,
        grace: timedelta = timedelta.max,
        give_up: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._held = held
        self._connections = connections
        self._grace = grace.total_seconds()
        self._give_up = give_up

    def turn(self) -> float:
        is_idle = not self._held.wait(IDLE)
        for reserved in self._connections:
            if reserved.break_if_overdue():
                get_logger().error("connection_silent")
        if is_idle:
            return 0.0
        now = time.monotonic()
        for claim in self._held.snapshot().values():
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
