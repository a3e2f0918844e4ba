"""What a worker tells of itself, beside the facts about jobs: how long, how many, how late.

There is one call for each thing worth counting. They are made from within the worker's own threads, so they are quick,
talk to nobody and raise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping


class Observer:
    """Hears what a worker tells of itself; this one makes nothing of it."""

    def started(self, topic: str, waited: float) -> None:
        """An attempt has begun, `waited` seconds after its job was ready."""

    def moved(self, move: str, jobs: int, seconds: float) -> None:
        """The database has answered: ``claim``, ``settle`` or ``renew``, about so many jobs, within so many seconds."""

    def beaten(self, late: float) -> None:
        """The heartbeat has come, so many seconds later than it was due."""

    def failed(self, part: str) -> None:
        """The part of the worker has met an error of the database."""

    def purged(self, topics: Mapping[str, int]) -> None:
        """Retention has deleted jobs, so many of each topic."""
