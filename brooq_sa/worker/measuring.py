"""A store that says how many jobs each of its moves was about, and how long the database took."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Table

from ..observer import Observer
from ..store import Claimed, Holding, JobStore, Renewal


class MeasuredStore(JobStore):
    """The moves of a worker, measured; where it commits by itself, the commit is in the measure."""

    def __init__(self, table: Table, observer: Observer) -> None:
        super().__init__(table)
        self._observer = observer

    def claim(self, *arguments: Any, **options: Any) -> list[Claimed]:
        begun_at = time.monotonic()
        claimed = super().claim(*arguments, **options)
        self._observer.moved("claim", len(claimed), time.monotonic() - begun_at)
        return claimed

    def settle(self, *arguments: Any, **options: Any) -> set[Holding]:
        begun_at = time.monotonic()
        written = super().settle(*arguments, **options)
        self._observer.moved("settle", len(written), time.monotonic() - begun_at)
        return written

    def renew(self, connection: Connection, worker: str, held: Collection[Holding], lease_for: timedelta) -> Renewal:
        begun_at = time.monotonic()
        renewal = super().renew(connection, worker, held, lease_for)
        self._observer.moved("renew", len(held), time.monotonic() - begun_at)
        return renewal
