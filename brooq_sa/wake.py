"""Telling workers that there is something to look at, so that an idle queue starts a job within milliseconds.

A wake-up is a hint and never the only way that a job is found: a worker looks at every poll interval anyway.

* Across processes, on PostgreSQL, by NOTIFY in the enqueuing transaction, which is delivered when that commits and not
  at all if it rolls back. NOTIFY takes a lock for the whole server at commit, so a process sends a topic's no more
  often than every `SPACING`. A trickle of jobs wakes a worker each time; in a flood it is busy, and looks again by
  itself.
* Within a process, on both databases, after the commit.

A worker that was woken looks again a little later (`LOOK_AGAIN`), for the jobs whose own wake-up was spared.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
import weakref
from functools import cache
from typing import Protocol

from sqlalchemy import Connection, Table, event

SPACING = 0.05
"""Seconds between two notifications of one topic by one process."""

LOOK_AGAIN = 0.075
"""Seconds after a wake-up to look once more; more than `SPACING`, which then covers the jobs in between."""

JOBS = "jobs:"
"""Before the topic, in a notification of new jobs."""

CANCELED = "canceled:"
"""Before the id, in a notification of a canceled job."""

_MAX_NAME = 63


@cache
def channel(table: Table) -> str:
    """The NOTIFY channel of a job table; PostgreSQL takes names of 63 bytes at the most."""
    name = f"brooq.{table.fullname}"
    return name if len(name.encode()) <= _MAX_NAME else f"brooq.{hashlib.sha256(name.encode()).hexdigest()[:40]}"


class Ear(Protocol):
    """A worker of this process, as far as wake-ups go."""

    def jobs_enqueued(self) -> None:
        """There may be new jobs."""

    def job_canceled(self, job_id: uuid.UUID) -> None:
        """The job has been canceled; its handler, if it is here, should hear of it."""


class _Limiter:
    """Says whether a topic's notification may be sent now."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def allows(self, name: str, topic: str) -> bool:
        now = time.monotonic()
        with self._lock:
            if now - self._sent.get((name, topic), -SPACING) < SPACING:
                return False
            self._sent[name, topic] = now
            return True


_limiter = _Limiter()
_ears: dict[str, weakref.WeakSet[Ear]] = {}
_ears_lock = threading.Lock()


def may_notify(table: Table, topic: str) -> bool:
    """Whether an enqueue of this topic is to send a notification, and not to leave it to one just sent."""
    return _limiter.allows(channel(table), topic)


def listen(table: Table, ear: Ear) -> None:
    """Tell `ear` of what this process commits to the table, for as long as it lives or until `unlisten`."""
    with _ears_lock:
        _ears.setdefault(channel(table), weakref.WeakSet()).add(ear)


def unlisten(table: Table, ear: Ear) -> None:
    with _ears_lock:
        _ears.get(channel(table), weakref.WeakSet()).discard(ear)


def _listening(table: Table) -> list[Ear]:
    with _ears_lock:
        return list(_ears.get(channel(table), ()))


def after_commit_of_jobs(connection: Connection, table: Table) -> None:
    """Once the connection's transaction commits, tell the workers of this process that there are new jobs."""
    if _listening(table):
        # The connection's own event, since a Session's "after_commit" comes at the end of a savepoint too.
        event.listen(connection, "commit", lambda _: _tell_of_jobs(table), once=True)


def after_commit_of_cancel(connection: Connection, table: Table, job_id: uuid.UUID) -> None:
    """Once the connection's transaction commits, tell the workers of this process that the job is canceled."""
    if _listening(table):
        event.listen(connection, "commit", lambda _: _tell_of_cancel(table, job_id), once=True)


def _tell_of_jobs(table: Table) -> None:
    for ear in _listening(table):
        ear.jobs_enqueued()


def _tell_of_cancel(table: Table, job_id: uuid.UUID) -> None:
    for ear in _listening(table):
        ear.job_canceled(job_id)
