"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks import crowds, drains, embedded, enqueuing, footprint, latency, snapshot, traces
from benchmarks.measuring import Row

ROWS: tuple[Row, ...] = (
    *drains.ROWS,
    *latency.ROWS,
    *enqueuing.ROWS,
    *crowds.ROWS,
    *snapshot.ROWS,
    *traces.ROWS,
    *footprint.ROWS,
    *embedded.ROWS,
)
