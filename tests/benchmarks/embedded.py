"""SQLite: everybody with a write-ahead log and ``synchronous = FULL``, so that a commit outlives a power cut."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from benchmarks.bench import Bench
from benchmarks.drains import drain
from benchmarks.jobs import PAYLOAD, Mail, Noop, NoopInThread
from benchmarks.measuring import Demand, Figures, Medians, Row, Side
from benchmarks.queues import topic_of
from brooq_sa import enqueue, enqueue_many, migrations, sqlite


class Embedded:
    """Our queue in a new file."""

    def __init__(self, bench: Bench, job: type[Mail]) -> None:
        self._bench = bench
        self._job = job
        self.database = str(bench.new_file(".sqlite"))
        self._engine = new_engine(Path(self.database))

    def empty(self) -> None:
        """A new file is empty."""

    def enqueue(self, count: int) -> None:
        with Session(self._engine) as session, session.begin():
            enqueue_many(session, [self._job() for _ in range(count)])

    def worker(self) -> list[str]:
        return self._bench.ours(f"sqlite:///{self.database}", [topic_of(self._job)], slots=self._bench.slots)

    def left(self) -> int:
        with closing(sqlite3.connect(self.database)) as connection:
            return int(connection.execute("SELECT count(*) FROM job WHERE state <> 'done'").fetchone()[0])


def new_engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}")
    sqlite.configure(engine)
    migrations.upgrade(engine)
    return engine


def draining(job: type[Mail]) -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        queue, count = Embedded(bench, job), bench.sizes.embedded
        queue.enqueue(count)
        return drain(bench, queue, count, is_calm=False)

    return measure


def theirs(peer: str) -> Callable[[Bench], Figures]:
    """A peer that takes and runs jobs in a bare loop of one process, without a worker around it: at its best."""

    def measure(bench: Bench) -> Figures:
        figures: Figures = json.loads(bench.peers.run(peer, str(bench.new_file(".sqlite")), str(bench.sizes.embedded)))
        return figures

    return measure


def enqueuing(bench: Bench) -> Figures:
    """Transactions a second, each of which enqueues one job through a session."""
    engine, count = new_engine(bench.new_file(".sqlite")), bench.sizes.transactions
    began = time.perf_counter()
    for _ in range(count):
        with Session(engine) as session:
            enqueue(session, Noop())
            session.commit()
    taken = time.perf_counter() - began
    engine.dispose()
    return {"rate": count / taken}


def inserting(bench: Bench) -> Figures:
    """The same rows by bare sqlite3, into the same table."""
    path, count = bench.new_file(".sqlite"), bench.sizes.transactions
    new_engine(path).dispose()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        began = time.perf_counter()
        for _ in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO job (id, topic, payload) VALUES (?, ?, ?)", (uuid7().hex, "noop", PAYLOAD))
            connection.execute("COMMIT")
        return {"rate": count / (time.perf_counter() - began)}


OURS = Side("brooq-sa, async def", draining(Noop))
OURS_THREADS = Side("brooq-sa, def in threads", draining(NoopInThread))
HUEY = Side("huey", theirs("huey"), "huey")
LITEQUEUE = Side("litequeue", theirs("litequeue"), "litequeue")
ENQUEUING = Side("brooq-sa, enqueue", enqueuing)
INSERTING = Side("sqlite3, INSERT", inserting)


def _of_the_better(of: Medians) -> float:
    return max(of(OURS.name), of(OURS_THREADS.name)) / max(of(HUEY.name), of(LITEQUEUE.name))


ROWS = (
    Row(
        "sqlite-drain",
        "sqlite",
        "SQLite, one process: drain, against the better of huey and litequeue with the same durability",
        (OURS, OURS_THREADS, HUEY, LITEQUEUE),
        (Demand("of the better", _of_the_better, 2.0, 4.0),),
        chart="rate",
    ),
    Row(
        "sqlite-enqueue",
        "sqlite",
        "SQLite: an enqueue in a transaction of its own, against bare sqlite3",
        (ENQUEUING, INSERTING),
        (Demand("of sqlite3", lambda of: of.ratio(ENQUEUING.name, INSERTING.name), 0.5, 0.8),),
        chart="rate",
    ),
)
