"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks import drains, enqueuing, latency, snapshot
from benchmarks.measuring import Row

ROWS: tuple[Row, ...] = (*drains.ROWS, *latency.ROWS, *enqueuing.ROWS, *snapshot.ROWS)
