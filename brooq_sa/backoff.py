"""How long a failed job waits for its next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta


def backoff(
    attempt: int,
    base: timedelta,
    maximum: timedelta,
    *,
    uniform: Callable[[float, float], float] = random.uniform,
) -> timedelta:
    """The delay before the attempt that follows attempt number `attempt`.

    It is ``base * 2**(attempt - 1)``, never more than `maximum`, of which the upper half is random, so that jobs which
    failed together do not come back together.

    Args:
        attempt: the one that failed, counted from 1; smaller numbers count as 1.
        base: the longest first delay.
        maximum: the longest delay of all; it wins over `base`.
        uniform: draws a number between two others, both of which it may give.
    """
    longest = _doubled(base, attempt - 1, maximum)
    # A share of the delay rather than a number of seconds: rounding cannot take it past the longest timedelta.
    return longest * uniform(0.5, 1.0)


def _doubled(base: timedelta, times: int, maximum: timedelta) -> timedelta:
    if not base:
        return base
    # Ask how often the base fits before doubling it: an attempt number has no bound, a number of bits does.
    if times >= (maximum // base).bit_length():
        return maximum
    return min(base * (1 << max(times, 0)), maximum)
