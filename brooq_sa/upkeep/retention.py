"""Deleting terminal jobs that are older than their time."""

from __future__ import annotations

from collections import Counter

from ..engines import Reserved
from ..log import get_logger
from ..settings import WorkerSettings
from ..store import JobStore

MOST_BATCHES = 100
"""In one run; a backlog beyond it waits for the next, so that none loads the database for hours unseen."""


class Retention:
    """Deletes a batch a transaction, oldest first. Safe for any number of workers at once."""

    def __init__(self, store: JobStore, reserved: Reserved, settings: WorkerSettings, *, worker: str) -> None:
        self._store = store
        self._reserved = reserved
        self._ttl = settings.retention_ttl
        self._batch = settings.retention_batch
        self._worker = worker

    def run(self) -> int:
        """Delete; how many jobs went. A `retention_ttl` of 0 deletes nothing, ever."""
        deleted: Counter[str] = Counter()
        if not self._ttl:
            return 0
        for _ in range(MOST_BATCHES):
            with self._reserved.transaction() as connection:
                topics = self._store.purge(connection, ttl=self._ttl, limit=self._batch)
            deleted.update(topics)
            if len(topics) < self._batch:
                break
        else:
            get_logger().warning("retention_behind", deleted=deleted.total(), batches=MOST_BATCHES, worker=self._worker)
        if deleted:
            get_logger().info("jobs_purged", count=deleted.total(), topics=dict(deleted), worker=self._worker)
        return deleted.total()
