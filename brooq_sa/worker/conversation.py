"""Settling and claiming: one thread that talks to the database for all the slots.

::

                 ┌────────── an attempt ended, a slot came free, the poll interval passed ──────────┐
                 ▼                                                                                  │
    wait ─▶ settle all that has ended ─▶ claim for the free slots ─▶ start them ─┬─ some came ──────┤ again at once
                                                                                 └─ none came ──────┘ at the next poll

While a statement is under way outcomes gather, and the next settle takes them all: batches form by themselves, and
share a commit, without anybody waiting for one to fill.

An outcome stays here, and its job stays held and renewed, until the database has accepted or refused it. One that
cannot be written (a row that somebody keeps locked, a text that the database refuses) does not hold up the others.
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from ..claims import AsyncClaim, Claim
from ..engines import Reserved
from ..events import Events, JobClaimed
from ..kinds import Kind
from ..log import get_logger
from ..outcomes import dead, released
from ..schema import ATTEMPTS_CEILING
from ..settings import WorkerSettings
from ..store import Claimed, Holding, JobStore
from . import facts
from .attempts import Assignment, Finished
from .held import Held

Start = Callable[[Sequence[Assignment]], None]
OpenClaim = Callable[[Claimed, Kind, int, float], Claim | AsyncClaim]

RETRY_LOCKED = 2.0
"""Seconds until an outcome whose row was locked is tried again."""


class Conversation:
    """What a worker says to the database about its jobs.

    Args:
        store: of the table.
        reserved: the connection set apart for this.
        kinds: what to claim, by topic.
        open_claim: makes the claim that a handler receives.
        start: hands assignments to the slots; each comes back by `finished`.
    """

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        kinds: dict[str, Kind],
        settings: WorkerSettings,
        *,
        worker: str,
        held: Held,
        events: Events,
        open_claim: OpenClaim,
        start: Start,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._kinds = kinds
        self._policies = {topic: kind.policy(settings) for topic, kind in kinds.items()}
        self._settings = settings
        self._worker = worker
        self._held = held
        self._events = events
        self._open_claim = open_claim
        self._start = start
        self._topics = deque(kinds)
        self._changed = threading.Condition()
        self._outbox: list[Finished] = []
        self._postponed: list[tuple[float, Finished]] = []
        self._running = 0
        self._is_claiming = True
        self._is_writing = False
        self._is_closed = False
        self._next_claim = 0.0

    # What other threads call.

    def finished(self, finished: Finished) -> None:
        """An attempt has ended: its slot is free, and its outcome is to be written."""
        with self._changed:
            self._running -= 1
            self._outbox.append(finished)
            self._changed.notify_all()

    def give_up(self, finished: Iterable[Finished]) -> None:
        """Attempts are not waited for any longer: their outcomes are to be written, though they may still run."""
        with self._changed:
            self._outbox.extend(finished)
            self._changed.notify()

    def look_now(self) -> None:
        """There may be new jobs: do not wait for the poll interval."""
        with self._changed:
            self._next_claim = 0.0
            self._changed.notify()

    def stop_claiming(self) -> None:
        with self._changed:
            self._is_claiming = False
            self._changed.notify()

    def drain(self, deadline: float) -> bool:
        """Wait until no attempt runs, until `deadline` by the monotonic clock; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, max(0.0, deadline - time.monotonic()))

    def flush(self, deadline: float) -> bool:
        """Wait until every outcome is written, until `deadline` by the monotonic clock; whether it is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._outbox or self._postponed or self._is_writing), max(0.0, deadline - time.monotonic())
            )

    def close(self) -> None:
        """Let a turn that waits return."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # The loop's own.

    def turn(self) -> float:
        """One round of waiting, settling and claiming."""
        self._wait()
        self._settle()
        if self._room():
            self._claim()
        return 0.0

    def _wait(self) -> None:
        with self._changed:
            while not (self._is_closed or self._outbox or (self._room() and self._next_claim <= time.monotonic())):
                self._changed.wait(self._until_next())
                self._unpostpone()

    def _room(self) -> int:
        return self._settings.workers - self._running if self._is_claiming else 0

    def _until_next(self) -> float | None:
        moments = [moment for moment, _ in self._postponed]
        if self._room():
            moments.append(self._next_claim)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _unpostpone(self) -> None:
        now = time.monotonic()
        self._outbox.extend(finished for moment, finished in self._postponed if moment <= now)
        self._postponed = [(moment, finished) for moment, finished in self._postponed if moment > now]

    # Settling.

    def _settle(self) -> None:
        with self._changed:
            batch, self._outbox = self._outbox, []
            self._is_writing = bool(batch)
        if not batch:
            return
        left = list(batch)
        try:
            self._settle_batch(left)
        finally:
            with self._changed:
                # Whatever an error left over comes first the next time.
                self._outbox[:0] = left
                self._is_writing = False
                self._changed.notify_all()

    def _settle_batch(self, left: list[Finished]) -> None:
        """Write the batch and report it; what could not be written for now stays in `left`."""
        unwritten = [finished for finished in left if finished.outcome is not None and not finished.is_written]
        try:
            written = self._write(unwritten)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._settle_singly(left)
            return
        except (StatementError, ValueError):
            self._settle_singly(left)
            return
        for finished in list(left):
            self._report(finished, written)
            left.remove(finished)

    def _settle_singly(self, left: list[Finished]) -> None:
        for finished in list(left):
            try:
                written = self._write_single(finished)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                get_logger().warning("outcome_postponed", error=str(error.orig), **_bound(finished))
                with self._changed:
                    self._postponed.append((time.monotonic() + RETRY_LOCKED, finished))
            else:
                self._report(finished, written)
            left.remove(finished)

    def _write_single(self, finished: Finished) -> set[Holding]:
        """Write one outcome; without its text, if the database refuses that."""
        if finished.outcome is None or finished.is_written:
            return set()
        try:
            return self._write([finished])
        except (StatementError, ValueError) as error:
            if finished.outcome.error is None or not _is_refused(error):
                raise
            get_logger().exception("error_text_refused", **_bound(finished))
            reason = f"(the database refused the text of the error: {type(error).__name__})"
        plain = dataclasses.replace(finished.outcome, error=reason)
        return self._write([dataclasses.replace(finished, outcome=plain)])

    def _write(self, finished: Sequence[Finished]) -> set[Holding]:
        outcomes = [each.outcome for each in finished if each.outcome is not None]
        if not outcomes:
            return set()
        with self._reserved.transaction() as connection:
            return self._store.settle(connection, self._worker, outcomes)

    def _report(self, finished: Finished, written: set[Holding]) -> None:
        """The database has answered: the job is held no more, and what became of it is known."""
        claim, outcome = finished.claim, finished.outcome
        self._held.discard(claim._holding)
        if outcome is not None and (finished.is_written or outcome.holding in written):
            self._events.publish(facts.settled(claim, outcome, finished.duration))
        else:
            self._events.publish(facts.lost(claim))

    # Claiming.

    def _claim(self) -> None:
        room = self._room()
        if not room or self._next_claim > time.monotonic():
            return
        self._topics.rotate(-1)  # no topic is always the last to get the room that is left
        asked_at = time.monotonic()
        with self._reserved.transaction() as connection:
            claimed = self._store.claim(
                connection,
                dict.fromkeys(self._topics, room),
                room=room,
                worker=self._worker,
                lease=self._settings.lease,
            )
        if claimed:
            self._begin(claimed, asked_at)
        pause = 0.0 if claimed else self._settings.poll_interval.total_seconds() * random.uniform(0.8, 1.0)  # noqa: S311 - jitter
        with self._changed:
            self._next_claim = time.monotonic() + pause if pause else 0.0

    def _begin(self, claimed: Sequence[Claimed], asked_at: float) -> None:
        lease_ends = asked_at + self._settings.lease.total_seconds()
        assignments = [self._assignment(job, lease_ends) for job in claimed]
        self._held.add(assignment.claim for assignment in assignments)
        for assignment in assignments:
            claim = assignment.claim
            self._events.publish(JobClaimed(claim.id, claim.topic, claim.attempt, self._worker, claim.waited))
        with self._changed:
            self._running += len(assignments)
        impossible = [each for each in assignments if each.claim.attempt >= ATTEMPTS_CEILING]
        for assignment in impossible:
            self.finished(_parked(assignment))
        possible = [each for each in assignments if each not in impossible] if impossible else assignments
        if self._is_claiming:
            self._start(possible)
        else:  # told to stop while the claim was under way
            for assignment in possible:
                self.finished(unstarted(assignment))

    def _assignment(self, job: Claimed, lease_ends: float) -> Assignment:
        kind, policy = self._kinds[job.topic], self._policies[job.topic]
        return Assignment(self._open_claim(job, kind, policy.max_attempts, lease_ends), kind, policy)


def _is_refused(error: BaseException) -> bool:
    """Whether the values are at fault, so that trying again as they are is useless."""
    return isinstance(error, DataError | IntegrityError) or not isinstance(error, DBAPIError)


def unstarted(assignment: Assignment) -> Finished:
    """The end of an attempt that never began: the job goes back as if it had not been taken."""
    return Finished(assignment.claim, released(assignment.claim._holding), timedelta(0))


def _parked(assignment: Assignment) -> Finished:
    reason = f"its attempts have reached {ATTEMPTS_CEILING:,}, beyond which none can be counted"
    get_logger().error("job_parked", job_id=str(assignment.claim.id), topic=assignment.claim.topic, reason=reason)
    return Finished(assignment.claim, dead(assignment.claim._holding, reason), timedelta(0))


def _bound(finished: Finished) -> dict[str, Any]:
    claim = finished.claim
    return {"job_id": str(claim.id), "topic": claim.topic, "attempt": claim.attempt, "worker": claim.worker}
