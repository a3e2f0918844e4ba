"""The heartbeat's thread between two beats: writing how far handlers say that they have come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .. import progress
from ..engines import Reserved
from ..store import Holding, JobStore
from .heartbeat import Heartbeat
from .held import Held

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

    def turn(self) -> float:
        if time.monotonic() >= self._beats_at or self._heartbeat.is_hurrying:
            begun_at = time.monotonic()
            self._beats_at = begun_at + self._beat()
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
            self._write(news)
        return self._reports_at

    def _write(self, news: dict[Holding, Any]) -> None:
        words = {holding: claim._progress for holding, claim in news.items()}
        with self._reserved.transaction() as connection:
            told = {holding: progress.stored(word, holding[1]) for holding, word in words.items()}
            self._store.report(connection, self._worker, told)
        for holding, claim in news.items():
            claim._reported = words[holding]
