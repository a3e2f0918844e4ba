"""Returning the jobs of workers that let their leases run out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from ..engines import Reserved
from ..events import CrashSuspect, Event, Events, JobDead, JobRequeued
from ..log import get_logger
from ..store import TOO_MANY_CRASHES, JobStore, Reaped

BATCH = 1_000

SUSPICIOUS = 2
"""Crashes after which a job is named in the log: by then it may well be what kills its worker."""


class Reaper:
    """Reaps until nothing is left to reap, a batch a transaction. Safe for any number of workers at once."""

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        *,
        worker: str,
        events: Events,
        ceilings: Mapping[str, int] | None = None,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._worker = worker
        self._events = events
        self._ceilings = ceilings or {}

    def run(self) -> int:
        """Reap; how many jobs came back."""
        total = 0
        while True:
            with self._reserved.transaction() as connection:
                reaped = self._store.reap(connection, limit=BATCH, ceilings=self._ceilings)
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
            self._events.publish(self._fact(job))
            if job.crashes >= SUSPICIOUS and not job.is_parked:
                self._events.publish(CrashSuspect(job.id, job.topic, job.attempts, self._worker, job.crashes))

    def _fact(self, job: Reaped) -> Event:
        about = (job.id, job.topic, job.attempts, self._worker)
        if job.is_parked:
            return JobDead(*about, timedelta(0), TOO_MANY_CRASHES, reaped=True)
        return JobRequeued(*about, reaped=True)
