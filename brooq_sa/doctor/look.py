"""What all checks look with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from ..durations import format_duration
from ..settings import WorkerSettings
from ..statements import presence, standing

NAMED = 5
"""How many things of a kind a sentence names."""


@dataclass(frozen=True)
class Look:
    """A connection, the job table, and what counts as long.

    Attributes:
        connection: in a transaction; a check that fails costs that alone.
        long_transaction: from which on a transaction is told of.
        retention_ttl: that the workers have; 0 keeps jobs for ever.
        host_clock: seconds since 1970 by this host.
    """

    connection: Connection
    job: Table
    long_transaction: timedelta = timedelta(minutes=5)
    retention_ttl: timedelta = WorkerSettings.retention_ttl
    host_clock: Callable[[], float] = time.time

    @property
    def is_postgresql(self) -> bool:
        return self.connection.dialect.name == "postgresql"

    @property
    def place(self) -> str:
        """The job table as SQL names it."""
        return self.connection.dialect.identifier_preparer.format_table(self.job)

    def rows(self, query: str, **parameters: object) -> list[dict[str, Any]]:
        return [dict(row) for row in self.connection.execute(sa.text(query), parameters).mappings()]

    def row(self, query: str, **parameters: object) -> dict[str, Any]:
        [row] = self.rows(query, **parameters)
        return row

    def value(self, query: str, **parameters: object) -> Any:
        return self.connection.execute(sa.text(query), parameters).scalar()

    def lockers(self) -> list[dict[str, Any]]:
        """Who keeps claims out of the job table, as `standing.table_lockers` has it."""
        return [
            dict(row) for row in self.connection.execute(standing.table_lockers(), {"table": self.place}).mappings()
        ]

    def live_workers(self) -> list[dict[str, Any]]:
        """The workers that are to be believed, as `presence.workers` has them."""
        rows = self.connection.execute(presence.workers(self.job)).mappings()
        return [dict(row) for row in rows if row["is_live"]]


def long(seconds: float) -> str:
    """How long that is: ``12s``, ``1h5m``."""
    return format_duration(timedelta(seconds=round(abs(seconds)) if abs(seconds) >= 1 else round(abs(seconds), 1)))


def listed(names: Iterable[object]) -> str:
    """The first few of them, and how many more there are."""
    all_names = [str(each) for each in names]
    more = len(all_names) - NAMED
    return ", ".join(all_names[:NAMED]) + (f", and {more} more" if more > 0 else "")
