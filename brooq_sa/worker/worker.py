"""The worker put together, started and stopped."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from .. import access, progress, wake
from ..claims import AsyncClaim, Claim
from ..durations import format_duration, parse_duration
from ..engines import Reserved, async_engine, listening_engine, sibling, sync_engine
from ..events import Events
from ..exc import UsageError
from ..jobs import JobBase
from ..kinds import Kind, described
from ..log import get_logger, is_logged, log_event
from ..observer import Observer
from ..outcomes import Redact, after, released
from ..session import explained
from ..settings import WorkerSettings, read_address
from ..states import StopCause
from ..store import Claimed, JobStore
from ..upkeep import Reaper, Retention, UnknownTopics, Upkeep
from .attempts import Finished, about
from .child import find_named
from .claiming import Claiming
from .executors import LoopExecutor, ThreadExecutor
from .fitting import fitted
from .health import Beat, Health
from .heartbeat import Heartbeat
from .held import Held
from .listener import Listener
from .loop import LONGEST_PAUSE, Loop
from .measuring import MeasuredStore
from .observation import Observation
from .pace import Pace
from .presence import Presence
from .processes import KILL_GRACE, ProcessExecutor, check, name_of, setup_for
from .reporting import Reporting
from .settling import Settling
from .slots import Slots
from .watchdog import Watchdog

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

S = TypeVar("S")

NOTICE = 2.0
"""Seconds that handlers get to end after they have been told to stop, before their jobs are released."""

LAST_WRITES = 5.0
"""Seconds that a stop waits for the last outcomes to be written."""

LAST_TURNS = 5.0
"""Seconds that a stop waits for threads that are still waiting for the database."""


class Worker:
    """Runs the jobs of a base in this process; a context manager that starts and stops it.

    Building it starts no thread and opens no connection.

    The worker's own connections are made as the engine makes them. Where it must make an engine of another kind (from
    an AsyncEngine for itself and for ``def`` handlers, from an Engine for ``async def`` ones, and in child processes),
    it has the URL and the execution options to go by, and on SQLite what `brooq_sa.sqlite.configure` was told:
    ``connect_args``, the pool's settings, an ``isolation_level`` and listeners to events are not carried over. Put what
    matters into the URL, or give session factories; and a sync Engine, if the worker's own connections need it.

    Args:
        engine: where the jobs are, an Engine or an AsyncEngine. Handlers' sessions take their connections from it; the
            worker's own three are apart.
        base: whose job classes to run. Those with a handler are claimed, others are left alone.
        topics: only these; by default all that have a handler.
        name: the beginning of the worker's id; by default the host's name and the process's id.
        settings: all settings at once; by default the defaults.
        session_factory: makes the session of a ``def`` handler's claim; by default ``Session(engine)``. A callable, or
            where one is as "module:name", by which child processes find it.
        async_session_factory: makes that of an ``async def`` handler's; by default an AsyncSession on that database.
        redact: takes the secrets out of the text for ``last_error``.
        http_addr: where to serve ``/metrics``, ``/healthz`` and ``/readyz``, as "host:port"; by default nowhere.
        metrics: the prometheus-client registry to count in; by default that library's own, and only if there is an
            `http_addr`.
        **changes: single settings by name, such as ``workers=4`` or ``lease="30s"``; see `WorkerSettings`.

    Attributes:
        id: unique to this worker, as ``locked_by`` shows it.
        topics: what it runs, in order.
        events: subscribe here to what happens.

    Raises:
        SettingsError: with every problem of the settings.
        DeclarationError: a field's type is still not defined.
        UsageError: there is nothing to run, or the database is none that jobs live in.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        base: type[JobBase],
        *,
        topics: Collection[str] | None = None,
        name: str | None = None,
        settings: WorkerSettings | None = None,
        session_factory: Callable[[], Session] | str | None = None,
        async_session_factory: Callable[[], AsyncSession] | str | None = None,
        redact: Redact | None = None,
        http_addr: str | None = None,
        metrics: CollectorRegistry | None = None,
        **changes: Any,
    ) -> None:
        self.settings = settings.changed(**changes) if settings else WorkerSettings.create(**changes)
        self.id = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self.events = Events()
        self.events.subscribe(log_event, wants=is_logged)
        self._engine = engine
        self._sync_engine = sync_engine(engine)
        self._base = base
        self._kinds = _kinds_to_run(base, topics)
        for kind in self._kinds.values():
            _ = kind.codec  # raises for what no payload can be read into, before any job is taken
        self.topics = tuple(sorted(self._kinds))
        self._policies = {topic: kind.policy(self.settings) for topic, kind in self._kinds.items()}
        self._held = Held()
        self._observation = self._observed(http_addr, metrics)
        self._observer = self._observation.observer if self._observation else Observer()
        table = base.__table__
        self._store = MeasuredStore(table, self._observer) if self._observation else JobStore(table)
        self._state_lock = threading.Lock()
        self._engines_lock = threading.Lock()
        self._was_started = False
        self._is_stopping = False
        self._is_stopped = threading.Event()
        self._session_factory = _callable(session_factory) or self._open_session
        self._async_session_factory = _callable(async_session_factory) or self._open_async_session
        self._compose(redact)
        self._compose_processes(session_factory, async_session_factory)

    def _observed(self, http_addr: str | None, registry: CollectorRegistry | None) -> Observation | None:
        """What watches this worker, if that is wanted; only then is prometheus-client imported."""
        if http_addr is not None:
            http_addr = read_address(http_addr)
        if http_addr is None and registry is None:
            return None
        return Observation(
            self._sync_engine,
            self._base,
            self.events,
            topics=self.topics,
            workers=self.settings.workers,
            held=self._held,
            worker=self.id,
            http_addr=http_addr,
            registry=registry,
        )

    def _compose(self, redact: Redact | None) -> None:
        store, settings, held, worker = self._store, self.settings, self._held, self.id
        patience = min(max(settings.lease / 2, timedelta(seconds=1)), timedelta(seconds=30))
        self._reserved = [Reserved(self._sync_engine, patience) for _ in range(4)]
        for_claiming, for_settling, for_heartbeat, for_upkeep = self._reserved
        pace = Pace(settings.workers)
        self._slots = Slots(settings.workers, pace, self.events, self._executor_of)
        self._claiming = Claiming(
            store,
            for_claiming,
            self._slots,
            self._kinds,
            settings,
            worker=worker,
            held=held,
            pace=pace,
            events=self.events,
            open_claim=self._open_claim,
        )
        self._settling = Settling(store, for_settling, self._slots, worker=worker, held=held, events=self.events)
        self._redact = redact
        self._threads = ThreadExecutor(self._slots.ended, redact, worker=worker)
        self._event_loop = LoopExecutor(self._slots.ended, redact, self._forget_async_engine, worker=worker)
        self._heartbeat = Heartbeat(store, for_heartbeat, settings, worker=worker, held=held)
        upkeep = Upkeep()
        ceilings = self._base.registry.crash_ceilings
        reaper = Reaper(store, for_upkeep, worker=worker, events=self.events, ceilings=ceilings)
        reaping = upkeep.add(reaper.run, settings.effective_reaper_period)
        unknown = UnknownTopics(store, for_upkeep, self._base.registry, worker=worker)
        upkeep.add(unknown.run, settings.effective_reaper_period)
        if settings.retention_ttl:
            retention = Retention(store, for_upkeep, settings, worker=worker, observer=self._observer)
            upkeep.add(retention.run, settings.effective_retention_period)
        self._presence = Presence(
            store,
            for_upkeep,
            worker=worker,
            topics=self.topics,
            slots=settings.workers,
            running=lambda: self._slots.running,
            reaps_in=lambda: reaping.due_in,
            lease=settings.lease,
        )
        self._announcing = upkeep.add(self._presence.run, self._presence.period, is_due=True)
        grace = settings.effective_watchdog_grace
        on_sqlite = self._sync_engine.dialect.name == "sqlite"
        watchdog = Watchdog(
            held,
            self._reserved,
            grace=grace,
            give_up=self._give_up,
            has_one_writer=on_sqlite,
            slots=self._slots,
            worker=worker,
        )
        self._claiming_loop = self._loop("claiming", fitted(for_claiming, store.table, self._claiming.turn))
        settling_loop = self._loop("settling", self._settling.turn)
        beat = Beat(self._heartbeat.turn, settings.heartbeat_period, self._observer)
        reporting = Reporting(self._heartbeat, store, for_heartbeat, worker=worker, held=held, beat=beat)
        self._heartbeat_loop = self._loop("heartbeat", reporting.turn, longest_pause=settings.heartbeat_period)
        progress.on_news(worker, self._heartbeat_loop.wake)
        self._watchdog_loop = self._loop("watchdog", watchdog.turn)
        self._upkeep_loop = self._loop("upkeep", fitted(for_upkeep, store.table, upkeep.turn))
        self._loops = [
            self._heartbeat_loop,
            self._watchdog_loop,
            self._upkeep_loop,
            settling_loop,
            self._claiming_loop,
        ]
        self._listener: Listener | None = None
        if settings.wake and (engine := listening_engine(self._sync_engine, settings.wake_url)):
            self._listener = Listener(engine, store.table, self)
            self._listener_loop = self._loop("listener", self._listener.turn)
            self._loops.append(self._listener_loop)
        self._health = Health(self._loops, self._reserved, beat, settings.lease)
        if self._observation is not None:
            self._loops.extend(self._observation.loops)

    def _loop(self, name: str, turn: Callable[[], float], *, longest_pause: timedelta = LONGEST_PAUSE) -> Loop:
        explaining = self._explaining(turn)
        return Loop(name, explaining, longest_pause=longest_pause, worker=self.id, observer=self._observer)

    def _explaining(self, turn: Callable[[], float]) -> Callable[[], float]:
        """The turn, whose error says what to grant if the database denies it something, or how to make the table."""

        def explaining() -> float:
            with explained(self._sync_engine, self._store.table, access.WORK):
                return turn()

        return explaining

    def _compose_processes(self, *session_factories: Callable[[], Any] | str | None) -> None:
        kinds = [kind for kind in self._kinds.values() if kind.is_isolated]
        check(kinds)
        names = [name_of(factory) if kinds else None for factory in session_factories]
        self._processes = ProcessExecutor(
            self._slots.ended,
            self._redact,
            lambda: setup_for(kinds, self._engine, *names),
            # Sooner than the watchdog would give the handler up.
            min(KILL_GRACE, self.settings.effective_watchdog_grace / 2),
            worker=self.id,
        )

    def start(self) -> None:
        """Begin to work, on threads of the worker's own.

        Raises:
            UsageError: it was started before; a worker runs once.
            SettingsError: `http_addr` cannot be had; the worker was not started.
        """
        with self._state_lock:
            if self._was_started:
                raise UsageError("This worker was started before. Make another one.")
            if self._observation is not None:
                self._observation.open(self._health, tuple(self._loops))
            self._was_started = True
        get_logger().info("worker_started", worker=self.id, topics=list(self.topics), workers=self.settings.workers)
        wake.listen(self._store.table, self)
        for loop in self._loops:
            loop.start()

    def jobs_enqueued(self) -> None:
        """Look for jobs now: called by wake-ups, and by whoever knows better than to wait for the poll interval."""
        self._slots.look_now()

    def job_canceled(self, job_id: uuid.UUID) -> None:
        """Look now whether a job that this worker holds has been canceled: called by wake-ups."""
        if any(held_id == job_id for held_id, _ in self._held.snapshot()):
            self._heartbeat.hurry()
            self._heartbeat_loop.wake()

    def stop(self, grace: timedelta | str | None = None) -> bool:
        """Stop working, and return when that is done.

        Jobs that were claimed and not begun go back at once, their attempts given back. Running ones may end within the
        grace; then they are told to stop, and go back likewise.

        Args:
            grace: how long running jobs may go on; by default the setting's.

        Returns:
            Whether all was written that was to be. If not, because the database is out of reach, the jobs that are left
            come back when their leases run out.
        """
        allowed = self.settings.grace if grace is None else parse_duration(grace)
        with self._state_lock:
            if not self._was_started or self._is_stopped.is_set():
                return True
            wake.unlisten(self._store.table, self)
            self._is_stopping = True
            if self._observation is not None:
                self._observation.stopping()
            self._slots.stop_claiming()
            self._announce_the_stop()
            self._release_unstarted()
            self._drain(allowed)
            is_written = self._slots.flush(time.monotonic() + LAST_WRITES)
            # The heartbeat last: a lease that ran out during the flush would hand a finished job to another worker.
            try:
                is_written &= self._stop_loops()
                self._close()
                if self._observation is not None:
                    self._observation.close()
            finally:
                self._is_stopped.set()
        get_logger().info("worker_stopped", worker=self.id, is_written=is_written)
        return is_written

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker has stopped, `timeout` seconds at most; whether it has."""
        return self._is_stopped.wait(timeout)

    @property
    def troubles(self) -> dict[str, str]:
        """What fails at the moment, by the part of the worker that it fails in; empty when all is well."""
        return {loop.name: loop.trouble for loop in self._loops if loop.trouble is not None}

    @property
    def unready(self) -> list[str]:
        """What keeps the worker from being ready, a sentence each: connected, claiming, heartbeats on time.

        It is what ``/readyz`` answers. Empty when all is well.
        """
        if not self._was_started or self._is_stopping:
            return ["the worker is stopping" if self._is_stopping else "the worker has not been started"]
        return self._health.unready()

    @property
    def is_alive(self) -> bool:
        """Whether the worker's threads turn. They do in an outage too, which starting anew would not mend."""
        return self._was_started and self._health.is_alive()

    @property
    def http_address(self) -> str | None:
        """Where metrics and health are served, once the worker has started: the port too, if that was to be any."""
        return self._observation.address if self._observation else None

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # Starting attempts.

    def _executor_of(self, kind: Kind) -> ThreadExecutor | LoopExecutor:
        if kind.is_isolated:
            return self._processes
        return self._event_loop if kind.is_async else self._threads

    def _open_claim(self, claimed: Claimed, kind: Kind, max_attempts: int, lease_ends: float) -> Claim | AsyncClaim:
        # That of a handler in a child process stands for the one that the child has.
        is_async = kind.is_async and not kind.is_isolated
        make: Any = AsyncClaim if is_async else Claim
        open_session = self._async_session_factory if is_async else self._session_factory
        claim: Claim | AsyncClaim = make(
            claimed,
            worker=self.id,
            max_attempts=max_attempts,
            table=self._store.table,
            open_session=open_session,
            lease_ends=lease_ends,
        )
        if self._observation is not None:
            claim._observer = self._observer
        return claim

    def _open_session(self) -> Session:
        with self._engines_lock:  # several slots may ask at once, and one engine is to be made
            engine = self._session_engine
        return Session(engine)

    def _open_async_session(self) -> AsyncSession:
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(self._async_engine)

    @cached_property
    def _session_engine(self) -> Engine:
        """The user's engine; on SQLite a sibling of it, which begins its transactions as jobs need them."""
        return sibling(self._sync_engine) if self._sync_engine.dialect.name == "sqlite" else self._sync_engine

    @cached_property
    def _async_engine(self) -> AsyncEngine:
        return async_engine(self._engine)

    def _forget_async_engine(self) -> None:
        """The event loop that its connections belong to is blocked; those to come get others."""
        engine = self.__dict__.pop("_async_engine", None)
        if engine is not None:
            engine.sync_engine.dispose(close=False)

    def _give_up(self, claim: Claim | AsyncClaim) -> None:
        """A handler has outlived being told to stop: its attempt has failed, and its slot goes to others."""
        outcome = None
        if not claim._is_lost:
            grace = format_duration(self.settings.effective_watchdog_grace)
            error = TimeoutError(f"{claim.cause}, and the handler did not stop within {grace}")
            outcome = after(error, claim._holding, self._policies[claim.topic])
        if self._slots.hung(Finished(claim, outcome, self._run_for(claim))):
            self._executor_of(self._kinds[claim.topic]).replace()

    def _run_for(self, claim: Claim | AsyncClaim) -> float:
        """For how many seconds the claim's handler has run."""
        if claim._attempt_ends == math.inf:  # it has not begun
            return 0.0
        return self._policies[claim.topic].attempt_seconds - (claim._attempt_ends - time.monotonic())

    # Stopping.

    def _announce_the_stop(self) -> None:
        self._presence.serve_nothing_more()
        self._announcing.hurry()
        self._upkeep_loop.wake()

    def _release_unstarted(self) -> None:
        self._slots.give_waiting_back()
        for executor in (self._threads, self._processes):
            self._slots.give_unbegun_back(executor.take_unstarted())

    def _drain(self, grace: timedelta) -> None:
        if self._slots.drain(time.monotonic() + grace.total_seconds()):
            return
        for claim in self._held.snapshot().values():
            claim._stop(StopCause.SHUTDOWN)
        if self._slots.drain(time.monotonic() + NOTICE):
            return
        left = [claim for claim in self._held.snapshot().values() if not (claim._is_over or claim._is_hung)]
        for claim in left:
            get_logger().warning("handler_outlived_shutdown", **about(claim))
        self._slots.give_up(Finished(claim, released(claim._holding)) for claim in left)

    def _stop_loops(self) -> bool:
        """Stop them, within a time that they share; whether no lease is left behind."""
        deadline = time.monotonic() + LAST_TURNS
        lasting = (self._watchdog_loop, self._heartbeat_loop)
        others = [loop for loop in self._loops if loop not in lasting]
        self._slots.close()
        if self._observation is not None:
            self._observation.close_loops()
        for loop in others:
            loop.stop(0)
        for loop in others:
            loop.stop(max(0.0, deadline - time.monotonic()))
        self._leave(deadline)
        is_clean = self._claiming_loop.has_ended and self._claiming.release_unknown()
        self._held.release_waiters()
        for loop in lasting:
            loop.stop(0)
        for loop in lasting:
            loop.stop(max(0.0, deadline - time.monotonic()))
        return is_clean

    def _leave(self, deadline: float) -> None:
        """Take the worker's row away; if the database does not answer, others do it later."""
        if not self._upkeep_loop.has_ended or self._upkeep_loop.trouble is not None:
            return
        leaving = threading.Thread(target=self._presence.leave, name="brooq-leaving", daemon=True)
        leaving.start()
        leaving.join(max(0.0, deadline - time.monotonic()))

    def _close(self) -> None:
        self._threads.stop()
        self._processes.stop()
        if "_async_engine" in self.__dict__ and self._async_engine is not self._engine:
            self._event_loop.call(self._async_engine.dispose)
        self._event_loop.stop(NOTICE)
        for reserved in self._reserved:
            reserved.close()
        if self._listener is not None:
            self._listener.drop()
        for engine in (self.__dict__.get("_session_engine"), self._sync_engine):
            if engine is not None and engine is not self._engine:
                engine.dispose()


def _callable(factory: Callable[[], S] | str | None) -> Callable[[], S] | None:
    found: Callable[[], S] | None = find_named(factory) if isinstance(factory, str) else factory
    return found


def _kinds_to_run(base: type[JobBase], topics: Collection[str] | None) -> dict[str, Kind]:
    registry = getattr(base, "registry", None)
    if registry is None:
        raise UsageError(f"{base!r:.200} is no base of jobs. Give a direct subclass of JobBase.")
    if isinstance(topics, str):
        raise UsageError(f"topics is {topics!r}. Give a list: [{topics!r}].")
    if topics is None:
        kinds = {topic: kind for topic, kind in registry.items() if kind.handler is not None}
        if not kinds:
            raise UsageError(
                f"Base {described(base)} has no job class with a handler. Import the modules that declare them before"
                " the worker is made, and give each a run method or a handler."
            )
        return kinds
    for topic in topics:
        if topic not in registry or registry[topic].handler is None:
            raise UsageError(
                f"Topic {topic!r} has no handler in base {described(base)}. Those with one:"
                f" {', '.join(sorted(t for t, kind in registry.items() if kind.handler)) or 'none'}."
            )
    if not topics:
        raise UsageError("topics is empty. Leave it out to run all that have a handler.")
    return {topic: registry[topic] for topic in topics}
