"""Saying who is at work, so that people find out who serves a topic, and since when nobody does."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from .. import __version__
from ..engines import Reserved, without_statement
from ..log import get_logger
from ..statements import presence
from ..store import JobStore

SHORTEST, LONGEST = timedelta(seconds=5), timedelta(seconds=15)
"""Between two announcements."""

BELIEVED = 3
"""How many periods an announcement is good for: one may be late, and one may fail."""

UNSEEN = timedelta(minutes=10)
"""After which the row of a worker that ended without a word is deleted, by any other."""

FORGETS_EVERY = 10
"""How many announcements of a worker's go to one look for such rows."""


class Presence:
    """Keeps a worker's row, as one of the chores of upkeep.

    It is informative only, so nothing that goes wrong here is any trouble of the worker's: it is logged once, and tried
    again the next time.

    Args:
        running: how many jobs the worker holds.
        reaps_in: in how many seconds it looks for leases that ran out.
    """

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        *,
        worker: str,
        topics: Collection[str],
        slots: int,
        running: Callable[[], int],
        reaps_in: Callable[[], float],
        lease: timedelta,
    ) -> None:
        self._table = store.table
        self._reserved = reserved
        self._constant = {
            "its_id": worker,
            "its_host": socket.gethostname(),
            "its_pid": os.getpid(),
            "its_version": __version__,
            "its_slots": slots,
        }
        self._worker = worker
        self._topics = sorted(topics)
        self._running = running
        self._reaps_in = reaps_in
        self.period = min(max(lease / 4, SHORTEST), LONGEST)
        self._announced = 0
        self._complaint: str | None = None

    def serve_nothing_more(self) -> None:
        """From the next announcement on, the worker claims no topic: it stops."""
        self._topics = []

    def run(self) -> bool:
        """Announce the worker; whether that went well."""
        return self._try(self._announce)

    def leave(self) -> bool:
        """Take the worker's row away; whether that went well."""
        return self._announced == 0 or self._try(self._leave)

    def _announce(self) -> None:
        current = {
            "topics": self._topics,
            "running": self._running(),
            "believed": BELIEVED * self.period.total_seconds(),
            "reaps_in": self._reaps_in(),
        }
        with self._reserved.transaction() as connection:
            connection.execute(presence.announce(self._table, connection.dialect.name), self._constant | current)
        if self._announced % FORGETS_EVERY == 0:
            with self._reserved.transaction() as connection:
                connection.execute(presence.forget(self._table), {"unseen": UNSEEN.total_seconds()})
        self._announced += 1

    def _leave(self) -> None:
        with self._reserved.transaction() as connection:
            connection.execute(presence.leave(self._table), {"id": self._worker})

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except SQLAlchemyError as error:
            self._complain(str(without_statement(error)).partition("\n")[0])
            return False
        self._complaint = None
        return True

    def _complain(self, said: str) -> None:
        if said != self._complaint:
            get_logger().warning("worker_not_announced", error=said, worker=self._worker)
        self._complaint = said
