"""Saying so when jobs wait that nobody here knows how to run."""

from __future__ import annotations

from ..engines import Reserved
from ..kinds import Registry
from ..log import get_logger
from ..store import JobStore


class UnknownTopics:
    """Names ready topics that have no handler in the registry, each once. Their jobs are left as they are.

    They may be another application's, or wait for a deploy to bring the class that was renamed; nothing of theirs is
    spent meanwhile.
    """

    def __init__(self, store: JobStore, reserved: Reserved, registry: Registry, *, worker: str) -> None:
        self._store = store
        self._reserved = reserved
        self._registry = registry
        self._worker = worker
        self._named: set[str] = set()

    def run(self) -> int:
        """Look; how many topics were named that had not been before."""
        with self._reserved.transaction() as connection:
            ready = self._store.ready_topics(connection)
        unknown = {topic for topic in ready if topic not in self._registry or self._registry[topic].handler is None}
        news = unknown - self._named
        self._named = unknown  # one that went away and comes back is news again
        if news:
            get_logger().warning("unknown_topics", topics=sorted(news), worker=self._worker)
        return len(news)
