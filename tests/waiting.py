"""Waiting on conditions, never on a lucky time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL = 0.01


def wait_until(condition: Callable[[], T], *, timeout: float = 10.0, what: str = "the condition") -> T:
    """The condition's first true value.

    Args:
        timeout: seconds after which the wait is a failure; generous, since only a broken test pays it.
        what: the end of the sentence "... seconds passed without ..." in the failure.

    Raises:
        AssertionError: if the condition stayed false.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{timeout:g} seconds passed without {what}")
        time.sleep(POLL)
