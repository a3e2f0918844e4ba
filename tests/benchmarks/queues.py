"""The queues that are drained: ours, and peers', behind one interface."""

from __future__ import annotations

import os
import time
from typing import Protocol

from sqlalchemy.orm import Session

from benchmarks.bench import START, Bench, scalar
from benchmarks.jobs import PAYLOAD, Mail
from brooq_sa import enqueue_many, pause, resume

AT_ONCE = 10_000

os.environ.setdefault("BENCH_PAYLOAD", PAYLOAD)  # peers' drivers read it there


class Queue(Protocol):
    """A queue in a database of its own.

    Attributes:
        database: its name.
    """

    database: str

    def empty(self) -> None:
        """No job is left, nor a trace of one."""

    def enqueue(self, count: int) -> None:
        """Put jobs, as fast as the queue's own API does it."""

    def worker(self) -> list[str]:
        """The command of a worker process at its best settings."""

    def left(self) -> int:
        """How many jobs are not done."""


class Ours:
    """Our own queue.

    Args:
        job: the class of what is enqueued and run.
        database: of the bench's.
    """

    def __init__(self, bench: Bench, job: type[Mail], database: str = "ours", *, slots: int | None = None) -> None:
        self._bench = bench
        self._job = job
        self.database = bench.database(database)
        self._slots = slots or bench.slots

    def empty(self) -> None:
        with self._bench.server.connect(self.database) as connection:
            connection.execute("TRUNCATE job, job_worker")

    def enqueue(self, count: int) -> None:
        with self._bench.engine(self.database) as engine, Session(engine) as session:
            for start in range(0, count, AT_ONCE):
                enqueue_many(session, [self._job() for _ in range(min(AT_ONCE, count - start))])
                session.commit()

    def worker(self) -> list[str]:
        return self._bench.ours(self._bench.server.url(self.database), [self._topic], slots=self._slots)

    def left(self) -> int:
        query = f"SELECT count(*) FROM job WHERE topic = '{self._topic}' AND state <> 'done'"
        with self._bench.server.connect(self.database) as connection:
            return int(scalar(connection, query))

    def pause(self) -> None:
        """No job is started until `resume_for`."""
        with self._bench.engine(self.database) as engine, Session(engine) as session:
            pause(session, self._job, self._topic)
            session.commit()

    def resume_for(self, workers: int) -> None:
        """Let jobs be started, once so many workers are there to start them."""
        deadline = time.monotonic() + START
        with self._bench.server.connect(self.database) as connection:
            while int(scalar(connection, "SELECT count(*) FROM job_worker")) < workers:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{START:g} seconds passed without {workers} workers")
                time.sleep(0.01)
        with self._bench.engine(self.database) as engine, Session(engine) as session:
            resume(session, self._job, self._topic)
            session.commit()

    @property
    def _topic(self) -> str:
        return topic_of(self._job)


def topic_of(job: type[Mail]) -> str:
    kind = job.__kind__
    assert kind is not None
    return kind.topic


class _Peer:
    """A peer, driven by its own program."""

    name: str
    traces: tuple[str, ...]
    jobs: str
    best: tuple[str, ...]

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        bench.peers.command(self.name)
        self.database = bench.database(self.name, self._install)

    def _install(self, database: str) -> None:
        self._bench.peers.run(self.name, "install", self._bench.server.address(database))

    def empty(self) -> None:
        with self._bench.server.connect(self.database) as connection:
            for table in self.traces:
                connection.execute(f"TRUNCATE {table}".encode())

    def enqueue(self, count: int) -> None:
        self._bench.peers.run(self.name, "enqueue", self._address, str(count))

    def worker(self) -> list[str]:
        return [*self._bench.peers.command(self.name), "worker", self._address, *self.best]

    def left(self) -> int:
        with self._bench.server.connect(self.database) as connection:
            return int(scalar(connection, f"SELECT count(*) FROM {self.jobs}"))

    @property
    def _address(self) -> str:
        return self._bench.server.address(self.database)


class Pgqueuer(_Peer):
    name = "pgqueuer"
    traces = ("pgqueuer", "pgqueuer_log", "pgqueuer_statistics")
    jobs = "pgqueuer"
    best = ("500",)


class Graphile(_Peer):
    name = "graphile-worker"
    traces = ("graphile_worker._private_jobs",)
    jobs = "graphile_worker._private_jobs"
    best = ("quick",)
