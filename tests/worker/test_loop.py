"""A loop turns until it is stopped, whatever a turn raises."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy.exc import OperationalError

from brooq_sa.worker.loop import Loop
from waiting import wait_until


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text to be had")


class Turns:
    """A turn that raises each of the errors in its time, and counts."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after an error are too short to be noticed."""
    monkeypatch.setattr("brooq_sa.worker.loop.backoff", lambda *given: timedelta(0))


@pytest.mark.parametrize("error", [ValueError("a"), SystemExit(3), KeyboardInterrupt(), Unspeakable()])
def test_a_loop_survives(error: BaseException) -> None:
    """Whatever a turn raises, the next one comes (R4)."""
    turns = Turns(error)
    loop = Loop("part", turns)
    loop.start()
    wait_until(lambda: turns.count == 2, what="a second turn")
    assert loop.stop(5)


def test_a_loop_survives_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that raises, as one whose stream is closed does, does not end the loop that it fails."""

    def refuse() -> object:
        raise BrokenPipeError

    monkeypatch.setattr("brooq_sa.worker.loop.get_logger", refuse)
    turns = Turns(ValueError("a"))
    loop = Loop("part", turns)
    loop.start()
    wait_until(lambda: turns.count >= 2, what="a second turn")
    assert loop.stop(5)


def test_trouble_is_told_until_it_is_over() -> None:
    """`trouble` says what fails, and nothing any more once a turn has succeeded."""
    seen: list[str | None] = []
    errors: list[Exception] = [ValueError("first"), ValueError("second")]

    def turn() -> float:
        seen.append(loop.trouble)
        if errors:
            raise errors.pop(0)
        return 0.0

    loop = Loop("part", turn)
    loop.start()
    wait_until(lambda: len(seen) >= 4, what="four turns")
    loop.stop(5)
    assert seen[:4] == [None, "ValueError: first", "ValueError: second", None]


def test_trouble_has_no_parameters() -> None:
    """What the database said is told without the statement and its parameters, where secrets may be (W3)."""
    turns = Turns(OperationalError("UPDATE job SET x = :x", {"x": "hunter2"}, Exception("server gone")))
    turns.errors.append(ValueError("so that the first stays"))
    loop = Loop("part", turns)
    loop._failed(turns.errors[0], 0.0)
    assert loop.trouble == "Exception: server gone"


def test_wake_ends_a_pause() -> None:
    """A wake-up brings the next turn at once, however long the pause was to be."""
    turns = Turns()
    loop = Loop("part", turns)
    loop.start()
    wait_until(lambda: turns.count == 1, what="a turn")
    loop.wake()
    wait_until(lambda: turns.count == 2, what="a turn by a wake-up")
    assert loop.stop(5)


def test_stop_lets_a_turn_end() -> None:
    """A stop waits for the turn under way; one that takes too long is reported."""
    entered, go_on = threading.Event(), threading.Event()

    def turn() -> float:
        entered.set()
        go_on.wait(10)
        return 0.0

    loop = Loop("part", turn)
    loop.start()
    assert entered.wait(5)
    assert not loop.stop(0.01)
    go_on.set()
    assert loop.stop(5)


def test_a_loop_that_never_started_stops() -> None:
    """Stopping what was not started is done at once."""
    assert Loop("part", Turns()).stop(5)
