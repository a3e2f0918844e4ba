"""What the worker's threads share: the attempts that wait, those that run, and the outcomes to be written.

::

    claiming ── add ──▶ waiting ── a slot is free ──▶ running ── ended, hung ──▶ outbox ── take ──▶ settling
                           │                                                       ▲
                           └────────── stale, or the worker stops: given back ─────┘

The thread whose attempt has ended takes the next one itself, without waking another.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol

from .. import wake
from ..events import Events
from ..kinds import Kind
from ..log import get_logger
from ..outcomes import released
from . import facts
from .attempts import Assignment, Finished, about
from .pace import STALE, Pace

LOW_WATER = 0.75
"""The part of the jobs taken ahead that is left when more are claimed."""

PAUSE = 1.0
"""Seconds until the next claim when an attempt could not begin."""


class Executor(Protocol):
    """Where attempts run."""

    def submit(self, assignments: Sequence[Assignment], /) -> None:
        """Run them; each that ends is told to `Slots.ended`.

        Raises:
            Exception: it cannot, and runs none of them.
        """


class Room(NamedTuple):
    """For how many jobs there is room.

    Attributes:
        free: slots that are free, less the jobs that wait for one.
        ahead: how many may wait, by topic.
    """

    free: int
    ahead: dict[str, int]


class Slots:
    """So many attempts run at a time; others may wait.

    Args:
        count: how many run.
        pace: is told of those that end.
        executor_of: where attempts of a kind run.
    """

    def __init__(self, count: int, pace: Pace, events: Events, executor_of: Callable[[Kind], Executor]) -> None:
        self.count = count
        self._pace = pace
        self._events = events
        self._executor_of = executor_of
        self._lock = threading.Lock()
        self._something_ended = threading.Condition(self._lock)
        self._room_came = threading.Condition(self._lock)
        self._grew_quiet = threading.Condition(self._lock)
        self._waiting: deque[Assignment] = deque()
        self._running = 0
        self._outbox: list[Finished] = []
        self._unwritten = 0
        self._low_water = 0
        self._next_claim = 0.0
        self._look_again_at = 0.0
        self._last_look_at = 0.0
        self._is_claiming = True
        self._is_asking = False
        self._are_claims_held = False
        self._is_closed = False

    # What executors call.

    def ended(self, finished: Finished, executor: Executor) -> tuple[bool, Assignment | None]:
        """An attempt has ended: its slot is free, and its outcome is to be written.

        Returns:
            Whether it had been given up as hung, so that its slot is somebody else's and its outcome is refused; and
            the attempt that the slot is to run next, if it is one for the same executor.
        """
        claim = finished.claim
        with self._lock:
            is_hung: bool = claim._is_hung
            following = None if is_hung else self._end(finished)
        if is_hung:
            self._events.publish(facts.late(claim))
            return True, None
        if following is not None and self._executor_of(following.kind) is not executor:
            self._hand_over(following)
            following = None
        return False, following

    def _end(self, finished: Finished) -> Assignment | None:
        finished.claim._has_ended = True
        self._pace.note(finished.claim.topic)
        return self._free(finished)

    def _free(self, finished: Finished) -> Assignment | None:
        """Free a slot; the attempt that takes it."""
        self._put_out([finished])
        if self._waiting:
            following = self._waiting.popleft()
            if len(self._waiting) <= self._low_water and not self._is_asking:
                self._room_came.notify()
            return following
        self._running -= 1
        self._room_came.notify()
        self._grew_quiet.notify_all()
        return None

    def _put_out(self, finished: Sequence[Finished]) -> None:
        if not self._outbox:  # or whoever waits for outcomes has been told
            self._something_ended.notify()
        self._outbox.extend(finished)
        self._unwritten += len(finished)

    # What the watchdog and a stop call.

    def hung(self, finished: Finished) -> bool:
        """An attempt does not end: its slot is given up, and this outcome is to be written.

        Returns:
            False if it has no slot: it waits for one, has ended at the last moment, has gone back or was given up
            before. Its outcome may not be written yet.
        """
        claim = finished.claim
        with self._lock:
            if claim._has_ended or claim._is_hung or any(each.claim is claim for each in self._waiting):
                return False
            claim._is_hung = True
            following = self._free(finished)
        self._events.publish(facts.hung(claim))
        if following is not None:
            self._hand_over(following)
        return True

    def give_up(self, finished: Iterable[Finished]) -> None:
        """Attempts are not waited for any longer: their outcomes are to be written, though they may still run."""
        with self._lock:
            self._end_without_slot(list(finished))

    def give_stale_back(self) -> int:
        """Give back what has waited too long for a slot; how many."""
        since = time.monotonic() - STALE
        with self._lock:
            stale = []
            while self._waiting and self._waiting[0].taken_at < since:
                stale.append(self._waiting.popleft())
            self._give_back(stale)
        return len(stale)

    def give_waiting_back(self) -> None:
        """Give back what waits for a slot."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._give_back(waiting)

    def give_unbegun_back(self, assignments: Sequence[Assignment]) -> None:
        """Give back what has a slot and has not begun, and free their slots."""
        with self._lock:
            held = [assignment for assignment in assignments if not assignment.claim._is_hung]
            self._running -= len(held)
            self._give_back(held)

    def _give_back(self, assignments: Sequence[Assignment]) -> None:
        if assignments:
            self._end_without_slot([_unstarted(assignment) for assignment in assignments])
            self._room_came.notify()
            self._grew_quiet.notify_all()

    def _end_without_slot(self, finished: Sequence[Finished]) -> None:
        for each in finished:
            each.claim._has_ended = True  # or the watchdog would free a slot for it, if its lease ran out unwritten
        self._put_out(finished)

    def stop_claiming(self) -> None:
        with self._lock:
            self._is_claiming = False
            self._room_came.notify()

    def drain(self, deadline: float) -> bool:
        """Wait until no attempt runs or is about to, until `deadline` by the monotonic clock; whether it is so."""
        with self._lock:
            return self._grew_quiet.wait_for(
                lambda: not (self._running or self._waiting or self._is_asking), max(0.0, deadline - time.monotonic())
            )

    def flush(self, deadline: float) -> bool:
        """Wait until every outcome is written, until `deadline` by the monotonic clock; whether it is so."""
        with self._lock:
            return self._grew_quiet.wait_for(lambda: not self._unwritten, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Let those return who wait to claim or to settle."""
        with self._lock:
            self._is_closed = True
            self._room_came.notify_all()
            self._something_ended.notify_all()

    # What claiming calls.

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return self._running

    def look_now(self) -> None:
        """There may be new jobs: do not wait for the poll interval, and look twice more soon after."""
        with self._lock:
            self._next_claim = 0.0
            now = time.monotonic()
            self._look_again_at = now + wake.LOOK_AGAIN
            self._last_look_at = now + wake.LAST_LOOK
            self._room_came.notify()

    def wait_to_claim(self) -> Room | None:
        """Wait until jobs are to be claimed. From then on a stop, and whoever gives attempts back, wait for `asked`.

        Returns:
            For how many there is room; None if it is time to end.
        """
        with self._lock:
            while not self._is_closed:
                now = time.monotonic()
                self._pace.look(now)
                ahead = self._pace.ahead()
                most_ahead = max(ahead.values(), default=0)
                self._low_water = int(most_ahead * LOW_WATER)  # not for each slot that comes free: claims are for many
                free = self.count - self._running - len(self._waiting)
                has_room = free + most_ahead > 0 and len(self._waiting) <= self._low_water
                may_claim = has_room and self._is_claiming and not self._are_claims_held
                if may_claim and self._next_claim <= now:
                    self._is_asking = True
                    return Room(free, ahead)
                self._room_came.wait(self._next_claim - now if may_claim else None)
        return None

    def add(self, assignments: Sequence[Assignment]) -> None:
        """These were claimed: begin as many as slots are free, and let the others wait.

        Raises:
            Exception: some cannot begin. They, and those behind them, go back.
        """
        now = time.monotonic()
        for assignment in assignments:
            assignment.taken_at = now
        with self._lock:
            if not self._is_claiming:  # told to stop while the claim was under way
                self._give_back(assignments)
                return
            self._waiting.extend(assignments)
            beginning = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.count - self._running))]
            self._running += len(beginning)
        by_executor: dict[Executor, list[Assignment]] = defaultdict(list)
        for assignment in beginning:
            by_executor[self._executor_of(assignment.kind)].append(assignment)
        with ExitStack() as begun:  # each, even if one before it fails
            for executor, its_assignments in by_executor.items():
                begun.callback(self._begin, executor, its_assignments)

    def _begin(self, executor: Executor, assignments: Sequence[Assignment]) -> None:
        try:
            executor.submit(assignments)
        except Exception:
            # No thread to be had. Others may have the jobs.
            self.give_unbegun_back(assignments)
            self.give_waiting_back()
            raise

    def _hand_over(self, assignment: Assignment) -> None:
        """Begin an attempt in another executor than the one whose slot came free."""
        try:
            self._begin(self._executor_of(assignment.kind), [assignment])
        except Exception:  # noqa: BLE001 - the job has gone back, and whoever freed the slot has nothing to do with it
            get_logger().exception("attempt_not_begun", **about(assignment.claim))
            with self._lock:
                self._next_claim = time.monotonic() + PAUSE

    def asked(self, asked_at: float, pause: float | None) -> None:
        """The claim that `wait_to_claim` allowed is over.

        Args:
            asked_at: when it began, by the monotonic clock.
            pause: seconds until the next if nobody has more to tell; None if it brought jobs, or failed.
        """
        with self._lock:
            self._is_asking = False
            # A wake-up that came while the claim was under way may be about a job that it did not see.
            was_woken = self._look_again_at > asked_at + wake.LOOK_AGAIN
            if pause is None:
                self._next_claim = 0.0
                self._look_again_at = max(self._look_again_at, asked_at + wake.LOOK_AGAIN)
            elif was_woken:
                self._next_claim = 0.0
            elif self._look_again_at > asked_at:
                self._next_claim = self._look_again_at
            else:
                self._next_claim = time.monotonic() + pause
                if self._last_look_at > asked_at:
                    self._next_claim = min(self._next_claim, self._last_look_at)
            self._something_ended.notify()
            self._grew_quiet.notify_all()

    # What settling calls.

    def wait_for_outcomes(self, moment: float | None) -> list[Finished]:
        """Wait until attempts have ended, until `moment` by the monotonic clock; their outcomes, in that order."""
        with self._lock:
            while not (self._outbox or self._is_closed):
                timeout = None if moment is None else moment - time.monotonic()
                if timeout is not None and timeout <= 0:
                    break
                self._something_ended.wait(timeout)
            outcomes, self._outbox = self._outbox, []
            return outcomes

    def put_first(self, outcomes: Sequence[Finished]) -> None:
        """These could not be written: they are the first that `wait_for_outcomes` gives again."""
        with self._lock:
            self._outbox[:0] = outcomes

    def written(self, count: int) -> None:
        """So many outcomes have been accepted or refused."""
        with self._lock:
            self._unwritten -= count
            if not self._unwritten:
                self._grew_quiet.notify_all()

    def hold_claims(self) -> None:
        """Let no claim begin until `allow_claims`, and wait for one that is under way.

        A claim beside a give-back could take the very job at the very attempt that is being given back. If the answer
        were lost, the give-back would be sent again, and be accepted for that claim.
        """
        with self._lock:
            self._are_claims_held = True
            self._something_ended.wait_for(lambda: not self._is_asking)

    def allow_claims(self) -> None:
        with self._lock:
            if self._are_claims_held:
                self._are_claims_held = False
                self._room_came.notify()


def _unstarted(assignment: Assignment) -> Finished:
    """The end of an attempt that never began: the job goes back as if it had not been taken."""
    return Finished(assignment.claim, released(assignment.claim._holding))
