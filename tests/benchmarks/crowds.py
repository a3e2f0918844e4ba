"""A table that is large: what is in the way of a claim, or waits behind a drain, must not slow it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks.bench import Bench
from benchmarks.drains import STRAGGLERS, full, watch
from benchmarks.jobs import PAYLOAD, Noop
from benchmarks.measuring import Demand, Figures, Row, Side
from benchmarks.queues import Ours, Queue

_FILL = """
    INSERT INTO job (id, topic, payload, state, priority, available_at)
    SELECT (lpad(to_hex(1700000000000 + g), 12, '0') || '7000' || substr(md5(concat(g, %(topic)s::text)), 1, 16))::uuid,
        %(topic)s, %(payload)s::jsonb, %(state)s, %(priority)s, now() + %(due)s::interval + g * interval '1 us'
    FROM generate_series(%(first)s, %(first)s + %(count)s - 1) g
"""


def fill(
    connection: psycopg.Connection[tuple[Any, ...]],
    count: int,
    topic: str,
    *,
    state: str = "pending",
    priority: int = 0,
    due: str = "-1 hour",
    first: int = 1,
) -> None:
    """Put jobs by one statement, their ids in the order of enqueuing, as ours are.

    Args:
        first: number of the first, from which the ids are made.
    """
    given = {"first": first, "count": count, "topic": topic, "payload": PAYLOAD, "state": state}
    connection.execute(_FILL, {**given, "priority": priority, "due": due})


class Crowded(Ours):
    """Jobs in a table with three crowds: ready ones of another topic, later ones that would go first, done ones."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, Noop, "crowded")
        self._crowd = bench.sizes.crowd

    def empty(self) -> None:
        with self._bench.server.connect(self.database) as connection:
            if not _has_jobs(connection):
                fill(connection, self._crowd, "other")
                fill(connection, self._crowd, "noop", priority=-10, due="1 day")
                fill(connection, self._crowd, "noop", state="done", first=self._crowd + 1)


class Deep(Ours):
    """Jobs with as many again of the same topic as there are in a crowd, which wait behind those that are drained."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, Noop, "deep")
        self._crowd = bench.sizes.crowd

    def empty(self) -> None:
        with self._bench.server.connect(self.database) as connection:
            if not _has_jobs(connection):
                fill(connection, self._crowd, "noop")


def _has_jobs(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    return connection.execute("SELECT 1 FROM job LIMIT 1").fetchone() is not None


def beginning(bench: Bench, queue: Queue, count: int) -> Figures:
    """The rate at which the first `count` handlers begin, whatever comes after them."""
    full(bench, queue, count)
    bench.calm(queue.database)
    with bench.process(queue.worker()) as worker:
        curve = watch([worker], count - STRAGGLERS)
        return {"rate": curve[-1][1] / (curve[-1][0] - worker.first), "seconds": time.time() - worker.first}


def alone(bench: Bench) -> Figures:
    return beginning(bench, Ours(bench, Noop), bench.sizes.drained)


def among(queue: Callable[[Bench], Queue]) -> Callable[[Bench], Figures]:
    return lambda bench: beginning(bench, queue(bench), bench.sizes.drained)


ALONE = Side("nothing else in the table", alone)
CROWDED = Side("three crowds in the table", among(Crowded))
DEEP = Side("a crowd waiting behind", among(Deep))

ROWS = (
    Row(
        "crowded",
        "crowds",
        "claims with 1,000,000 ready of another topic, 1,000,000 for later at a higher priority and 1,000,000 done",
        (ALONE, CROWDED),
        (Demand("of an empty table's rate", lambda of: of.ratio(CROWDED.name, ALONE.name), 0.9, 1.0),),
        chart="rate",
    ),
    Row(
        "behind",
        "crowds",
        "drain of the first jobs with 1,000,000 waiting behind",
        (ALONE, DEEP),
        (Demand("of the rate with none", lambda of: of.ratio(DEEP.name, ALONE.name), 0.9, 1.0),),
        chart="rate",
    ),
)
