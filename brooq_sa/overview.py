"""What goes on in a table, at a glance and at a bounded cost: what `brooq-sa top` shows."""

from __future__ import annotations

import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, select

from .depths import Snapshot, look
from .functions import now
from .progress import Progress, read
from .statements import pause, presence, recent
from .states import State

ENDED = 2_000
"""How many of the jobs that ended last are looked at."""

WAITING = 2_000
"""Among how many that wait, failed ones are looked for."""

RUNNING = 200
"""How many of the jobs that run are looked at."""

TROUBLED = 50
"""How many dead, canceled and failed jobs are listed of each."""

RATE_WINDOW = 60.0
"""Seconds over which a rate is taken, unless more than `ENDED` jobs ended in them."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        counts: by state; above 10,000 of a kind they are estimates, or on SQLite the least that it can be.
        oldest: seconds for which its oldest due job has been due; None if none is.
        rate: jobs that ended each second, over the last minute.
        p95: seconds from ready to the end that 95 of 100 of its lately done jobs stayed within; None if none was.
        paused: why, or by whom; None if it is not.
    """

    topic: str
    counts: dict[str, int]
    oldest: float | None
    rate: float
    p95: float | None
    paused: str | None

    @property
    def ready(self) -> int:
        return self.counts[State.PENDING] + self.counts[State.FAILED]


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        seconds: since its state changed.
        lease_left: of a running one, in seconds.
        progress: how far its last attempt has come, if that has told.
    """

    id: uuid.UUID
    topic: str
    state: str
    attempts: int
    worker: str | None
    error: str | None
    seconds: float
    lease_left: float | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One live worker.

    Attributes:
        running: how many of its slots are taken, by the jobs that it holds; if more than `RUNNING` jobs run in all, as
            many as it has announced itself.
        unseen: seconds since it announced itself.
    """

    id: str
    host: str
    pid: int
    version: str
    topics: list[str]
    slots: int
    running: int
    unseen: float


@dataclass(frozen=True, slots=True)
class Overview:
    """What a table looked like at one moment; topics with the longest wait first.

    Attributes:
        at: by the database's clock.
        troubled: dead and canceled jobs that ended last, and failed ones that wait.
        is_estimated: whether some counts are estimates.
    """

    at: datetime
    topics: list[Topic]
    workers: list[WorkerLine]
    running: list[Job]
    troubled: list[Job]
    is_estimated: bool


def overview(connection: Connection, job: Table) -> Overview:
    """Look once, in the connection's transaction."""
    snapshot = look(connection, job)
    running = _rows(connection, recent.running(job), RUNNING)
    ended = _rows(connection, recent.ended(job), ENDED)
    failed = _rows(connection, recent.failed(job), WAITING)
    pauses = {row.topic: row for row in connection.execute(pause.paused(job))}
    unsuccessful = [row for row in ended if row["state"] != State.DONE]
    return Overview(
        at=connection.execute(select(now())).scalar_one(),
        topics=_topics(snapshot, ended, pauses),
        workers=_workers(connection, job, running),
        running=[_job(row) for row in running],
        troubled=[_job(row) for row in (*unsuccessful[:TROUBLED], *failed[:TROUBLED])],
        is_estimated=bool(snapshot.estimated),
    )


def _rows(connection: Connection, statement: Any, most: int) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(statement, {"most": most}).mappings()]


def _topics(snapshot: Snapshot, ended: Sequence[dict[str, Any]], pauses: dict[str, Any]) -> list[Topic]:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(map(str, State), 0))
    for (topic, state), count in snapshot.jobs.items():
        counts[topic][state] = count
    rates, durations = _rates(ended), defaultdict(list)
    for row in ended:
        if row["state"] == State.DONE:
            durations[row["topic"]].append(max(0.0, float(row["took"])))
    topics = [
        Topic(
            topic=name,
            counts=counts[name],
            oldest=snapshot.oldest.get(name),
            rate=rates.get(name, 0.0),
            p95=_p95(durations[name]),
            paused=_why(pauses[name]) if name in pauses else None,
        )
        for name in {*counts, *snapshot.waiting, *pauses}
    ]
    return sorted(topics, key=lambda each: (-(each.oldest or 0.0), -each.ready, each.topic))


def _rates(ended: Sequence[dict[str, Any]]) -> dict[str, float]:
    window = RATE_WINDOW
    if len(ended) == ENDED:
        window = min(window, max(0.001, float(ended[-1]["seconds"])))
    lately = Counter(row["topic"] for row in ended if row["seconds"] <= window)
    return {topic: count / window for topic, count in lately.items()}


def _p95(durations: list[float]) -> float | None:
    """The nearest rank."""
    return sorted(durations)[math.ceil(0.95 * len(durations)) - 1] if durations else None


def _why(row: Any) -> str:
    return str(row.reason or row.paused_by or "")


def _workers(connection: Connection, job: Table, running: Sequence[dict[str, Any]]) -> list[WorkerLine]:
    names = ("id", "host", "pid", "version", "topics", "slots")
    held = Counter(row["worker"] for row in running) if len(running) < RUNNING else None
    return [
        WorkerLine(
            **{name: row[name] for name in names},
            # It may hold more than it has slots: some wait in it for the next that comes free.
            running=row["running"] if held is None else min(row["slots"], held[row["id"]]),
            unseen=float(row["unseen"]),
        )
        for row in connection.execute(presence.workers(job)).mappings()
        if row["is_live"]
    ]


def _job(row: dict[str, Any]) -> Job:
    left = row.get("lease_left")
    names = ("id", "topic", "state", "attempts", "worker", "error")
    return Job(
        **{name: row[name] for name in names},
        seconds=float(row["seconds"]),
        lease_left=None if left is None else float(left),
        progress=read(row["progress"], row["attempts"]),
    )
