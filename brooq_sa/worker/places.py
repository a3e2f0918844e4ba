"""Where a claim begins: at the start, or at the place where the last one ended.

A claim from the start sees everything that is due. Each of the jobs that were claimed since the last vacuum costs it a
step over a dead entry of the index, and while somebody holds an old snapshot no vacuum can take those away: a queue
that works off a million jobs behind a long report would come to a halt. A claim that begins where the last one ended
steps over none, and misses what came to lie before that place: jobs sent round again or released, of a smaller
priority, or committed late.

A look that brought all that was asked for, with jobs ahead of free slots, is therefore followed by others that go on
from there, for `BRIEFLY`: what comes to lie before the place meanwhile would have waited as long behind those jobs. In
a queue that is not so full every look is one from the start, but for some samples, while these are about as quick as
others. Once they are slow, they take at most a tenth of the time, and come at least every `LONGEST` seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ..statements.claim import Place
from ..store import Claimed
from .pace import AHEAD

SLOW = 2.0
"""How many times as long a look from the start takes, for it to be made more rarely."""

REST = 10.0
"""For how many times its own length the looks that follow a slow one begin where the last ended."""

BRIEFLY = AHEAD
"""Seconds without a look from the start in a full queue."""

LONGEST = 1.0
"""Seconds without a look from the start, at the most."""

SAMPLE = 10
"""Of how many looks one is a sample."""


class Places:
    """The place in each topic where the last claim ended, and when to look from the start again."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._is_from_start = True
        self._looks = 0
        self._ended_at = -math.inf
        self._quick: float | None = None
        self._start_again_at = 0.0

    def next(self, now: float) -> Mapping[str, Place]:
        """Where the next claim is to begin, by topic; topics without an entry, and all of none, at the start."""
        self._looks += 1
        # A sample is only for where looks are frequent: what it misses, the next one finds.
        is_sample = self._looks % SAMPLE == 0 and now - self._ended_at < BRIEFLY
        self._is_from_start = not self._places or (now >= self._start_again_at and not is_sample)
        return {} if self._is_from_start else self._places

    def ended(
        self,
        claimed: Sequence[Claimed],
        want: Mapping[str, int],
        *,
        room: int,
        is_ahead: bool,
        seconds: float,
        now: float,
    ) -> None:
        """A claim is over.

        Args:
            claimed: what it took, of so many wanted by topic and in all.
            is_ahead: whether it was to take more than there were free slots.
            seconds: that it took.
        """
        self._ended_at = now
        if not self._is_from_start:
            self._quick = seconds
        elif self._quick is not None and seconds > SLOW * self._quick:
            self._start_again_at = now + min(REST * seconds, LONGEST)
        elif is_ahead and len(claimed) >= room:
            self._start_again_at = now + BRIEFLY
        last: dict[str, Claimed] = {}
        taken: Counter[str] = Counter()
        for job in claimed:  # in the order of the index
            last[job.topic] = job
            taken[job.topic] += 1
        for topic, job in last.items():
            if job.instant is not None:
                place = Place(job.priority, job.instant, job.id)
                # One that has work left goes on from there, even if that is before the place where it was.
                is_filled = len(claimed) >= room or taken[topic] >= want[topic]
                self._places[topic] = place if is_filled else max(place, self._places.get(topic, place))

    def due_in(self, now: float) -> float | None:
        """Seconds until a look from the start is due; None if the last one was from there, and found all there was."""
        return None if self._is_from_start else max(0.0, self._start_again_at - now)
