"""Where claims begin, with times that the test makes up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from apps.embedding import base_of, job_class, put, put_many, working
from brooq_sa import enqueue
from brooq_sa.statements.claim import Place
from brooq_sa.store import Claimed
from brooq_sa.worker import places
from brooq_sa.worker.places import BRIEFLY, LONGEST, REST, SAMPLE, SLOW, Places
from databases import Database
from waiting import wait_until

QUICK = 0.001


def job(number: int, *, topic: str = "work", priority: int = 0, on_sqlite: bool = False) -> Claimed:
    instant = None if on_sqlite else 1000 * number
    return Claimed(uuid.UUID(int=number), topic, "{}", 1, priority, 0.5, None, instant)


def place(number: int, priority: int = 0) -> Place:
    return Place(priority, 1000 * number, uuid.UUID(int=number))


class Looking:
    """A worker that looks again and again; its clock moves by what a look takes.

    Attributes:
        from_start: when each look from the start began.
    """

    def __init__(self, *, from_start: float = QUICK, from_place: float = QUICK) -> None:
        self.places = Places()
        self.now = 100.0
        self.takes = {True: from_start, False: from_place}
        self.from_start: list[float] = []
        self.looks = 0

    def look(self, claimed: Sequence[Claimed], want: int = 10, *, is_ahead: bool = True) -> Mapping[str, Place]:
        begins = self.places.next(self.now)
        if not begins:
            self.from_start.append(self.now)
        self.looks += 1
        seconds = self.takes[not begins]
        self.now += seconds
        topics = {each.topic for each in claimed} | {"work"}
        wanted = dict.fromkeys(topics, want)
        self.places.ended(claimed, wanted, room=want, is_ahead=is_ahead, seconds=seconds, now=self.now)
        return begins

    def look_for(self, seconds: float) -> None:
        """Look all the time, and find a full claim each time, for so many seconds."""
        number, until = 0, self.now + seconds
        while self.now < until:
            self.look([job(number + each) for each in range(10)])
            number += 10


def test_the_first_look_is_from_the_start() -> None:
    """A worker that has claimed nothing begins at the start, in every topic."""
    fresh = Places()
    assert fresh.next(0.0) == {}
    assert fresh.due_in(0.0) is None


def test_while_looks_from_the_start_are_quick() -> None:
    """Every look is from the start but one of SAMPLE, which measures the other way."""
    looking = Looking()
    for number in range(10 * SAMPLE):
        looking.look([job(number)])
    assert looking.looks - len(looking.from_start) == 10


def test_in_a_full_queue() -> None:
    """A claim that brought all it asked for is followed by others from its place; the start comes again in BRIEFLY."""
    looking = Looking()
    looking.look_for(1.0)
    gaps = [after - before for before, after in pairwise(looking.from_start)]
    assert min(gaps) >= BRIEFLY
    assert max(gaps) <= BRIEFLY + 3 * QUICK + 1e-9


def test_where_no_jobs_are_taken_ahead() -> None:
    """Every look is from the start but the samples, however full the claims are: nothing waits here meanwhile."""
    looking = Looking()
    for number in range(10 * SAMPLE):
        looking.look([job(number)], want=1, is_ahead=False)
    assert looking.looks - len(looking.from_start) == 10


def test_rare_looks_are_from_the_start() -> None:
    """With long handlers, what a sample missed would wait for one of them: there are none."""
    looking = Looking()
    for number in range(10 * SAMPLE):
        looking.now += 1.0
        looking.look([job(number)], want=1, is_ahead=False)
    assert looking.looks == len(looking.from_start)


def test_a_sample_begins_where_the_last_claim_ended() -> None:
    """It goes on from the last job of each topic; a topic that gave none begins at the start."""
    looking = Looking()
    for number in range(SAMPLE - 1):
        looking.look([job(number), job(50 + number, topic="mail", priority=3)])
    assert looking.look([]) == {"work": place(SAMPLE - 2), "mail": place(50 + SAMPLE - 2, 3)}


def test_once_looks_from_the_start_are_slow() -> None:
    """They take at most about a tenth of the time."""
    looking = Looking(from_start=0.03, from_place=0.002)
    looking.look_for(10.0)
    spent = 0.03 * len(looking.from_start)
    assert 0.3 < spent <= 10.0 / (REST + 1) + 0.03 * SAMPLE


@pytest.mark.parametrize("from_start", [SLOW * QUICK + QUICK, 0.05, 0.5, 5.0])
def test_looks_from_the_start_come_at_least_so_often(from_start: float) -> None:
    """Between the end of one look from the start and the next, LONGEST passes at the most, and one look."""
    looking = Looking(from_start=from_start, from_place=QUICK)
    looking.look_for(60.0)
    gaps = [after - before - from_start for before, after in pairwise(looking.from_start)]
    assert max(gaps) <= LONGEST + 2 * QUICK + 1e-9
    assert len(gaps) >= 60 / (from_start + LONGEST + 2 * QUICK) - 2


def test_quick_again() -> None:
    """When the dead entries are gone, every look is from the start again but for the samples."""
    looking = Looking(from_start=0.5, from_place=QUICK)
    looking.look_for(10.0)
    looking.takes[True] = QUICK
    looking.look_for(LONGEST + 0.1)
    looking.now += BRIEFLY
    looks, from_start = looking.looks, len(looking.from_start)
    for number in range(100):
        looking.look([job(number)])
    assert (looking.looks - looks) - (len(looking.from_start) - from_start) == 100 // SAMPLE


def test_one_slow_look_before_any_sample() -> None:
    """Without a look to compare it with, none is slow: the first may have been long for another reason."""
    looking = Looking(from_start=5.0)
    looking.look([job(1)])
    assert looking.look([job(2)]) == {}


def test_an_empty_look_from_the_start_was_all_there_is() -> None:
    """After one, nothing is due before the poll interval."""
    looking = Looking()
    looking.look([job(1)])
    looking.look([])
    assert looking.places.due_in(looking.now) is None


def test_an_empty_look_from_a_place_is_followed_by_one_from_the_start() -> None:
    """At once if it was a sample; else when the next is due, in LONGEST at the most."""
    sampling = Looking()
    for number in range(SAMPLE - 1):
        sampling.look([job(number)])
    assert sampling.look([])
    assert sampling.places.due_in(sampling.now) == 0.0
    assert sampling.look([]) == {}

    slow = Looking(from_start=5.0)
    while len(slow.from_start) < SAMPLE or not slow.look([job(7)]):
        slow.look([job(7)])
    assert slow.look([])
    due_in = slow.places.due_in(slow.now)
    assert due_in is not None
    assert 0 < due_in <= LONGEST
    slow.now += due_in
    begins = [slow.look([]) for _ in range(2)]
    assert {} in begins  # the second, if the first was a sample


def test_a_topic_that_was_worked_off_keeps_its_farthest_place() -> None:
    """A look from the start that takes a few straggling jobs does not move the place back to the dead entries."""
    looking = Looking()
    looking.look([job(number) for number in range(90, 100)])
    looking.look([job(5)])
    while not (begins := looking.look([])):
        pass
    assert begins == {"work": place(99)}


def test_a_topic_with_work_left_goes_on_from_there() -> None:
    """A claim that is filled with jobs before the place moves it back: more may lie behind them."""
    looking = Looking()
    looking.look([job(number) for number in range(90, 100)])
    looking.look([job(number) for number in range(10)])
    while not (begins := looking.look([])):
        pass
    assert begins == {"work": place(9)}


def test_sqlite_has_no_places() -> None:
    """Its claims tell no instants, and always begin at the start."""
    looking = Looking(from_start=5.0)
    for number in range(3 * SAMPLE):
        assert looking.look([job(number, on_sqlite=True)]) == {}


def test_what_lies_before_the_place(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy worker whose claims begin at places finds a more urgent job, and one committed late, before the others.

    Looks from the start are made as rare as they may become.
    """
    monkeypatch.setattr(places, "SLOW", 0.0)
    monkeypatch.setattr(places, "REST", 1e9)
    from_places = []
    look = Places.next

    def watched(self: Places, now: float) -> Mapping[str, Place]:
        begins = look(self, now)
        from_places.append(bool(begins))
        return begins

    monkeypatch.setattr(Places, "next", watched)
    order: list[int] = []

    def run(job: Any, claim: Any) -> None:
        order.append(job.number)
        time.sleep(0.003)  # so that all together take several times as long as LONGEST

    job = job_class(run)
    with pg.engine.connect() as late:
        enqueue(late, job(number=-1))
        put_many(pg, [job(number=number) for number in range(2500)])
        with working(pg, base_of(job), workers=2, lease="30s") as worker:
            wait_until(lambda: sum(from_places) > 5, what="claims from places")
            late.commit()
            put(pg, job(number=-2), priority=-1)
            wait_until(lambda: {-1, -2} <= set(order), what="both being found")
            assert len(order) < 2400, len(order)
            assert sum(from_places) > len(from_places) / 2
            worker.stop(grace="5s")
