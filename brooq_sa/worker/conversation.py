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

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from .. import wake
from ..claims import AsyncClaim, Claim
from ..engines import Reserved, is_about_rows, is_refused
from ..events import Events, JobClaimed
from ..kinds import Kind
from ..log import get_logger
from ..outcomes import dead, released, without_text
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

MOST_FAILURES = 4
"""How many outcomes of a batch may turn out to be locked before the rest of it is put off."""


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
        self._again: list[Finished] = []
        self._unanswered: set[Holding] = set()
        self._running = 0
        self._is_claiming = True
        self._is_asking = False
        self._is_writing = False
        self._is_closed = False
        self._may_hold_unknown = False
        self._next_claim = 0.0
        self._look_again_at = 0.0

    # What other threads call.

    def finished(self, finished: Finished) -> bool:
        """An attempt has ended: its slot is free, and its outcome is to be written.

        Returns:
            True if it had been given up as hung: its slot is somebody else's, and its outcome is refused.
        """
        claim = finished.claim
        with self._changed:
            if not claim._is_hung:
                claim._has_ended = True
                self._running -= 1
                self._outbox.append(finished)
                self._changed.notify_all()
                return False
        self._events.publish(facts.late(claim))
        return True

    def hung(self, finished: Finished) -> bool:
        """An attempt does not end: its slot is given up, and this outcome is to be written.

        Returns:
            False if it has ended at the last moment, or was given up before: its outcome may not be written yet.
        """
        claim = finished.claim
        with self._changed:
            if claim._has_ended or claim._is_hung:
                return False
            claim._is_hung = True
            self._running -= 1
            self._outbox.append(finished)
            self._changed.notify_all()
        self._events.publish(facts.hung(claim))
        return True

    def give_back(self, assignments: Iterable[Assignment]) -> None:
        """Attempts cannot begin: their jobs are to be released as if they had not been taken."""
        for assignment in assignments:
            self.finished(unstarted(assignment))

    def give_up(self, finished: Iterable[Finished]) -> None:
        """Attempts are not waited for any longer: their outcomes are to be written, though they may still run."""
        with self._changed:
            self._outbox.extend(finished)
            self._changed.notify_all()

    def look_now(self) -> None:
        """There may be new jobs: do not wait for the poll interval, and look once more soon after."""
        with self._changed:
            self._next_claim = 0.0
            self._look_again_at = time.monotonic() + wake.LOOK_AGAIN
            self._changed.notify_all()

    def stop_claiming(self) -> None:
        with self._changed:
            self._is_claiming = False
            self._changed.notify_all()

    def drain(self, deadline: float) -> bool:
        """Wait until no attempt runs or is about to, until `deadline` by the monotonic clock; whether it is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._running or self._is_asking), max(0.0, deadline - time.monotonic())
            )

    def flush(self, deadline: float) -> bool:
        """Wait until every outcome is written, until `deadline` by the monotonic clock; whether it is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._outbox or self._again or self._postponed or self._is_writing),
                max(0.0, deadline - time.monotonic()),
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
            self._unpostpone()
            while not (self._is_closed or self._outbox or self._again or self._may_claim()):
                self._changed.wait(self._until_next())
                self._unpostpone()

    def _may_claim(self) -> bool:
        return self._room() > 0 and self._next_claim <= time.monotonic()

    def _room(self) -> int:
        return self._settings.workers - self._running if self._is_claiming else 0

    def _until_next(self) -> float | None:
        moments = [moment for moment, _ in self._postponed]
        if self._room():
            moments.append(self._next_claim)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _unpostpone(self) -> None:
        now = time.monotonic()
        self._again.extend(finished for moment, finished in self._postponed if moment <= now)
        self._postponed = [(moment, finished) for moment, finished in self._postponed if moment > now]

    # Settling.

    def _settle(self) -> None:
        with self._changed:
            batch, self._outbox = self._outbox, []
            again, self._again = self._again, []
            self._is_writing = bool(batch or again)
        if not (batch or again):
            return
        try:
            self._settle_batch(batch)
            # Apart from the others, whom a row that is still locked would hold up.
            self._settle_singly(again, 1)
        finally:
            with self._changed:
                # Whatever an error left over comes first the next time.
                self._outbox[:0] = batch
                self._again[:0] = again
                self._is_writing = False
                self._changed.notify_all()

    def _settle_batch(self, left: list[Finished]) -> None:
        """Write the batch and report it; what an error kept from being tried stays in `left`."""
        try:
            written = self._write([finished for finished in left if not finished.is_written])
        except (StatementError, ValueError) as error:
            if not is_about_rows(error):
                raise
            self._settle_singly(left, MOST_FAILURES)
            return
        for finished in list(left):
            self._report(finished, written)
            left.remove(finished)

    def _settle_singly(self, left: list[Finished], most: int) -> None:
        """Write one after the other; once `most` of them could not be written, the rest is put off too.

        Each of those may have waited for a lock, and all the while nothing is claimed.
        """
        failed: list[Finished] = []
        try:
            while left and len(failed) < most:
                finished = left[0]
                try:
                    written = self._write_single(finished)
                except (StatementError, ValueError) as error:
                    if not is_about_rows(error):
                        raise
                    reason = error.orig if isinstance(error, DBAPIError) else error
                    get_logger().warning("outcome_postponed", error=str(reason), **_bound(finished))
                    failed.append(finished)
                else:
                    self._report(finished, written)
                del left[0]
            self._postpone(left)
            left.clear()
        finally:
            self._postpone(failed)  # behind those that were not tried, or they would be first every time

    def _postpone(self, finished: Iterable[Finished]) -> None:
        with self._changed:
            due_at = time.monotonic() + RETRY_LOCKED
            self._postponed.extend((due_at, each) for each in finished)

    def _write_single(self, finished: Finished) -> set[Holding]:
        """Write one outcome; without its text, if the database refuses that."""
        if finished.outcome is None or finished.is_written:
            return set()
        try:
            return self._write([finished])
        except (StatementError, ValueError) as error:
            if finished.outcome.error is None or not is_refused(error):
                raise
            get_logger().error("error_text_refused", error=type(error).__name__, **_bound(finished))
            plain = without_text(finished.outcome, error)
        return self._write([dataclasses.replace(finished, outcome=plain)])

    def _write(self, finished: Sequence[Finished]) -> set[Holding]:
        outcomes = {each.outcome.holding: each.outcome for each in finished if each.outcome is not None}
        if not outcomes:
            return set()
        asked_before = self._unanswered & outcomes.keys()
        self._unanswered |= outcomes.keys()
        is_whole = any(outcome.give_back for outcome in outcomes.values())
        with self._reserved.transaction(is_whole=is_whole) as connection:
            written = self._store.settle(connection, self._worker, outcomes.values())
            if doubtful := asked_before - written:
                written |= self._store.settled(connection, [outcomes[holding] for holding in doubtful])
        self._unanswered -= outcomes.keys()
        return written

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
        with self._changed:
            # From here on a stop waits for what comes of this claim, so that jobs it takes are given back.
            room = self._room() if self._next_claim <= time.monotonic() else 0
            self._is_asking = bool(room)
        if not room:
            return
        try:
            self._ask(room)
        finally:
            with self._changed:
                self._is_asking = False
                self._changed.notify_all()

    def _ask(self, room: int) -> None:
        if self._may_hold_unknown:
            self._give_unknown_back()
        self._topics.rotate(-1)  # no topic is always the last to get the room that is left
        asked_at = time.monotonic()
        self._may_hold_unknown = True  # until the answer is here: it may be lost on the way
        with self._reserved.transaction() as connection:
            claimed = self._store.claim(
                connection,
                dict.fromkeys(self._topics, room),
                room=room,
                worker=self._worker,
                lease=self._settings.lease,
            )
        self._may_hold_unknown = False
        if claimed:
            self._begin(claimed, asked_at)
        pause = 0.0 if claimed else self._pause(asked_at)
        with self._changed:
            # A wake-up that came while the claim was under way may be about a job that it did not see.
            was_woken = self._next_claim == 0.0 and self._look_again_at > asked_at + wake.LOOK_AGAIN
            self._next_claim = 0.0 if claimed or was_woken else time.monotonic() + pause

    def release_unknown(self) -> bool:
        """After the last turn: give back what a claim may have taken whose answer was lost; whether nothing is left."""
        if self._may_hold_unknown:
            try:
                self._give_unknown_back()
            except SQLAlchemyError as error:
                get_logger().error("unknown_leases_left", worker=self._worker, error=str(error))
        return not self._may_hold_unknown

    def _give_unknown_back(self) -> None:
        held = [job_id for job_id, _ in self._held.snapshot()]
        with self._reserved.transaction(is_whole=True) as connection:
            released = self._store.release_unknown(connection, self._worker, held)
        self._may_hold_unknown = False
        if released:
            get_logger().warning("unknown_leases_released", worker=self._worker, count=len(released))

    def _pause(self, asked_at: float) -> float:
        """Until the next look, after one that found nothing."""
        if self._look_again_at > asked_at:
            return self._look_again_at - asked_at
        return self._settings.poll_interval.total_seconds() * random.uniform(0.8, 1.0)  # noqa: S311 - jitter

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
            self.give_back(possible)

    def _assignment(self, job: Claimed, lease_ends: float) -> Assignment:
        kind, policy = self._kinds[job.topic], self._policies[job.topic]
        return Assignment(self._open_claim(job, kind, policy.max_attempts, lease_ends), kind, policy)


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
