"""Deleting terminal jobs that are older than their time."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError, OperationalError

from ..engines import Reserved, is_statement_timeout
from ..log import get_logger
from ..observer import Observer
from ..settings import WorkerSettings
from ..store import JobStore

MOST_BATCHES = 100
"""In one run; a backlog beyond it waits for the next, so that none loads the database for hours unseen."""

MOST_REFERENCED = 1_000
"""Jobs that other tables refer to, in one run; beyond it nothing is looked for any more."""


class Retention:
    """Deletes a batch a transaction, oldest first. Safe for any number of workers at once.

    A batch that takes longer than the server's ``statement_timeout`` is tried again in halves. One that holds a job
    which a foreign key of the user's refers to is divided until that job stands alone; it is left, and named in the
    log, and the others go.
    """

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        settings: WorkerSettings,
        *,
        worker: str,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._ttl = settings.retention_ttl
        self._batch = settings.retention_batch
        self._worker = worker
        self._observer = observer or Observer()

    def run(self) -> int:
        """Delete; how many jobs went. A `retention_ttl` of 0 deletes nothing, ever."""
        deleted: Counter[str] = Counter()
        referenced: set[uuid.UUID] = set()
        try:
            if self._ttl:
                self._run(deleted, referenced)
        finally:
            self._observer.purged(deleted)
        if referenced:
            some = sorted(map(str, referenced))[:3]
            get_logger().warning("jobs_referenced", count=len(referenced), some=some, worker=self._worker)
        if deleted:
            get_logger().info("jobs_purged", count=deleted.total(), topics=dict(deleted), worker=self._worker)
        return deleted.total()

    def _run(self, deleted: Counter[str], referenced: set[uuid.UUID]) -> None:
        batch = self._batch
        for _ in range(MOST_BATCHES):
            try:
                if self._purge(batch, deleted, referenced) < batch:
                    return
            except OperationalError as error:
                if batch == 1 or not is_statement_timeout(error):
                    raise
                batch = max(1, batch // 2)
            if len(referenced) >= MOST_REFERENCED:
                return
        get_logger().warning("retention_behind", deleted=deleted.total(), batches=MOST_BATCHES, worker=self._worker)

    def _purge(self, batch: int, deleted: Counter[str], referenced: set[uuid.UUID]) -> int:
        """Delete one batch; how many jobs it was about."""
        try:
            with self._reserved.transaction() as connection:
                topics = self._store.purge(connection, ttl=self._ttl, limit=batch, but=referenced)
        except IntegrityError:
            with self._reserved.transaction() as connection:
                expired = self._store.expired(connection, ttl=self._ttl, limit=batch, but=referenced)
            self._divide(expired, deleted, referenced)
            return len(expired)
        deleted.update(topics)
        return len(topics)

    def _divide(self, job_ids: Sequence[uuid.UUID], deleted: Counter[str], referenced: set[uuid.UUID]) -> None:
        if not job_ids or len(referenced) >= MOST_REFERENCED:
            return
        try:
            with self._reserved.transaction() as connection:
                deleted.update(self._store.purge_these(connection, job_ids))
        except IntegrityError:
            if len(job_ids) == 1:
                referenced.update(job_ids)
                return
            middle = len(job_ids) // 2
            self._divide(job_ids[:middle], deleted, referenced)
            self._divide(job_ids[middle:], deleted, referenced)
