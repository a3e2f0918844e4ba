"""Telling that jobs were enqueued, once their transaction is committed: what was rolled back never was."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, event

from .events import Hub, JobEnqueued, enqueues

_pending: weakref.WeakKeyDictionary[Connection, _Pending] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def tell(connection: Connection, facts: Iterable[JobEnqueued]) -> None:
    """Publish the facts as the connection's transaction commits, and not at all if it, or the savepoint, rolls back.

    Costs next to nothing while nobody has subscribed to `brooq_sa.events.enqueues`.
    """
    if not enqueues.is_heard:
        return
    with _lock:
        pending = _pending.get(connection)
        if pending is None:
            pending = _pending[connection] = _Pending(connection, enqueues)
    pending.add(facts, _savepoints(connection))


class _Pending:
    """What a connection's transaction has to tell once it commits, each fact with the savepoints that it is within.

    One for each connection, kept as long as that.
    """

    def __init__(self, connection: Connection, hub: Hub[JobEnqueued]) -> None:
        self._hub = hub
        self._facts: list[tuple[JobEnqueued, frozenset[str]]] = []
        event.listen(connection, "rollback_savepoint", self._drop)
        for name in ("commit", "commit_twophase"):
            event.listen(connection, name, self._tell)
        for name in ("rollback", "rollback_twophase"):
            event.listen(connection, name, self._forget)

    def add(self, facts: Iterable[JobEnqueued], within: frozenset[str]) -> None:
        self._facts.extend((fact, within) for fact in facts)

    def _drop(self, _connection: Connection, name: str, _context: Any) -> None:
        self._facts = [(fact, within) for fact, within in self._facts if name not in within]

    def _tell(self, *_: Any) -> None:
        facts = self._facts
        self._forget()
        for fact, _within in facts:
            self._hub.publish(fact)

    def _forget(self, *_: Any) -> None:
        self._facts = []


def _savepoints(connection: Connection) -> frozenset[str]:
    """The names of the savepoints that are open, which SQLAlchemy uses once each on a connection."""
    names, nested = [], connection.get_nested_transaction()
    while nested is not None:
        names.append(nested._savepoint)
        nested = nested._previous_nested
    return frozenset(names)
