"""How many jobs to take ahead of the slots that are free for them.

A slot that must wait for a claim is idle for a round trip, and a claim for one slot costs the database as much as a
commit for hundreds. So while slots turn over fast, jobs are taken ahead: as many of a topic as have ended within the
last `AHEAD`. A job that waits here, while another process may have a slot free, therefore starts about as soon; and
where attempts are long, none waits. When the expectation fails, jobs that have waited for `STALE` go back for others to
take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

AHEAD = 0.05
"""Seconds of work that may wait in this process for a slot."""

STALE = 0.25
"""Seconds after which a job that waits here for a slot goes back."""

TURNS = 2
"""How often each slot must come free within `AHEAD`, on average, for any job to be taken ahead."""

MOST_JOBS = 1000
"""How many jobs of a topic wait here at the most..."""

MOST_BYTES = 8 * 2**20
"""...and how many bytes of payload, going by the largest of late."""


class Pace:
    """How many attempts of each topic have ended of late.

    Args:
        slots: how many run at a time.
    """

    def __init__(self, slots: int) -> None:
        self._fast = TURNS * slots
        self._ended: Counter[str] = Counter()
        self._ended_before: Counter[str] = Counter()
        self._began_at = 0.0
        self._largest: dict[str, int] = {}

    def note(self, topic: str) -> None:
        """An attempt has ended."""
        self._ended[topic] += 1

    def note_sizes(self, largest: Mapping[str, int]) -> None:
        """The largest payload of each topic in a claim, in characters."""
        self._largest |= largest

    def look(self, now: float) -> None:
        """Let time pass, to this moment by the monotonic clock."""
        passed = now - self._began_at
        if passed >= AHEAD:
            self._ended_before = self._ended if passed < 2 * AHEAD else Counter()
            self._ended = Counter()
            self._began_at = now

    def ahead(self) -> dict[str, int]:
        """How many jobs may wait for slots, by topic; topics without an entry, none."""
        ended = max(self._ended, self._ended_before, key=Counter.total)
        if ended.total() < self._fast:
            return {}
        return {topic: self._at_most(count, topic) for topic, count in ended.items()}

    def _at_most(self, count: int, topic: str) -> int:
        return min(count, MOST_JOBS, MOST_BYTES // max(self._largest.get(topic, 1), 1))
