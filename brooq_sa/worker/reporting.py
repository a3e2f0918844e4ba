"""The heartbeat's thread between two beats: writing how far handlers say that they have come.

A word is for people to read, and must cost no job anything. It is not written where it could:

* while the claim's session is in a transaction with a snapshot of its own (REPEATABLE READ, SERIALIZABLE), which could
  not write the outcome into the row any more;
* on SQLite while any claim's session is in a transaction, which has the database's only lock to write;
* and if the database refuses it, that is logged once, and leases go on being renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from .. import progress
from ..engines import Reserved, is_read_committed, without_statement
from ..log import get_logger
from ..store import Holding, JobStore
from .heartbeat import Heartbeat
from .held import AnyClaim, Held

SPACING = 1.0
"""Seconds between two reports at least: what handlers tell in between is told by the last of it."""


class Reporting:
    """Beats when a beat is due, and reports when there is something new; `turn` is one look at both.

    Args:
        beat: the heartbeat's turn, or what measures it.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        store: JobStore,
        reserved: Reserved,
        *,
        worker: str,
        held: Held,
        beat: Callable[[], float] | None = None,
    ) -> None:
        self._heartbeat = heartbeat
        self._beat = beat or heartbeat.turn
        self._store = store
        self._reserved = reserved
        self._worker = worker
        self._held = held
        self._beats_at = self._reports_at = 0.0
        self._was_hurrying = False
        self._is_failing = False

    def turn(self) -> float:
        begun_at = time.monotonic()
        is_hurrying = self._heartbeat.is_hurrying
        if begun_at >= self._beats_at or (is_hurrying and not self._was_hurrying):
            self._beats_at = begun_at + self._beat()
        self._was_hurrying = is_hurrying
        next_report = self._report()
        return max(0.0, min(self._beats_at, next_report) - time.monotonic())

    def _report(self) -> float:
        """Report what is new, unless that was done just now; when to look again."""
        news = {
            holding: claim
            for holding, claim in self._held.snapshot().items()
            if claim._progress is not claim._reported and not claim._is_lost
        }
        if not news:
            return self._beats_at  # or when a claim calls
        now = time.monotonic()
        if now >= self._reports_at:
            self._reports_at = now + SPACING
            try:
                self._write(news)
                self._is_failing = False
            except SQLAlchemyError as error:
                if not self._is_failing:
                    said = str(without_statement(error))
                    get_logger().warning("progress_not_written", worker=self._worker, error=said)
                self._is_failing = True
        return self._reports_at

    def _write(self, news: dict[Holding, Any]) -> None:
        if self._reserved.dialect == "sqlite" and any(each._connections for each in self._held.snapshot().values()):
            return  # before a transaction is begun, which would wait
        with self._reserved.transaction() as connection:
            words = {holding: claim._progress for holding, claim in news.items() if self._is_unharmed(claim)}
            if words:
                told = {holding: progress.stored(word, holding[1]) for holding, word in words.items()}
                self._store.report(connection, self._worker, told)
        for holding, word in words.items():
            news[holding]._reported = word

    def _is_unharmed(self, claim: AnyClaim) -> bool:
        """Whether the claim's own transaction can still write the outcome after another has written the row."""
        return all(is_read_committed(each, self._reserved.default_level) for each in claim._connections)
