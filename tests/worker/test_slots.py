"""What the worker's threads share: attempts that wait, those that run, and outcomes to be written."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from apps.embedding import Heard, bare_claim
from brooq_sa import wake
from brooq_sa.events import Events
from brooq_sa.outcomes import done
from brooq_sa.states import State
from brooq_sa.worker.attempts import Assignment, Finished
from brooq_sa.worker.pace import AHEAD, STALE, TURNS, Pace
from brooq_sa.worker.slots import LOW_WATER, Room, Slots
from waiting import wait_until

KIND: Any = SimpleNamespace(topic="work")
OTHER_KIND: Any = SimpleNamespace(topic="other")
IN_A_WHILE = 10.0


class Recording:
    """An executor that runs nothing, and keeps what it was given."""

    def __init__(self) -> None:
        self.begun: list[Assignment] = []
        self.refuses = False

    def submit(self, assignments: Sequence[Assignment]) -> None:
        if self.refuses:
            raise RuntimeError("can't start new thread")
        self.begun.extend(assignments)


class Bench:
    """Slots with two executors, and a thread to wait on."""

    def __init__(self, count: int = 2) -> None:
        self.executor, self.other = Recording(), Recording()
        self.events = Events()
        self.heard = Heard(self.events)
        self.pace = Pace(count)
        self.slots = Slots(count, self.pace, self.events, lambda kind: self.executor if kind is KIND else self.other)
        self._pool = ThreadPoolExecutor(4)

    def add(self, count: int, kind: Any = KIND) -> list[Assignment]:
        assignments = [Assignment(bare_claim(), kind, None) for _ in range(count)]  # type: ignore[arg-type]
        self.slots.add(assignments)
        return assignments

    def end(self, assignment: Assignment) -> tuple[bool, Assignment | None]:
        return self.slots.ended(finished(assignment), self.executor if assignment.kind is KIND else self.other)

    def begins(self, call: Callable[[], Any]) -> Future[Any]:
        """The call's answer to come, on a thread that has begun it."""
        return self._pool.submit(call)

    def be_fast(self, count: int) -> None:
        """Let so many attempts have ended just now."""
        self.pace.look(time.monotonic())
        for _ in range(count):
            self.pace.note("work")

    def given_back(self) -> list[Any]:
        """The claims of what has been given back since the last time, in order."""
        outcomes = self.slots.wait_for_outcomes(0.0)
        assert all(each.outcome is not None and each.outcome.give_back for each in outcomes)
        return [each.claim for each in outcomes]

    def close(self) -> None:
        self.slots.close()
        self.slots.allow_claims()
        self._pool.shutdown()


def finished(assignment: Assignment) -> Finished:
    return Finished(assignment.claim, done(assignment.claim._holding))


def claims(assignments: Sequence[Assignment]) -> list[Any]:
    return [each.claim for each in assignments]


def soon() -> float:
    return time.monotonic() + IN_A_WHILE


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


class TestRunning:
    def test_as_many_run_as_there_are_slots(self, bench: Bench) -> None:
        """The first begin, in the order in which they were given; the others wait."""
        given = bench.add(5)
        assert bench.executor.begun == given[:2]
        assert bench.slots.running == 2

    def test_a_slot_takes_its_next_attempt_itself(self, bench: Bench) -> None:
        """Whoever ends an attempt is handed the next that waits, in order, and the slot stays taken."""
        given = bench.add(4)
        assert bench.end(given[0]) == (False, given[2])
        assert bench.end(given[1]) == (False, given[3])
        assert bench.slots.running == 2
        assert bench.end(given[2]) == (False, None)
        assert bench.end(given[3]) == (False, None)
        assert bench.slots.running == 0
        assert bench.executor.begun == given[:2]

    def test_an_attempt_for_another_executor(self, bench: Bench) -> None:
        """One that the ending thread cannot run itself is begun where it can be run."""
        given = bench.add(2)
        [following] = bench.add(1, OTHER_KIND)
        assert bench.end(given[0]) == (False, None)
        assert bench.other.begun == [following]
        assert bench.slots.running == 2

    def test_outcomes_come_in_the_order_of_the_ends(self, bench: Bench) -> None:
        """Each once; what could not be written comes first again."""
        given = bench.add(2)
        bench.end(given[1])
        bench.end(given[0])
        outcomes = bench.slots.wait_for_outcomes(None)
        assert [each.claim for each in outcomes] == claims([given[1], given[0]])
        assert bench.slots.wait_for_outcomes(0.0) == []
        [third] = bench.add(1)
        bench.end(third)
        bench.slots.put_first(outcomes)
        assert [each.claim for each in bench.slots.wait_for_outcomes(None)] == claims([given[1], given[0], third])

    def test_waiting_for_outcomes(self, bench: Bench) -> None:
        """The wait ends when an attempt does."""
        [assignment] = bench.add(1)
        waiting = bench.begins(lambda: bench.slots.wait_for_outcomes(None))
        bench.end(assignment)
        assert [each.claim for each in waiting.result(10)] == [assignment.claim]

    def test_many_threads_at_once(self, bench: Bench) -> None:
        """Whatever the order in which threads come, each attempt is begun once and ends once (I6)."""
        begun: list[Assignment] = []
        queue = bench.add(400)
        begun.extend(bench.executor.begun)

        def serve(assignment: Assignment | None) -> None:
            while assignment is not None:
                _, assignment = bench.end(assignment)
                if assignment is not None:
                    begun.append(assignment)

        for thread in [bench.begins(partial(serve, first)) for first in queue[:2]]:
            thread.result(10)
        assert sorted(map(id, begun)) == sorted(map(id, queue))
        assert len(bench.slots.wait_for_outcomes(0.0)) == 400
        assert bench.slots.running == 0


class TestHung:
    def test_the_slot_goes_to_a_waiting_attempt(self, bench: Bench) -> None:
        """An attempt that does not end gives its slot to the next, and its outcome is to be written."""
        given = bench.add(3)
        assert bench.slots.hung(finished(given[0]))
        assert bench.executor.begun == given
        assert bench.slots.running == 2
        assert [each.claim for each in bench.slots.wait_for_outcomes(0.0)] == [given[0].claim]
        assert bench.heard.names() == ["HandlerHung"]

    def test_it_ends_after_all(self, bench: Bench) -> None:
        """Its end is told, frees no slot a second time, and has no outcome."""
        given = bench.add(3)
        bench.slots.hung(finished(given[0]))
        bench.slots.wait_for_outcomes(0.0)
        assert bench.end(given[0]) == (True, None)
        assert bench.slots.running == 2
        assert bench.slots.wait_for_outcomes(0.0) == []
        assert bench.heard.names()[0] == "HandlerHung"
        assert len(bench.heard.names()) == 2

    def test_it_has_ended_at_the_last_moment(self, bench: Bench) -> None:
        """What has ended cannot be given up, nor what has been given up already."""
        first, second = bench.add(2)
        bench.end(first)
        assert not bench.slots.hung(finished(first))
        assert bench.slots.hung(finished(second))
        assert not bench.slots.hung(finished(second))
        assert bench.slots.running == 0
        assert len(bench.slots.wait_for_outcomes(0.0)) == 2

    def test_what_has_gone_back_holds_no_slot(self, bench: Bench) -> None:
        """A claim that waits to be given back, through an outage longer than its lease, has no slot to give up."""
        given = bench.add(4)
        bench.slots.give_waiting_back()
        bench.slots.give_unbegun_back(given[1:2])
        for each in given[1:]:
            assert not bench.slots.hung(finished(each))
        assert bench.slots.running == 1
        assert len(bench.slots.wait_for_outcomes(0.0)) == 3

    def test_what_waits_holds_no_slot(self, bench: Bench) -> None:
        """A job that is canceled while it waits for a slot has none to give up."""
        given = bench.add(3)
        assert not bench.slots.hung(finished(given[2]))
        assert bench.slots.running == 2
        assert bench.end(given[0]) == (False, given[2])

    def test_what_cannot_be_run_holds_no_slot(self, bench: Bench) -> None:
        """Nor has one that was parked instead of begun."""
        parked = Assignment(bare_claim(), KIND, None)  # type: ignore[arg-type]
        bench.slots.give_up([finished(parked)])
        assert not bench.slots.hung(finished(parked))
        assert bench.slots.running == 0


class TestGivingBack:
    def test_stale_jobs(self, bench: Bench) -> None:
        """What has waited for STALE seconds goes back with its attempt; what has not, and what runs, stays."""
        given = bench.add(5)
        for each in given[:4]:
            each.taken_at -= STALE + 1
        assert bench.slots.give_stale_back() == 2
        assert bench.given_back() == claims(given[2:4])
        assert bench.end(given[0]) == (False, given[4])
        assert bench.slots.give_stale_back() == 0

    def test_not_before_its_time(self, bench: Bench) -> None:
        """A job that has waited for less than STALE keeps waiting."""
        given = bench.add(3)
        given[2].taken_at -= STALE - 0.2
        assert bench.slots.give_stale_back() == 0

    def test_a_stop_gives_waiting_jobs_back(self, bench: Bench) -> None:
        """All that wait, with their attempts; what runs goes on (T6, I6)."""
        given = bench.add(5)
        bench.slots.stop_claiming()
        bench.slots.give_waiting_back()
        assert bench.given_back() == claims(given[2:])
        assert bench.end(given[0]) == (False, None)

    def test_a_claim_that_ends_after_the_stop(self, bench: Bench) -> None:
        """What it brings goes back, and none of it begins (T6, I6)."""
        bench.slots.stop_claiming()
        given = bench.add(3)
        assert bench.given_back() == claims(given)
        assert (bench.executor.begun, bench.slots.running) == ([], 0)

    def test_an_executor_that_cannot_begin(self, bench: Bench) -> None:
        """Everything it was given goes back, and all that waits; the slots are free again (I6)."""
        bench.executor.refuses = True
        with pytest.raises(RuntimeError, match="can't start"):
            bench.add(5)
        assert len(bench.given_back()) == 5
        assert bench.slots.running == 0

    def test_one_of_two_executors_cannot_begin(self, bench: Bench) -> None:
        """What the other was given runs."""
        bench.executor.refuses = True
        both = [Assignment(bare_claim(), kind, None) for kind in (KIND, OTHER_KIND, KIND)]  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="can't start"):
            bench.slots.add(both)
        assert bench.other.begun == [both[1]]
        assert bench.slots.running == 1
        assert sorted(map(id, bench.given_back())) == sorted(map(id, claims([both[0], both[2]])))

    def test_an_executor_that_cannot_take_over(self, bench: Bench) -> None:
        """If the next attempt cannot begin where it is to run, it and those behind it go back; claims pause (I6)."""
        given = bench.add(2)
        others = bench.add(2, OTHER_KIND)
        bench.other.refuses = True
        assert bench.end(given[0]) == (False, None)
        assert bench.slots.running == 1
        [ended, *back] = bench.slots.wait_for_outcomes(0.0)
        assert ended.claim is given[0].claim
        assert [each.claim for each in back] == claims(others)
        claiming = bench.begins(bench.slots.wait_to_claim)
        time.sleep(0.1)  # long enough for a claim that does not pause
        assert not claiming.done()
        bench.slots.look_now()
        assert claiming.result(10) == Room(1, {})


class TestClaiming:
    def test_room_for_free_slots(self, bench: Bench) -> None:
        """Where slots turn over slowly, a claim is for the free slots alone."""
        assert bench.slots.wait_to_claim() == Room(2, {})
        bench.add(1)
        bench.slots.asked(time.monotonic(), None)
        assert bench.slots.wait_to_claim() == Room(1, {})

    def test_full_slots(self, bench: Bench) -> None:
        """No claim begins until a slot comes free."""
        given = bench.add(2)
        claiming = bench.begins(bench.slots.wait_to_claim)
        time.sleep(0.05)
        assert not claiming.done()
        bench.end(given[0])
        assert claiming.result(10) == Room(1, {})

    def test_jobs_are_taken_ahead_while_slots_turn_over_fast(self, bench: Bench) -> None:
        """Though every slot is taken, there is room for as many as have ended of late."""
        bench.add(2)
        bench.be_fast(20)
        assert bench.slots.wait_to_claim() == Room(0, {"work": 20})

    def test_none_are_claimed_while_enough_wait(self, bench: Bench) -> None:
        """The next claim begins once no more than LOW_WATER of the jobs taken ahead is left."""
        given = bench.add(2 + 20)
        bench.be_fast(20)
        claiming = bench.begins(bench.slots.wait_to_claim)
        time.sleep(0.02)
        assert not claiming.done()
        for each in given[: 20 - int(20 * LOW_WATER)]:
            bench.be_fast(0)
            bench.end(each)
        room = claiming.result(10)
        assert room.free <= -int(20 * LOW_WATER)

    def test_when_slots_become_slow(self, bench: Bench) -> None:
        """Then nothing is claimed while a job waits here, and for free slots alone when none does."""
        given = bench.add(3)
        bench.be_fast(TURNS * 2)
        time.sleep(3 * AHEAD)  # the pace is measured in real time
        claiming = bench.begins(bench.slots.wait_to_claim)
        time.sleep(0.02)
        assert not claiming.done()
        for each in given:
            bench.end(each)
        assert claiming.result(10).free >= 1

    def test_stale_jobs_make_no_room(self, bench: Bench) -> None:
        """A worker that has given jobs back does not take them again while its slots are taken."""
        given = bench.add(4)
        for each in given:
            each.taken_at -= 1
        claiming = bench.begins(bench.slots.wait_to_claim)
        assert bench.slots.give_stale_back() == 2
        time.sleep(0.05)
        assert not claiming.done()

    def test_the_poll_interval(self, bench: Bench) -> None:
        """After a claim that found nothing the next begins when its pause is over."""
        bench.slots.wait_to_claim()
        began_at = time.monotonic()
        bench.slots.asked(began_at, 0.1)
        assert bench.slots.wait_to_claim() is not None
        assert time.monotonic() - began_at >= 0.1

    def test_a_wake_up_ends_the_pause(self, bench: Bench) -> None:
        """And the worker looks twice more soon after: the second time for what another worker has left of a flood."""
        bench.slots.wait_to_claim()
        bench.slots.asked(time.monotonic(), 100.0)
        claiming = bench.begins(bench.slots.wait_to_claim)
        woken_at = time.monotonic()
        bench.slots.look_now()
        assert claiming.result(10) is not None
        bench.slots.asked(time.monotonic(), 100.0)
        assert bench.begins(bench.slots.wait_to_claim).result(10) is not None
        bench.slots.asked(time.monotonic(), 100.0)
        assert bench.begins(bench.slots.wait_to_claim).result(10) is not None
        assert time.monotonic() - woken_at >= wake.LAST_LOOK
        # Nothing was heard since: now the pause counts.
        bench.slots.asked(time.monotonic(), 100.0)
        fourth = bench.begins(bench.slots.wait_to_claim)
        time.sleep(2 * wake.LAST_LOOK)
        assert not fourth.done()

    def test_a_claim_that_brought_jobs(self, bench: Bench) -> None:
        """Is followed by another at once, and, if that finds nothing, by one more soon after."""
        bench.slots.wait_to_claim()
        bench.slots.asked(time.monotonic(), None)
        assert bench.begins(bench.slots.wait_to_claim).result(10) is not None
        bench.slots.asked(time.monotonic(), 100.0)
        assert bench.begins(bench.slots.wait_to_claim).result(10) is not None
        bench.slots.asked(time.monotonic(), 100.0)
        third = bench.begins(bench.slots.wait_to_claim)
        time.sleep(2 * wake.LOOK_AGAIN)
        assert not third.done()

    def test_a_wake_up_while_a_claim_is_under_way(self, bench: Bench) -> None:
        """It may be about a job that the claim did not see: the next begins at once."""
        bench.slots.wait_to_claim()
        asked_at = time.monotonic()
        time.sleep(0.002)
        bench.slots.look_now()
        bench.slots.asked(asked_at, 100.0)
        before = time.monotonic()
        assert bench.begins(bench.slots.wait_to_claim).result(10) is not None
        assert time.monotonic() - before < 50

    def test_closing(self, bench: Bench) -> None:
        """Whoever waits to claim or to settle returns, with nothing."""
        bench.add(2)
        claiming = bench.begins(bench.slots.wait_to_claim)
        settling = bench.begins(lambda: bench.slots.wait_for_outcomes(None))
        bench.slots.close()
        assert (claiming.result(10), settling.result(10)) == (None, [])

    def test_after_a_stop(self, bench: Bench) -> None:
        """No claim begins, whatever room there is."""
        bench.slots.stop_claiming()
        claiming = bench.begins(bench.slots.wait_to_claim)
        bench.slots.look_now()
        time.sleep(0.05)
        assert not claiming.done()


class TestHoldingClaims:
    def test_no_claim_begins_while_they_are_held(self, bench: Bench) -> None:
        """Until they are allowed again, not even a wake-up begins one."""
        bench.slots.hold_claims()
        claiming = bench.begins(bench.slots.wait_to_claim)
        bench.slots.look_now()
        time.sleep(0.05)
        assert not claiming.done()
        bench.slots.allow_claims()
        assert claiming.result(10) == Room(2, {})

    def test_a_claim_under_way_is_waited_for(self, bench: Bench) -> None:
        """Holding claims returns once the claim that is under way has its answer (I4)."""
        bench.slots.wait_to_claim()
        holding = bench.begins(bench.slots.hold_claims)
        time.sleep(0.05)
        assert not holding.done()
        bench.slots.asked(time.monotonic(), None)
        holding.result(10)

    def test_allowing_what_was_not_held(self, bench: Bench) -> None:
        """It changes nothing."""
        bench.slots.allow_claims()
        assert bench.slots.wait_to_claim() == Room(2, {})


class TestEnding:
    def test_draining(self, bench: Bench) -> None:
        """A drain ends when nothing runs, waits, or is being claimed."""
        given = bench.add(3)
        assert not bench.slots.drain(time.monotonic())
        draining = bench.begins(lambda: bench.slots.drain(soon()))
        for each in given:
            assert not draining.done()
            bench.end(each)
        assert draining.result(10)

    def test_draining_waits_for_a_claim(self, bench: Bench) -> None:
        """What a claim under way brings is not left behind."""
        bench.slots.wait_to_claim()
        assert not bench.slots.drain(time.monotonic())
        draining = bench.begins(lambda: bench.slots.drain(soon()))
        bench.slots.asked(time.monotonic(), None)
        assert draining.result(10)

    def test_flushing(self, bench: Bench) -> None:
        """A flush ends when every outcome has been written or refused, those of jobs given back too."""
        given = bench.add(3)
        bench.end(given[0])
        bench.slots.give_up([finished(given[1])])
        bench.slots.give_waiting_back()
        assert not bench.slots.flush(time.monotonic())
        flushing = bench.begins(lambda: bench.slots.flush(soon()))
        outcomes = bench.slots.wait_for_outcomes(0.0)
        bench.slots.put_first(outcomes)
        outcomes = bench.slots.wait_for_outcomes(0.0)
        bench.slots.written(len(outcomes) - 1)
        assert not flushing.done()
        bench.slots.written(1)
        assert flushing.result(10)

    def test_nothing_is_ever_lost(self) -> None:
        """However ends, stale jobs, refusals and a stop meet, each job has one outcome, and no slot is left taken."""
        bench = Bench(4)
        given: list[Assignment] = []
        is_over = threading.Event()

        def run_what_begins() -> None:
            while not is_over.is_set() or bench.executor.begun:
                following: Assignment | None = bench.executor.begun.pop() if bench.executor.begun else None
                while following is not None:
                    _, following = bench.end(following)

        def give_back() -> None:
            while not is_over.is_set():
                bench.slots.give_stale_back()

        runners = [bench.begins(run_what_begins), bench.begins(give_back)]
        for number in range(300):
            assignments = [Assignment(bare_claim(), KIND, None) for _ in range(7)]  # type: ignore[arg-type]
            given.extend(assignments)
            bench.executor.refuses = number % 10 == 9
            try:
                bench.slots.add(assignments)
            except RuntimeError:
                assert number % 10 == 9
            for each in assignments[::2]:
                each.taken_at -= math.inf
        wait_until(lambda: bench.slots.drain(time.monotonic()), what="every attempt having ended")
        is_over.set()
        for runner in runners:
            runner.result(10)
        outcomes = bench.slots.wait_for_outcomes(0.0)
        assert sorted(id(each.claim) for each in outcomes) == sorted(map(id, claims(given)))
        assert {each.outcome.state for each in outcomes if each.outcome} == {State.DONE, State.PENDING}
        assert bench.slots.running == 0
        bench.close()
