"""How a worker is watched from outside: metrics, and pages that say how it is.

Nothing of this is imported, opened or counted unless it is asked for.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from ..depths import Depths
from ..endpoint import Answer, Endpoint
from ..events import Event, Events, HandlerHung, LateOutcomeRefused
from ..exc import SettingsError
from ..jobs import JobBase
from ..kinds import Registry
from ..log import get_logger
from ..observer import Observer
from .health import Health
from .held import Held
from .loop import Loop

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..metrics import Activity

REFRESH = 5.0
"""Seconds between two times that gauges are set which other processes read."""


class Observation:
    """The metrics of a worker, and the endpoint where they are to be had.

    Args:
        http_addr: where to serve; None is nowhere.
        registry: where the metrics are; None is prometheus-client's own.

    Attributes:
        observer: to be told what events do not tell.
        loops: the threads that this needs.
        address: where it serves, once it does.
    """

    def __init__(
        self,
        engine: Engine,
        base: type[JobBase],
        events: Events,
        *,
        topics: Sequence[str],
        workers: int,
        held: Held,
        worker: str,
        http_addr: str | None,
        registry: CollectorRegistry | None,
    ) -> None:
        from ..metrics import Families, Source, WorkerMetrics, check_folder, count_enqueues, is_multiprocess

        check_folder()
        self.families = Families.of(registry)
        known: Registry = base.registry
        counting = WorkerMetrics(self.families, known, topics)
        self.observer: Observer = counting
        self._counting = [
            events.subscribe(counting.hear),
            events.subscribe(self._note_hung),
        ]
        self._count_enqueues: Callable[[], Callable[[], None]] = lambda: count_enqueues(known, registry)
        self._topics, self._workers, self._held, self._worker = topics, workers, held, worker
        self._hung: set[Any] = set()
        self._lock = threading.Lock()
        self._depths = Depths(engine, base.__table__)
        # A schema_translate_map makes of one name the tables of several tenants.
        tenant = engine.get_execution_options().get("schema_translate_map")
        key = (engine.url.render_as_string(hide_password=False), f"{base.__table__.fullname} {tenant}")
        self._source = Source(key, self._depths, known)
        self.loops = [Loop("metrics", self._depths.turn, worker=worker, observer=self.observer)]
        if is_multiprocess():
            self.loops.append(Loop("gauges", self._refresh, worker=worker))
        self._health: Health | None = None
        self._parts: Sequence[Loop] = ()
        self.address: str | None = None
        self._http_addr = http_addr
        pages = {"/metrics": self._show_metrics, "/healthz": self._show_alive, "/readyz": self._show_ready}
        self._endpoint = (
            Endpoint(http_addr, pages, at_once=("/healthz", "/readyz"), is_shared=is_multiprocess(), worker=worker)
            if http_addr
            else None
        )
        self._is_stopping = False

    def open(self, health: Health, parts: Sequence[Loop]) -> None:
        """Begin to serve, and to be seen in the metrics.

        Raises:
            SettingsError: the address cannot be had.
        """
        self._health, self._parts = health, parts
        if self._endpoint is not None:
            try:
                self.address = self._endpoint.open()
            except OSError as error:
                fault = (
                    f"http_addr (HTTP_ADDR): {self._http_addr} cannot be had: {error.strerror or error}. Give another"
                    " host:port, or 'off' to do without metrics and health pages."
                )
                raise SettingsError([fault]) from error
            get_logger().info("endpoint_opened", address=self.address, worker=self._worker)
        self._counting.append(self._count_enqueues())
        self.families.sources.append(self._source)
        self.families.activities.append(self.activity)

    def stopping(self) -> None:
        """From now on the worker is not ready."""
        self._is_stopping = True

    def close_loops(self) -> None:
        """Let the loops end."""
        self._depths.close()

    def close(self) -> None:
        """Stop serving, and leave the metrics: counters stay, gauges go to 0."""
        for stop_counting in self._counting:
            stop_counting()
        if self._source in self.families.sources:
            self.families.sources.remove(self._source)
        if self.activity in self.families.activities:
            self.families.activities.remove(self.activity)
            self.families.forget(self._topics, [loop.name for loop in self._parts])
        if self._endpoint is not None:
            self._endpoint.close()
        self._depths.dispose()

    def activity(self) -> Activity:
        """What the worker does at this moment."""
        from ..metrics import Activity

        busy = Counter(dict.fromkeys(self._topics, 0))
        done, total = dict.fromkeys(self._topics, 0.0), dict.fromkeys(self._topics, 0.0)
        claimed = 0
        for claim in self._held.snapshot().values():
            if claim._is_hung or claim._has_ended:
                continue
            if claim._attempt_ends < float("inf"):
                busy[claim.topic] += 1
                if (told := claim._progress) is not None and told.total is not None:
                    done[claim.topic] += told.done
                    total[claim.topic] += told.total
            else:
                claimed += 1
        running = busy.total()
        slots = {
            "busy": running,
            "claimed": claimed,
            "free": max(0, self._workers - running),
            "hung": len(self._hung),
        }
        return Activity(busy, slots, {loop.name: loop.trouble is None for loop in self._parts}, done, total)

    def _note_hung(self, event: Event) -> None:
        with self._lock:
            match event:
                case HandlerHung():
                    self._hung.add((event.id, event.attempt))
                case LateOutcomeRefused():
                    self._hung.discard((event.id, event.attempt))
                case _:
                    pass

    def _refresh(self) -> float:
        self.families.refresh()
        return REFRESH

    # Pages.

    def _show_metrics(self, headers: Any) -> Answer:
        content_type, text = self.families.exposition(headers.get("accept", ""))
        return Answer(HTTPStatus.OK, text, content_type)

    def _show_alive(self, _headers: Any) -> Answer:
        return Answer(HTTPStatus.OK, b"alive\n")

    def _show_ready(self, _headers: Any) -> Answer:
        faults = self._faults()
        if not faults:
            return Answer(HTTPStatus.OK, b"ready\n")
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{fault}\n" for fault in faults).encode())

    def _faults(self) -> list[str]:
        if self._health is None:
            return ["the worker has not been started"]
        return ["the worker is stopping"] if self._is_stopping else self._health.unready()
