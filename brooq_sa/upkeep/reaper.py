"""Returning the jobs of workers that let their leases run out."""

from __future__ import annotations

from collections import Counter

from ..engines import Reserved
from ..events import Events, JobRequeued
from ..log import get_logger
from ..store import JobStore, Reaped

BATCH = 1_000


class Reaper:
    """Reaps until nothing is left to reap, a batch a transaction. Safe for any number of workers at once."""

    def __init__(self, store: JobStore, reserved: Reserved, *, worker: str, events: Events) -> None:
        self._store = store
        self._reserved = reserved
        self._worker = worker
        self._events = events

    def run(self) -> int:
        """Reap; how many jobs came back."""
        total = 0
        while True:
            with self._reserved.transaction() as connection:
                reaped = self._store.reap(connection, limit=BATCH)
            self._report(reaped)
            total += len(reaped)
            if len(reaped) < BATCH:
                return total

    def _report(self, reaped: list[Reaped]) -> None:
        if not reaped:
            return
        topics = Counter(job.topic for job in reaped)
        get_logger().warning("jobs_reaped", count=len(reaped), topics=dict(topics), worker=self._worker)
        for job in reaped:
            self._events.publish(JobRequeued(job.id, job.topic, job.attempts, self._worker, reaped=True))
