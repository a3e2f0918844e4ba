"""How long a failed job waits."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brooq_sa.backoff import backoff

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def smallest(low: float, high: float) -> float:
    return low


def largest(low: float, high: float) -> float:
    return high


@pytest.mark.parametrize(
    "attempt, seconds", [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (1_000, 60)]
)
def test_the_delay_doubles_up_to_the_maximum(attempt: int, seconds: int) -> None:
    """The delay is drawn from the upper half of base * 2**(attempt - 1), capped by the maximum (R1)."""
    assert backoff(attempt, SECOND, MINUTE, uniform=largest) == seconds * SECOND
    assert backoff(attempt, SECOND, MINUTE, uniform=smallest) == seconds * SECOND / 2


@pytest.mark.parametrize("attempt", [30, 31, 63, 64, 1023, 1024, 4999, 10**9, 10**300])
@pytest.mark.parametrize("base", [timedelta(0), timedelta(microseconds=1), SECOND, timedelta.max], ids=str)
@pytest.mark.parametrize("maximum", [timedelta(0), MINUTE, timedelta.max], ids=str)
def test_any_attempt_number_gives_a_delay_at_once(attempt: int, base: timedelta, maximum: timedelta) -> None:
    """However large attempt, base and maximum are, the delay is finite, in its bounds and there at once (R1)."""
    started = time.perf_counter()
    for uniform in (smallest, largest):
        assert timedelta(0) <= backoff(attempt, base, maximum, uniform=uniform) <= maximum
    assert time.perf_counter() - started < 0.1


@given(
    attempt=st.integers(1, 10_000),
    base=st.timedeltas(min_value=timedelta(0)),
    maximum=st.timedeltas(min_value=timedelta(0)),
)
def test_delays_never_shrink_with_attempts(attempt: int, base: timedelta, maximum: timedelta) -> None:
    """A later attempt never waits less than an earlier one could have, and none waits longer than the maximum (R1)."""
    longest = backoff(attempt, base, maximum, uniform=largest)
    assert longest <= backoff(attempt + 1, base, maximum, uniform=largest) <= maximum
    assert longest / 2 <= backoff(attempt, base, maximum) <= longest


def test_samples_spread_over_the_upper_half() -> None:
    """Ten thousand delays lie in [d/2, d] and fill it evenly, so that jobs do not come back together (R1)."""
    delays = [backoff(4, SECOND, MINUTE) for _ in range(10_000)]
    assert min(delays) >= 4 * SECOND
    assert max(delays) <= 8 * SECOND
    for quarter in range(4, 8):
        inside = sum(quarter * SECOND <= delay < (quarter + 1) * SECOND for delay in delays)
        assert 2_200 < inside < 2_800  # 2,500 expected, with a standard deviation of 43


@pytest.mark.parametrize("attempt", [0, -1, -(10**300)])
def test_numbers_below_one_count_as_the_first_attempt(attempt: int) -> None:
    """A row that was edited by hand to hold no attempts gets the first delay (R1)."""
    assert backoff(attempt, SECOND, MINUTE, uniform=largest) == SECOND
