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
    pending.add(facts)


class _Pending:
    """What a connection's transaction has to tell once it commits; its savepoints by how many facts were there before.

    One for each connection, kept as long as that.
    """

    def __init__(self, connection: Connection, hub: Hub[JobEnqueued]) -> None:
        self._hub = hub
        self._facts: list[JobEnqueued] = []
        self._before: dict[str, int] = {}
        event.listen(connection, "savepoint", self._mark)
        event.listen(connection, "rollback_savepoint", self._back)
        for name in ("commit", "commit_twophase"):
            event.listen(connection, name, self._tell)
        for name in ("rollback", "rollback_twophase"):
            event.listen(connection, name, self._forget)

    def add(self, facts: Iterable[JobEnqueued]) -> None:
        self._facts.extend(facts)

    def _mark(self, _connection: Connection, name: str) -> None:
        self._before[name] = len(self._facts)

    def _back(self, _connection: Connection, name: str, _context: Any) -> None:
        # A savepoint that is older than our first fact on this connection was not marked: nothing was before it.
        del self._facts[self._before.get(name, 0) :]

    def _tell(self, *_: Any) -> None:
        facts = self._facts
        self._forget()
        for fact in facts:
            self._hub.publish(fact)

    def _forget(self, *_: Any) -> None:
        self._facts = []
        self._before = {}
