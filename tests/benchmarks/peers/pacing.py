"""At what times jobs are put into an idle queue. Standard library only: peers' drivers use it too."""

from __future__ import annotations


def pause(number: int) -> float:
    """Seconds to wait before a job: a tenth on average, and never in step with anybody's polling."""
    return 0.06 + number * 37 % 80 / 1_000
