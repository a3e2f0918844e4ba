"""The pull style: jobs one by one from a plain iterator, without a worker.

::

    for claim in consume(engine, AppJob, topics=["tasks"]):
        with claim as job:
            ...                      # leaving the block settles the job

While the block runs, the lease is renewed; if the process is killed, the job comes back.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Collection, Generator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.orm import Session

from . import access, progress
from .backoff import backoff
from .claims import Claim
from .engines import Reserved, is_passing, is_refused, sibling, sync_engine
from .events import Events
from .exc import LeaseLost, UsageError
from .jobs import JobBase, decode
from .kinds import KindOptions, Policy, check_topic
from .log import get_logger, log_event
from .outcomes import Redact, after, done, released, without_text
from .session import explained
from .settings import WorkerSettings
from .states import StopCause
from .store import Claimed, JobStore, Outcome
from .upkeep import Reaper, Retention, Upkeep
from .worker import facts
from .worker.attempts import about
from .worker.heartbeat import Heartbeat
from .worker.held import Held
from .worker.loop import FIRST_PAUSE, LONGEST_PAUSE, Loop
from .worker.presence import Presence
from .worker.reporting import Reporting
from .worker.watchdog import Watchdog


class ConsumedClaim(Claim):
    """A claim to be entered with ``with``: gives the job, and settles it when the block is left.

    Leaving it normally is success. An Exception is recorded as the attempt's failure, by the rules for handlers, and
    goes no further: the loop takes the next job. What ends a program (KeyboardInterrupt, SystemExit) gives the job
    back, its attempt uncharged, and goes on. The time limits count from entering it, and ``claim.should_stop`` tells.
    """

    _consumer: _Consumer
    _job: Any
    _policy: Policy
    _entered_at: float | None = None

    def __enter__(self) -> Any:
        if self._entered_at is not None:
            raise UsageError(f"The claim on job {self.id} was entered before. A claim is entered once.")
        self._entered_at = time.monotonic()
        self._attempt_ends = self._entered_at + self._policy.attempt_timeout.total_seconds()
        self._max_execution_ends = self._entered_at + self._policy.max_execution_timeout.total_seconds()
        return self._job

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        return self._consumer.settle(self, error)


def consume(
    engine: Engine,
    base: type[JobBase],
    topics: Collection[str],
    *,
    stop_when_empty: bool = False,
    name: str | None = None,
    settings: WorkerSettings | None = None,
    session_factory: Callable[[], Session] | None = None,
    redact: Redact | None = None,
    sleep: Callable[[float], object] = time.sleep,
    **changes: Any,
) -> Generator[ConsumedClaim, None, None]:
    """Claims of due jobs, one after the other, in order.

    Nothing is started and no connection opened before the first is asked for. Leaving the loop ends it all; an
    iterator that is kept must be closed with its ``close()``.

    Args:
        engine: where the jobs are, an Engine.
        base: whose table they are in. A topic that has a job class there gives its instances, any other RawJobs.
        topics: which jobs to take.
        stop_when_empty: end when nothing is due, instead of waiting for more.
        name, settings, session_factory, redact, changes: as for `Worker`; `workers` means nothing here.
        sleep: waits that many seconds between two looks; what it raises ends the loop, with no job held.

    Raises:
        SettingsError: with every problem of the settings.
        OptionError: a topic is malformed.
        UsageError: no topics, a database that jobs do not live in; in the loop, a claim that was not entered.
        SchemaError, AccessError: in the loop, the database has no job table, or the role may not work in it.
    """
    if isinstance(topics, str):
        raise UsageError(f"topics is {topics!r}. Give a list: [{topics!r}].")
    if not topics:
        raise UsageError("topics is empty. Name at least one.")
    for topic in topics:
        check_topic(topic)
    chosen = settings.changed(**changes) if settings else WorkerSettings.create(**changes)
    consumer = _Consumer(sync_engine(engine), base, topics, chosen, name, session_factory, redact, sleep)
    return consumer.iterate(stop_when_empty)


class _Consumer:
    """What stands behind one iterator of claims."""

    def __init__(
        self,
        engine: Engine,
        base: type[JobBase],
        topics: Collection[str],
        settings: WorkerSettings,
        name: str | None,
        session_factory: Callable[[], Session] | None,
        redact: Redact | None,
        sleep: Callable[[float], object],
    ) -> None:
        self.id = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"
        self._engine = engine
        self._registry = base.registry
        self._want = dict.fromkeys(topics, 1)
        self._settings = settings
        self._redact = redact
        self._sleep = sleep
        self._store = JobStore(base.__table__)
        self._held = Held()
        self._events = Events()
        self._events.subscribe(log_event)
        self._session_engine: Engine | None = None
        self._session_factory = session_factory or self._open_session
        self._reserved = Reserved(engine)
        self._was_reached = False

    def iterate(self, stop_when_empty: bool) -> Generator[ConsumedClaim, None, None]:
        loops, connections = self._start()
        claim: ConsumedClaim | None = None
        try:
            while True:
                claim = self._next()
                if claim is not None:
                    yield claim
                    self._refuse_unsettled(claim)
                elif stop_when_empty:
                    return
                else:
                    self._sleep(self._settings.poll_interval.total_seconds() * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
        finally:
            if claim is not None and not claim._is_over:
                self._write(claim, released(claim._holding), timedelta(0))
            self._stop(loops, connections)

    def _start(self) -> tuple[list[Loop], list[Reserved]]:
        for_heartbeat, for_upkeep = Reserved(self._engine), Reserved(self._engine)
        connections = [self._reserved, for_heartbeat, for_upkeep]
        heartbeat = Heartbeat(self._store, for_heartbeat, self._settings, worker=self.id, held=self._held)
        reporting = Reporting(heartbeat, self._store, for_heartbeat, worker=self.id, held=self._held)
        upkeep = Upkeep()
        ceilings = self._registry.crash_ceilings
        reaper = Reaper(self._store, for_upkeep, worker=self.id, events=self._events, ceilings=ceilings)
        reaping = upkeep.add(reaper.run, self._settings.effective_reaper_period)
        if self._settings.retention_ttl:
            retention = Retention(self._store, for_upkeep, self._settings, worker=self.id)
            upkeep.add(retention.run, self._settings.effective_retention_period)
        self._presence = Presence(
            self._store,
            for_upkeep,
            worker=self.id,
            topics=self._want,
            slots=1,
            running=self._held.__len__,
            reaps_in=lambda: reaping.due_in,
            lease=self._settings.lease,
        )
        upkeep.add(self._presence.run, self._presence.period, is_due=True)
        watchdog = Watchdog(self._held, connections, has_one_writer=self._engine.dialect.name == "sqlite")
        loops = [
            Loop("heartbeat", reporting.turn, longest_pause=self._settings.heartbeat_period),
            Loop("watchdog", watchdog.turn),
            Loop("upkeep", upkeep.turn),
        ]
        progress.on_news(self.id, loops[0].wake)
        for loop in loops:
            loop.start()
        return loops, connections

    def _stop(self, loops: list[Loop], connections: list[Reserved]) -> None:
        self._held.release_waiters()
        for loop in loops:
            loop.stop(10.0)
        if self._was_reached and all(loop.has_ended for loop in loops):
            self._presence.leave()
        for reserved in connections:
            reserved.close()
        if self._session_engine is not None and self._session_engine is not self._engine:
            self._session_engine.dispose()

    def _next(self) -> ConsumedClaim | None:
        """The next claim whose payload can be read; None if nothing is due."""
        while True:
            claim: ConsumedClaim | None = self._patiently(self._claim)
            if claim is None:
                return None
            try:
                claim._job = decode(self._registry, claim.topic, claim.payload)
            except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
                self._write(claim, after(error, claim._holding, claim._policy, self._redact), timedelta(0))
            else:
                return claim

    def _claim(self, _failures: int) -> ConsumedClaim | None:
        asked_at = time.monotonic()
        with self._reserved.transaction() as connection, explained(connection, self._store.table, access.WORK):
            claimed = self._store.claim(connection, self._want, room=1, worker=self.id, lease=self._settings.lease)
        # The first topic has been looked at first: let the others come before it the next time.
        first = next(iter(self._want))
        self._want[first] = self._want.pop(first)
        return self._open(claimed[0], asked_at) if claimed else None

    def _open(self, claimed: Claimed, asked_at: float) -> ConsumedClaim:
        policy = self._policy(claimed.topic)
        claim = ConsumedClaim(
            claimed,
            worker=self.id,
            max_attempts=policy.max_attempts,
            table=self._store.table,
            open_session=self._session_factory,
            lease_ends=asked_at + self._settings.lease.total_seconds(),
        )
        claim._consumer, claim._policy = self, policy
        self._held.add([claim])
        return claim

    def _policy(self, topic: str) -> Policy:
        kind = self._registry.get(topic)
        return kind.policy(self._settings) if kind else KindOptions().policy(self._settings)

    def _open_session(self) -> Session:
        if self._session_engine is None:
            on_sqlite = self._engine.dialect.name == "sqlite"
            self._session_engine = sibling(self._engine) if on_sqlite else self._engine
        return Session(self._session_engine)

    def settle(self, claim: ConsumedClaim, error: BaseException | None) -> bool:
        """Settle a claim whose block was left; whether the error, if any, goes no further."""
        duration = timedelta(seconds=time.monotonic() - (claim._entered_at or time.monotonic()))
        if error is None:
            try:
                error = self._complete(claim, duration)
            except BaseException as end:
                if not isinstance(end, Exception):  # the program's: it came while success was being written
                    self._write(claim, self._outcome(claim, end), duration, in_doubt=done(claim._holding))
                raise
        if error is not None:
            outcome = self._outcome(claim, error)
            claim._close()
            self._write(claim, outcome, duration)
        return error is None or isinstance(error, Exception)

    def _complete(self, claim: ConsumedClaim, duration: timedelta) -> Exception | None:
        """Write success; what kept it from being written, if anything did."""
        try:
            is_written = claim._complete()
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the outcome
            return error
        claim._close()
        if is_written:
            self._held.discard([claim])
            self._events.publish(facts.settled(claim, done(claim._holding), duration))
        else:
            self._write(claim, done(claim._holding), duration)
        return None

    def _outcome(self, claim: ConsumedClaim, error: BaseException) -> Outcome | None:
        if isinstance(error, LeaseLost):
            claim.cause = claim.cause if claim._is_lost else StopCause.LEASE_LOST
        if claim._is_lost:
            return None
        if not isinstance(error, Exception):
            return released(claim._holding)
        return after(claim._judge(error), claim._holding, claim._policy, self._redact)

    def _write(
        self, claim: ConsumedClaim, outcome: Outcome | None, duration: timedelta, in_doubt: Outcome | None = None
    ) -> None:
        """Write how the attempt ended.

        Args:
            in_doubt: what may have been written before; it stands if it was.
        """
        claim._close()
        try:
            writing = None if outcome is None else partial(self._settle, claim, outcome)
            is_written = writing is not None and self._patiently(writing, claim._lease_ends)
            if not is_written and in_doubt is not None and self._patiently(partial(self._stands, in_doubt)):
                outcome, is_written = in_doubt, True
        finally:
            self._held.discard([claim])
        self._events.publish(
            facts.settled(claim, outcome, duration) if outcome is not None and is_written else facts.lost(claim)
        )

    def _stands(self, outcome: Outcome, _failures: int) -> bool:
        with self._reserved.transaction() as connection:
            return bool(self._store.settled(connection, [outcome]))

    def _settle(self, claim: ConsumedClaim, outcome: Outcome, failures: int) -> bool:
        """Write the outcome, without its text if the database refuses that; whether it stands in the row."""
        try:
            with self._reserved.transaction(is_whole=outcome.give_back) as connection:
                if self._store.settle(connection, self.id, [outcome]):
                    return True
                # A write that failed for want of an answer may have been made all the same.
                return failures > 0 and bool(self._store.settled(connection, [outcome]))
        except (StatementError, ValueError) as error:
            plain = without_text(outcome, error)
            if outcome.error in (None, plain.error) or not is_refused(error):
                raise
            get_logger().error("error_text_refused", error=type(error).__name__, **about(claim))
        return self._settle(claim, plain, failures)

    def _patiently(self, work: Callable[[int], Any], until: float = math.inf) -> Any:
        """What `work` gives, which is tried again while the database is out of reach or keeps a row locked.

        Args:
            work: takes how often it has failed before.
            until: by the monotonic clock; after it, the answer is None.
        """
        failures = 0
        while True:
            try:
                result = work(failures)
            except DBAPIError as error:
                # At the very first, a database out of reach is rather a wrong address.
                if not is_passing(error) or not self._was_reached:
                    raise
                if time.monotonic() >= until:
                    get_logger().error("outcome_given_up", worker=self.id, error=str(error.orig))
                    return None
                failures += 1
                pause = backoff(failures, FIRST_PAUSE, LONGEST_PAUSE).total_seconds()
                get_logger().error(
                    "consumer_failed", worker=self.id, error=str(error.orig), next_try_in=round(pause, 3)
                )
                self._sleep(pause)
            else:
                self._was_reached = True
                return result

    def _refuse_unsettled(self, claim: ConsumedClaim) -> None:
        if not claim._is_over:
            raise UsageError(
                f"The claim on job {claim.id} was not entered, so nobody knows how it went; it has been given back."
                " Write 'with claim as job:'."
            )
