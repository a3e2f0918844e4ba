"""Workers inside the test's own process."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from brooq_sa import JobBase, Worker, enqueue, enqueue_many
from brooq_sa.claims import Claim
from brooq_sa.events import Event, Events
from brooq_sa.store import Claimed
from databases import JOB, Database
from waiting import wait_until

E = TypeVar("E", bound=Event)

FAST: dict[str, Any] = {
    "workers": 4,
    "poll_interval": "20ms",
    "lease": "3s",
    "reaper_period": "100ms",
    "backoff_base": "0s",
    "backoff_max": "0s",
    "wake": False,
}
"""Settings under which nothing takes long."""


def job_class(handler: Callable[[Any, Any], Any], *, topic: str = "work", **options: Any) -> type[Any]:
    """A job class with a number, of a base and a table of its own, that `handler` runs."""

    class Jobs(JobBase):
        pass

    class Job(Jobs, topic=topic, **options):
        number: int = 0

    Job.handler(handler)
    return Job


def base_of(job_class: type[Any]) -> type[JobBase]:
    """The base that a job class was made under."""
    base: type[JobBase] = job_class.__bases__[0]
    return base


def put(db: Database, job: Any, **options: Any) -> uuid.UUID:
    """Enqueue a job in a transaction of its own; its id."""
    with db.engine.begin() as connection:
        return enqueue(connection, job, **options).id


def put_many(db: Database, jobs: list[Any]) -> list[uuid.UUID]:
    with db.engine.begin() as connection:
        return [each.id for each in enqueue_many(connection, jobs)]


@contextmanager
def working(db: Database, base: type[JobBase], **changes: Any) -> Iterator[Worker]:
    """A worker with fast settings that runs during the block."""
    worker = Worker(db.engine, base, **FAST | changes)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(grace="5s")


def work_off(db: Database, job_class: type[Any], **changes: Any) -> None:
    """Run a worker until no job waits or runs."""
    with working(db, base_of(job_class), **changes):
        wait_until(lambda: is_idle(db), what="every job having ended")


def is_idle(db: Database) -> bool:
    return not {"pending", "failed", "processing"} & set(db.states())


class Heard:
    """The events that were published, in order; subscribe it."""

    def __init__(self, events: Events | None = None) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()
        if events is not None:
            events.subscribe(self)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)

    def all(self, kind: type[E]) -> list[E]:
        """Those of one kind."""
        with self._lock:
            return [event for event in self._events if isinstance(event, kind)]

    def names(self) -> list[str]:
        with self._lock:
            return [type(event).__name__ for event in self._events]

    def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        """Those of one kind, once there are as many as wanted."""
        wait_until(lambda: len(self.all(kind)) >= count, what=f"{count} {kind.__name__}, only {self.names()}")
        return self.all(kind)


def bare_claim(kind: type[Any] = Claim, *, id: uuid.UUID | None = None, attempt: int = 1, **changes: Any) -> Any:
    """A claim that no database knows of."""
    claimed = Claimed(id or uuid.uuid4(), "work", '{"number":1}', attempt, 0, 0.5, None)
    given = {"worker": "w", "max_attempts": 3, "table": JOB, "open_session": refuse_session, "lease_ends": math.inf}
    return kind(claimed, **given | changes)


def refuse_session() -> Any:
    raise AssertionError("the session was opened, and nobody asked for it")
