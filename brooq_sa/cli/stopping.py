"""SIGTERM and SIGINT: the first asks for a stop in good order, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType

from .codes import SIGNALED

ECHO = 0.1
"""Seconds in which a second signal is the first one over again: timeout(1), and a terminal whose signal a wrapper hands
on, send two at once."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Listens from its making on. The main thread makes it, early: as process 1 of a container nothing stops us before.

    Args:
        at_once: called on the second signal, before the process ends.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self._at_once = at_once
        self.is_asked = False
        self._asked_at = 0.0
        # A SimpleQueue may be put to from within a signal handler that interrupts its own get; an Event may not.
        self._asked: SimpleQueue[int] = SimpleQueue()
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until asked to stop, `timeout` seconds at most; whether we were."""
        if not self.is_asked:
            try:
                self._asked.get(timeout=timeout)
            except Empty:
                return False
        return True

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if not self.is_asked:
            self.is_asked = True
            self._asked_at = time.monotonic()
            self._asked.put(number)
        elif time.monotonic() - self._asked_at > ECHO:
            self._at_once()
            os._exit(SIGNALED + number)
