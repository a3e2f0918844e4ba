"""Claiming: one thread that takes jobs for all slots.

::

                 ┌───────── a slot came free, a wake-up came, the poll interval passed ─────────┐
                 ▼                                                                              │
               wait ─▶ claim for the free slots, and ahead of them ─┬─ some came: start them ───┤ again at once
                                                                    └─ none came ───────────────┘ at the next poll

It has a connection of its own, so that PostgreSQL takes jobs while it settles others, and both while handlers run.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.exc import SQLAlchemyError

from ..claims import AsyncClaim, Claim
from ..engines import Reserved
from ..events import Events, JobClaimed
from ..kinds import Kind
from ..log import get_logger
from ..outcomes import dead
from ..schema import ATTEMPTS_CEILING
from ..settings import WorkerSettings
from ..store import Claimed, JobStore
from .attempts import Assignment, Finished, about
from .held import Held
from .pace import Pace
from .places import Places
from .slots import Room, Slots

TOLD = 0.1
"""Seconds within which outcomes that are in their rows are told, unless the answer was lost."""

OpenClaim = Callable[[Claimed, Kind, int, float], Claim | AsyncClaim]


class Claiming:
    """Takes jobs; `turn` is one round of waiting for room and claiming.

    Args:
        store: of the table.
        reserved: the connection set apart for this.
        kinds: what to claim, by topic.
        open_claim: makes the claim that a handler receives.
    """

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        slots: Slots,
        kinds: Mapping[str, Kind],
        settings: WorkerSettings,
        *,
        worker: str,
        held: Held,
        pace: Pace,
        events: Events,
        open_claim: OpenClaim,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._slots = slots
        self._kinds = kinds
        self._policies = {topic: kind.policy(settings) for topic, kind in kinds.items()}
        self._settings = settings
        self._worker = worker
        self._held = held
        self._pace = pace
        self._events = events
        self._open_claim = open_claim
        self._topics = deque(kinds)
        self._places = Places()
        self._busy_topics = 1
        self._may_hold_unknown = False

    def turn(self) -> float:
        room = self._slots.wait_to_claim()
        if room is None:
            return 0.0
        asked_at = time.monotonic()
        pause = None
        try:
            want, most = self._wanted(room)
            if claimed := self._ask(want, most, asked_at, is_ahead=most > room.free):
                self._begin(claimed, asked_at)
            else:
                pause = self._pause()
        finally:
            self._slots.asked(asked_at, pause)
        return 0.0

    def _pause(self) -> float:
        """Seconds until the next look, after one that found nothing."""
        interval = self._settings.poll_interval.total_seconds() * random.uniform(0.8, 1.0)  # noqa: S311 - jitter
        due_in = self._places.due_in(time.monotonic())
        return interval if due_in is None else min(interval, due_in)

    def _wanted(self, room: Room) -> tuple[dict[str, int], int]:
        """How many jobs to take, by topic and in all.

        Topics that have work share the room. None is always the last to get what is left of it, and each is asked for a
        job at least, or those that wait here of one that is fast would keep the others from ever being looked at.
        """
        self._topics.rotate(-1)
        by_topic = {topic: max(1, room.free + room.ahead.get(topic, 0)) for topic in self._topics}
        most = max(by_topic.values())
        share = -(-most // self._busy_topics)
        return {topic: min(each, share) for topic, each in by_topic.items()}, most

    def _ask(self, want: Mapping[str, int], most: int, asked_at: float, *, is_ahead: bool) -> list[Claimed]:
        if self._may_hold_unknown:
            self._give_unknown_back()
        self._may_hold_unknown = True  # until the answer is here: it may be lost on the way
        lease, places = self._settings.lease, self._places.next(asked_at)
        with self._reserved.transaction() as connection:
            claimed = self._store.claim(connection, want, room=most, worker=self._worker, lease=lease, places=places)
        self._may_hold_unknown = False
        now = time.monotonic()
        self._places.ended(claimed, want, room=most, is_ahead=is_ahead, seconds=now - asked_at, now=now)
        return claimed

    def _begin(self, claimed: Sequence[Claimed], asked_at: float) -> None:
        told_by = time.monotonic() + TOLD
        for job in claimed:
            if job.attempt > 1:  # one that has failed just now, whose failure is about to be told: first things first
                self._held.wait_until_told((job.id, job.attempt - 1), max(0.0, told_by - time.monotonic()))
        lease_ends = asked_at + self._settings.lease.total_seconds()
        assignments = [self._assignment(job, lease_ends) for job in self._in_turn(claimed)]
        self._held.add((assignment.claim for assignment in assignments), rouses=False)
        for assignment in assignments if self._events.is_wanted(JobClaimed) else ():
            claim = assignment.claim
            self._events.publish(JobClaimed(claim.id, claim.topic, claim.attempt, self._worker, claim.waited))
        impossible = [each for each in assignments if each.claim.attempt >= ATTEMPTS_CEILING]
        if impossible:
            self._slots.give_up(map(_parked, impossible))
            assignments = [each for each in assignments if each not in impossible]
        try:
            self._slots.add(assignments)
        finally:
            self._held.rouse()  # the watchdog can wait, and handlers cannot

    def _in_turn(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """The jobs in the order they are to start: by priority; of the same, the topics take turns."""
        by_topic: dict[str, list[Claimed]] = defaultdict(list)
        for job in claimed:
            by_topic[job.topic].append(job)
        self._busy_topics = len(by_topic)
        self._pace.note_sizes({topic: max(len(job.payload) for job in jobs) for topic, jobs in by_topic.items()})
        if len(by_topic) == 1:
            return claimed
        nth: Counter[tuple[str, int]] = Counter()
        turns = []
        for job in claimed:
            nth[job.topic, job.priority] += 1
            turns.append((job.priority, nth[job.topic, job.priority]))
        return [job for _, job in sorted(zip(turns, claimed, strict=True), key=lambda pair: pair[0])]

    def _assignment(self, job: Claimed, lease_ends: float) -> Assignment:
        kind, policy = self._kinds[job.topic], self._policies[job.topic]
        return Assignment(self._open_claim(job, kind, policy.max_attempts, lease_ends), kind, policy)

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


def _parked(assignment: Assignment) -> Finished:
    reason = f"its attempts have reached {ATTEMPTS_CEILING:,}, beyond which none can be counted"
    get_logger().error("job_parked", reason=reason, **about(assignment.claim))
    return Finished(assignment.claim, dead(assignment.claim._holding, reason))
