"""Metrics for Prometheus: a worker's facts, counted, and how deep its table is, looked at when somebody asks.

This is the one module that imports prometheus-client, and nothing imports it until metrics are wanted.

Every label is bounded: topics are those that the base declares, and all others together are `UNKNOWN`. A topic that the
base declares is always there, at 0 if it has no jobs; the series of others go when their jobs do.

Where the environment names a PROMETHEUS_MULTIPROC_DIR when the process starts, counters and gauges are kept in files
there (prometheus-client's multiprocess mode), and each process that serves metrics serves the sum of all; what the
processes that have died since had as gauges is left out.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from .depths import Depths, Snapshot
from .events import (
    CrashSuspect,
    Event,
    HandlerHung,
    Hub,
    JobCanceled,
    JobClaimed,
    JobDead,
    JobDone,
    JobEnqueued,
    JobFailed,
    JobLeaseLost,
    JobRequeued,
    enqueues,
)
from .exc import SettingsError
from .observer import Observer
from .states import State

UNKNOWN = "(unknown)"
"""The topic of all jobs whose topics the base does not declare. No declared topic can have this name."""

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

DURATIONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600)
"""Seconds, for what handlers take, which may be anything."""

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
"""Seconds from ready to started."""

TRIPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds that a statement of the worker takes."""

BATCHES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Jobs in one statement."""

LATENESS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds that a heartbeat is late."""

OUTCOMES = ("done", "failed", "dead", "canceled", "released")
SLOT_STATES = ("free", "busy", "claimed", "hung")


class Activity(NamedTuple):
    """What a worker is doing at one moment.

    Attributes:
        busy: how many handlers run, by topic.
        slots: how many there are, by state.
        parts: whether each part of the worker works, by its name.
        done, total: how far the running handlers have come that say so, and how far they have to go, by topic.
    """

    busy: Mapping[str, int]
    slots: Mapping[str, int]
    parts: Mapping[str, bool]
    done: Mapping[str, float]
    total: Mapping[str, float]


class Families:
    """The metrics of one registry, shared by all that register there."""

    _of: ClassVar[weakref.WeakKeyDictionary[CollectorRegistry, Families]] = weakref.WeakKeyDictionary()
    _lock: ClassVar = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry | None = None) -> Families:
        """Those of the registry; by default of prometheus-client's own."""
        registry = prometheus_client.REGISTRY if registry is None else registry
        with cls._lock:
            if registry not in cls._of:
                cls._of[registry] = cls(registry)
            return cls._of[registry]

    def __init__(self, registry: CollectorRegistry) -> None:
        self.activities: list[Callable[[], Activity]] = []
        self.sources: list[Source] = []
        self._registry = weakref.ref(registry)
        # Before the gauges that it sets: a registry collects in the order of registration.
        registry.register(_Refresh(self))

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(name, says, labels, registry=registry)

        def histogram(name: str, says: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(name, says, labels, buckets=tuple(buckets), registry=registry)

        def gauge(name: str, says: str, mode: Any, *labels: str) -> Gauge:
            return Gauge(name, says, labels, registry=registry, multiprocess_mode=mode)

        self.enqueued = counter("brooq_enqueued", "Jobs enqueued by this process, once committed.", "topic")
        self.claimed = counter("brooq_claimed", "Jobs taken by this worker.", "topic")
        self.settled = counter("brooq_settle", "Attempts whose outcome the database has accepted.", "topic", "outcome")
        self.duration = histogram(
            "brooq_attempt_duration_seconds",
            "How long handlers ran, of attempts that ended done, failed, dead or canceled.",
            DURATIONS,
            "topic",
        )
        self.waited = histogram(
            "brooq_ready_to_start_seconds", "From when a job was due to when its handler began.", WAITS, "topic"
        )
        self.lost = counter(
            "brooq_lease_lost", "Attempts that no longer held their job; nothing of them was written.", "topic"
        )
        self.hung = counter("brooq_hung_workers", "Handlers that did not stop when they were told to.", "topic")
        self.reaped = counter(
            "brooq_reaped", "Jobs that this worker took back from one that let its lease run out.", "topic"
        )
        self.suspects = counter(
            "brooq_crash_suspects", "Times that a job was reaped which had crashed a worker before.", "topic"
        )
        self.deleted = counter("brooq_retention_deleted", "Finished jobs deleted by this worker's retention.", "topic")
        self.batch = histogram(
            "brooq_batch_jobs", "Jobs in one statement of the worker: claim, settle or renew.", BATCHES, "move"
        )
        self.trip = histogram(
            "brooq_batch_duration_seconds", "Until the database had answered such a statement.", TRIPS, "move"
        )
        self.late = histogram("brooq_heartbeat_late_seconds", "How late heartbeats came.", LATENESS)
        self.errors = counter("brooq_database_errors", "Errors of the database, by the part that met them.", "part")
        self.busy = gauge("brooq_worker_busy", "Handlers that run at the moment.", "livesum", "topic")
        self.done = gauge(
            "brooq_worker_progress_done",
            "How much is done of what running handlers say that they have to do, in their units.",
            "livesum",
            "topic",
        )
        self.total = gauge(
            "brooq_worker_progress_expected",
            "How much running handlers say that they have to do, in their units.",
            "livesum",
            "topic",
        )
        self.slots = gauge(
            "brooq_worker_slots",
            "Slots: free, busy, claimed (a job waits for its slot to begin), hung (given up, and replaced).",
            "livesum",
            "state",
        )
        self.part = gauge(
            "brooq_worker_part_up", "1 if this part of the worker reaches the database, 0 if not.", "livemin", "part"
        )
        self.enqueues = _Enqueues(self.enqueued)
        self.depths = DepthCollector(self.sources)
        registry.register(self.depths)

    @property
    def registry(self) -> CollectorRegistry:
        found = self._registry()
        assert found is not None  # noqa: S101 - whoever has these metrics came by their registry
        return found

    def refresh(self) -> None:
        """Set the gauges to what the workers do now."""
        busy: Tally[str] = Tally()
        done: dict[str, float] = {}
        total: dict[str, float] = {}
        slots: Tally[str] = Tally(dict.fromkeys(SLOT_STATES, 0))
        parts: dict[str, bool] = {}
        for activity in list(self.activities):
            now = activity()
            busy.update(now.busy)
            for sums, amounts in ((done, now.done), (total, now.total)):
                for topic, amount in amounts.items():
                    sums[topic] = sums.get(topic, 0.0) + amount
            slots.update(now.slots)
            for part, is_up in now.parts.items():
                parts[part] = is_up and parts.get(part, True)
        for topic, count in busy.items():
            self.busy.labels(topic).set(count)
            self.done.labels(topic).set(done.get(topic, 0.0))
            self.total.labels(topic).set(total.get(topic, 0.0))
        for state, count in slots.items():
            self.slots.labels(state).set(count)
        for part, is_up in parts.items():
            self.part.labels(part).set(is_up)

    def forget(self, topics: Iterable[str], parts: Iterable[str]) -> None:
        """Leave no gauge where it was when a worker stopped, but for what other workers of this process have."""
        for topic in topics:
            for running in (self.busy, self.done, self.total):
                running.labels(topic).set(0)
        if not is_multiprocess():  # there, the files of a process go when it ends
            for part in parts:
                with suppress(KeyError):  # never collected
                    self.part.remove(part)
        self.refresh()

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """The content type and text of all metrics there are, as a scraper accepts them."""
        encode, content_type = _encoder(accept)
        if not is_multiprocess():
            return content_type, encode(self.registry)
        self.refresh()
        folder = os.environ[MULTIPROCESS]
        forget_the_dead(folder)
        whole = CollectorRegistry()
        MultiProcessCollector(whole, folder)  # type: ignore[no-untyped-call]
        whole.register(self.depths)
        return content_type, encode(whole)


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except Exception:  # noqa: BLE001 - prometheus-client raises at a version that is no number; anybody may ask for one
        return choose_encoder("")


def is_multiprocess() -> bool:
    """Whether metrics are kept in files that several processes share."""
    return bool(os.environ.get(MULTIPROCESS))


def check_folder() -> None:
    """Refuse a folder that no file can be made in.

    Raises:
        SettingsError: it is not there, or not to be written to.
    """
    folder = os.environ.get(MULTIPROCESS)
    if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        fault = "is no folder that this process may write to"
        raise SettingsError([f"{MULTIPROCESS}: {folder!r} {fault}. Make it, empty, or unset the variable."])


def forget_the_dead(folder: str) -> None:
    """Remove the gauges of processes that are no more."""
    for path in Path(folder).glob("gauge_live*_*.db"):
        found = re.search(r"_(\d+)\.db$", path.name)
        if found and not _is_alive(int(found[1])):
            with suppress(FileNotFoundError):  # another process was quicker
                mark_process_dead(int(found[1]), folder)  # type: ignore[no-untyped-call]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Whether it has ended, and its parent has not asked how: nobody does in many a container."""
    try:
        said = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system than Linux, or gone by now
        return False
    # The state follows the program's name, which is in parentheses and may have some in it: proc_pid_stat(5).
    return said.rpartition(")")[2].split()[:1] in (["Z"], ["X"])


class _Refresh:
    """A collector that collects nothing, and sets gauges in time for those that do."""

    def __init__(self, families: Families) -> None:
        self._families = weakref.ref(families)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        if (families := self._families()) is not None:
            families.refresh()
        return iter(())


class Source(NamedTuple):
    """A table to look at, and the topics that have series of their own."""

    key: tuple[str, str]
    depths: Depths
    known: Collection[str]


class DepthCollector:
    """How deep the tables are. Each table is looked at once, however many workers of this process share it."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def describe(self) -> list[Metric]:
        """Nothing, so that registering it asks no database."""
        return []

    def collect(self) -> Iterator[Metric]:
        tables: dict[tuple[str, str], Source] = {}
        for source in list(self._sources):
            known = {*source.known, *(tables[source.key].known if source.key in tables else ())}
            tables[source.key] = source._replace(known=known)
        looks = [
            (look, source.known)
            for source in tables.values()
            if (look := source.depths.current(source.known)) is not None
        ]
        return _depth_families(looks) if looks else iter(())


def _depth_families(looks: list[tuple[Snapshot, Collection[str]]]) -> Iterator[Metric]:
    yield _by_topic_and_state(looks)
    yield _oldest(looks)
    estimated = GaugeMetricFamily(
        "brooq_jobs_estimated",
        "1 if some brooq_jobs of this state are estimates: more than are counted.",
        labels=["state"],
    )
    for state in State:
        estimated.add_metric([state], any(state in look.estimated for look, _ in looks))
    yield estimated

    def whole(name: str, says: str, value: float) -> Metric:
        return GaugeMetricFamily(name, says, value=value)

    unknown = sum(len(look.waiting - {*known}) for look, known in looks)
    yield whole(
        "brooq_unknown_topics", "Topics with waiting jobs that the base of this worker does not declare.", unknown
    )
    yield whole(
        "brooq_depths_duration_seconds",
        "How long the last look at the table took.",
        sum(look.seconds for look, _ in looks),
    )
    of_server = [look for look, _ in looks if look.oldest_transaction is not None]
    if of_server:
        yield whole("brooq_table_live_rows", "PostgreSQL's estimate.", sum(look.rows or 0 for look in of_server))
        yield whole(
            "brooq_table_dead_rows",
            "PostgreSQL's estimate of rows that wait to be vacuumed.",
            sum(look.dead_rows or 0 for look in of_server),
        )
        yield whole(
            "brooq_table_size_bytes", "Of the table with its indexes.", sum(look.size or 0 for look in of_server)
        )
        yield whole(
            "brooq_oldest_transaction_age_seconds",
            "Since the oldest transaction of the database began, as far as this role may see; it holds vacuum back.",
            max(look.oldest_transaction or 0.0 for look in of_server),
        )


def _by_topic_and_state(looks: list[tuple[Snapshot, Collection[str]]]) -> Metric:
    family = GaugeMetricFamily(
        "brooq_jobs",
        "Jobs in the table. Counted up to some 10,000 each that wait, run or have ended; above that an estimate on"
        " PostgreSQL, and on SQLite the least that it can be. See brooq_jobs_estimated.",
        labels=["topic", "state"],
    )
    counts: Tally[tuple[str, State]] = Tally()
    for look, known in looks:
        counts.update(dict.fromkeys(((topic, state) for topic in known for state in State), 0))
        for (topic, state), count in look.jobs.items():
            counts[topic if topic in known else UNKNOWN, state] += count
    for (topic, state), count in sorted(counts.items()):
        family.add_metric([topic, state], count)
    return family


def _oldest(looks: list[tuple[Snapshot, Collection[str]]]) -> Metric:
    family = GaugeMetricFamily(
        "brooq_ready_oldest_age_seconds",
        "For how long the oldest due job has been due; 0 if none is.",
        labels=["topic"],
    )
    ages: dict[str, float] = {}
    for look, known in looks:
        for topic in known:
            ages.setdefault(topic, 0.0)
        for topic, age in look.oldest.items():
            name = topic if topic in known else UNKNOWN
            ages[name] = max(age, ages.get(name, 0.0))
    for topic, age in sorted(ages.items()):
        family.add_metric([topic], age)
    return family


class _Enqueues:
    """Counts each enqueued job once, however many in this process want it counted."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._lock = threading.Lock()
        self._known: dict[Hub[JobEnqueued], tuple[Collection[str], ...]] = {}
        self._unsubscribe: dict[Hub[JobEnqueued], Callable[[], None]] = {}

    def add(self, known: Collection[str], hub: Hub[JobEnqueued]) -> Callable[[], None]:
        """Count what the hub tells from now on, with series for these topics too; the answer ends that."""
        for topic in known:
            self._counter.labels(topic)
        with self._lock:
            self._known[hub] = (*self._known.get(hub, ()), known)
            if hub not in self._unsubscribe:
                self._unsubscribe[hub] = hub.subscribe(lambda event: self._count(event, hub))
        is_over = threading.Event()

        def end() -> None:
            if not is_over.is_set():
                is_over.set()
                self._end(known, hub)

        return end

    def _end(self, known: Collection[str], hub: Hub[JobEnqueued]) -> None:
        with self._lock:
            left = list(self._known[hub])
            left.remove(known)
            self._known[hub] = tuple(left)
            if not left:
                self._unsubscribe.pop(hub)()

    def _count(self, event: JobEnqueued, hub: Hub[JobEnqueued]) -> None:
        is_known = any(event.topic in known for known in self._known[hub])
        self._counter.labels(event.topic if is_known else UNKNOWN).inc()


class _OfTopic:
    """One topic's series, each as the call that raises it: to look it up anew would cost more than to raise it."""

    __slots__ = ("claimed", "deleted", "duration", "hung", "lost", "reaped", "settled", "suspects", "waited")

    def __init__(self, of: Families, topic: str) -> None:
        self.claimed = of.claimed.labels(topic).inc
        self.waited = of.waited.labels(topic).observe
        self.duration = of.duration.labels(topic).observe
        self.settled = {outcome: of.settled.labels(topic, outcome).inc for outcome in OUTCOMES}
        self.lost = of.lost.labels(topic).inc
        self.hung = of.hung.labels(topic).inc
        self.reaped = of.reaped.labels(topic).inc
        self.suspects = of.suspects.labels(topic).inc
        self.deleted = of.deleted.labels(topic).inc


class WorkerMetrics(Observer):
    """Counts what one worker tells; `hear` is to be subscribed to its events.

    Args:
        known: the topics that have series of their own.
        own: those that this worker runs.
    """

    def __init__(self, families: Families, known: Collection[str], own: Collection[str]) -> None:
        self.families = families
        self._known = known
        # There from the start, so that the first event is a rise of its series, and not its birth.
        self._topics = {topic: _OfTopic(families, topic) for topic in own}
        self._moves: dict[str, tuple[Callable[[float], None], Callable[[float], None]]] = {}

    def hear(self, event: Event) -> None:
        count = _COUNTS.get(event.__class__)
        if count is not None:
            count(self._topics.get(event.topic) or self._of(event.topic), event)

    def started(self, topic: str, waited: float) -> None:
        (self._topics.get(topic) or self._of(topic)).waited(waited)

    def moved(self, move: str, jobs: int, seconds: float) -> None:
        if move not in self._moves:
            self._moves[move] = self.families.batch.labels(move).observe, self.families.trip.labels(move).observe
        observe_jobs, observe_seconds = self._moves[move]
        observe_jobs(jobs)
        observe_seconds(seconds)

    def beaten(self, late: float) -> None:
        self.families.late.observe(late)

    def failed(self, part: str) -> None:
        self.families.errors.labels(part).inc()

    def purged(self, topics: Mapping[str, int]) -> None:
        for topic, count in topics.items():
            self._of(topic).deleted(count)

    def _of(self, topic: str) -> _OfTopic:
        name = topic if topic in self._known else UNKNOWN
        if name not in self._topics:
            self._topics[name] = _OfTopic(self.families, name)
        return self._topics[name]


def _ended(outcome: str) -> Callable[[_OfTopic, Any], None]:
    def count(of: _OfTopic, event: Any) -> None:
        of.settled[outcome]()
        of.duration(event.duration.total_seconds())

    return count


_count_death = _ended("dead")


def _died(of: _OfTopic, event: Any) -> None:
    if event.reaped:
        of.reaped()
    else:
        _count_death(of, event)


def _requeued(of: _OfTopic, event: Any) -> None:
    if event.reaped:
        of.reaped()
    else:
        of.settled["released"]()


_COUNTS: dict[type[Event], Callable[[_OfTopic, Any], None]] = {
    JobClaimed: lambda of, _: of.claimed(),
    JobDone: _ended("done"),
    JobFailed: _ended("failed"),
    JobDead: _died,
    JobCanceled: _ended("canceled"),
    JobRequeued: _requeued,
    JobLeaseLost: lambda of, _: of.lost(),
    HandlerHung: lambda of, _: of.hung(),
    CrashSuspect: lambda of, _: of.suspects(),
}


def count_enqueues(
    known: Collection[str], registry: CollectorRegistry | None = None, hub: Hub[JobEnqueued] = enqueues
) -> Callable[[], None]:
    """Count the jobs that this process enqueues, once they are committed; the answer ends that.

    A worker that has metrics does so by itself. This is for processes that only enqueue. Each job counts once, however
    many workers and calls of this there are in the process.

    Args:
        known: the topics that have series of their own, such as the registry of a base; the others share one.
        registry: where the counter is; by default prometheus-client's own.
    """
    return Families.of(registry).enqueues.add(known, hub)
