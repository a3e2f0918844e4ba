"""Telling workers that there is something to look at, so that an idle queue starts a job within milliseconds.

A wake-up is a hint and never the only way that a job is found: a worker looks at every poll interval anyway.

* Across processes, on PostgreSQL, by NOTIFY in the enqueuing transaction, which is delivered when that commits and not
  at all if it rolls back. NOTIFY takes a lock for the whole server at commit, so a process sends a topic's no more
  often than every `SPACING`, and in a flood than every `FLOOD_SPACING`. A trickle of jobs wakes a worker each time; in
  a flood it is busy, and looks again by itself.
* Within a process, on both databases, as the transaction commits.

A worker that was woken, or has found jobs, looks again a little later (`LOOK_AGAIN`): for the jobs whose own wake-up
was spared, and since SQLAlchemy tells of a commit just before it is made. The jobs of a flood are less than `SPACING`
apart, so that each such look finds some, and is followed by another. A last look (`LAST_LOOK`) is for what another
worker has left.

A transaction that is to be prepared (two-phase commit) sends nothing: PostgreSQL prepares none that has notified.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from sqlalchemy import Connection, Table, TwoPhaseTransaction, event

SPACING = 0.02
"""Seconds between two notifications of one topic by one process."""

FLOOD = 4
"""How many notifications must have been spared since the last one for it to be a flood."""

FLOOD_SPACING = 0.2
"""Seconds between two notifications in a flood."""

LOOK_AGAIN = 0.03
"""Seconds after a wake-up to look once more; more than `SPACING`, which then covers the jobs in between."""

LAST_LOOK = FLOOD_SPACING + LOOK_AGAIN
"""Seconds after a wake-up to look for the last time: another worker may have taken a flood's jobs, but for its end."""

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


@dataclass(slots=True)
class _Sent:
    """A topic's last notification.

    Attributes:
        at: when it was sent; by the monotonic clock, like `spared_at`.
        spared_at: when one was last spared.
        spared: how many transactions have sent none since.
        spared_by: the last one's connection: what one transaction enqueues is seen together, and counts once.
    """

    at: float
    spared_at: float
    spared: int = 0
    spared_by: weakref.ref[object] | None = None


class _Limiter:
    """Says whether a topic's notification may be sent now. It counts those that were committed."""

    MOST = 1_000

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._lock = threading.Lock()

    def allows(self, name: str, topic: str, connection: object) -> bool:
        now = time.monotonic()
        with self._lock:
            last = self._sent.get((name, topic))
            if last is None:
                return True
            is_flood = last.spared >= FLOOD and now - last.spared_at < SPACING
            is_allowed = now - last.at >= (FLOOD_SPACING if is_flood else SPACING)
            if not is_allowed and (last.spared_by is None or last.spared_by() is not connection):
                last.spared, last.spared_at, last.spared_by = last.spared + 1, now, weakref.ref(connection)
            return is_allowed

    def count(self, name: str, topic: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._sent[name, topic] = _Sent(now, now)
            if len(self._sent) > self.MOST:  # topics may be made up without end
                self._sent = {each: last for each, last in self._sent.items() if now - last.at < FLOOD_SPACING}


class _Pending:
    """What a connection's transaction has to tell once it commits. One for each connection, kept as long as that."""

    def __init__(self, connection: Connection) -> None:
        self.notified: set[tuple[str, str]] = set()
        self.enqueued: set[Table] = set()
        self.canceled: set[tuple[Table, uuid.UUID]] = set()
        event.listen(connection, "commit", self._tell)
        event.listen(connection, "commit_twophase", self._tell)
        event.listen(connection, "rollback", self._forget)
        event.listen(connection, "rollback_twophase", self._forget)
        event.listen(connection, "rollback_savepoint", self._forget_notified)

    def _tell(self, *_: Any) -> None:
        for name, topic in self.notified:
            _limiter.count(name, topic)
        enqueued, canceled = list(self.enqueued), list(self.canceled)
        self._forget()
        for table in enqueued:
            for ear in _listening(table):
                ear.jobs_enqueued()
        for table, job_id in canceled:
            for ear in _listening(table):
                ear.job_canceled(job_id)

    def _forget(self, *_: Any) -> None:
        self.notified.clear()
        self.enqueued.clear()
        self.canceled.clear()

    def _forget_notified(self, *_: Any) -> None:
        # A notification inside the savepoint is gone with it, and may have been what spared a later one.
        self.notified.clear()


_limiter = _Limiter()
_pending: weakref.WeakKeyDictionary[Connection, _Pending] = weakref.WeakKeyDictionary()
_ears: dict[str, weakref.WeakSet[Ear]] = {}
_lock = threading.Lock()


def can_notify(connection: Connection) -> bool:
    """Whether the connection's transaction may send notifications."""
    return connection.dialect.name == "postgresql" and not isinstance(connection.get_transaction(), TwoPhaseTransaction)


def may_notify(connection: Connection, table: Table, topic: str) -> bool:
    """Whether an enqueue of this topic is to send a notification, and not to leave it to one just sent."""
    name = channel(table)
    if not can_notify(connection) or not _limiter.allows(name, topic, connection):
        return False
    notified = _pending_on(connection).notified  # made only for who sends: it listens to the connection's events
    if (name, topic) in notified:
        return False
    notified.add((name, topic))
    return True


def listen(table: Table, ear: Ear) -> None:
    """Tell `ear` of what this process commits to the table, for as long as it lives or until `unlisten`."""
    with _lock:
        _ears.setdefault(channel(table), weakref.WeakSet()).add(ear)


def unlisten(table: Table, ear: Ear) -> None:
    with _lock:
        _ears.get(channel(table), weakref.WeakSet()).discard(ear)


def tell_of_jobs(connection: Connection, table: Table) -> None:
    """As the connection's transaction commits, tell the workers of this process that there are new jobs."""
    if _listening(table):
        _pending_on(connection).enqueued.add(table)


def tell_of_cancel(connection: Connection, table: Table, job_id: uuid.UUID) -> None:
    """As the connection's transaction commits, tell the workers of this process that the job is canceled."""
    if _listening(table):
        _pending_on(connection).canceled.add((table, job_id))


def _listening(table: Table) -> list[Ear]:
    if not _ears:
        return []
    with _lock:
        return list(_ears.get(channel(table), ()))


def _pending_on(connection: Connection) -> _Pending:
    with _lock:
        pending = _pending.get(connection)
        if pending is None:
            pending = _pending[connection] = _Pending(connection)
        return pending
