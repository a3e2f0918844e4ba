"""Telling attempts that are out of time to stop, by the monotonic clock alone.

It talks to nobody, so that no connection that hangs can keep a handler from hearing that its lease is gone; and it
breaks the connections that hang, so that the worker's other parts get on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..engines import Reserved
from ..log import get_logger
from ..states import StopCause
from .held import Held

TICK = 0.1
IDLE = 1.0


class Watchdog:
    """Watches the claims that are held; `turn` is one look."""

    def __init__(self, held: Held, connections: Sequence[Reserved] = ()) -> None:
        self._held = held
        self._connections = connections

    def turn(self) -> float:
        is_idle = not self._held.wait(IDLE)
        for reserved in self._connections:
            if reserved.break_if_overdue():
                get_logger().error("connection_silent")
        if is_idle:
            return 0.0
        now = time.monotonic()
        for claim in self._held.snapshot().values():
            if claim._lease_ends <= now:
                claim._stop(StopCause.LEASE_LOST)
            elif claim._max_execution_ends <= now:
                claim._is_renewed = False
                claim._stop(StopCause.MAX_EXECUTION)
            elif claim._attempt_ends <= now:
                claim._stop(StopCause.ATTEMPT_TIMEOUT)
        return TICK
