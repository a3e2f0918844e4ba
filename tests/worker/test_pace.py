"""How many jobs are taken ahead of the slots that are free for them."""

from __future__ import annotations

import pytest

from brooq_sa.worker.pace import AHEAD, MOST_BYTES, MOST_JOBS, TURNS, Pace


def noted(pace: Pace, counts: dict[str, int]) -> Pace:
    for topic, count in counts.items():
        for _ in range(count):
            pace.note(topic)
    return pace


def started(slots: int) -> Pace:
    """A pace that has been looked at once, at 100 seconds."""
    pace = Pace(slots)
    pace.look(100.0)
    return pace


def test_nothing_is_taken_ahead_at_first() -> None:
    """A worker that has ended nothing takes a job for each free slot, and none besides."""
    assert started(4).ahead() == {}


def test_as_many_as_have_ended_of_late() -> None:
    """Of each topic as many jobs are taken ahead as have ended within the last AHEAD seconds."""
    pace = noted(started(4), {"mail": 20, "report": 3})
    assert pace.ahead() == {"mail": 20, "report": 3}


@pytest.mark.parametrize("slots", [1, 4, 10])
def test_none_while_slots_turn_over_slowly(slots: int) -> None:
    """All slots ending at once, as those of long jobs that were begun together do, is no turnover."""
    assert noted(started(slots), {"long": slots}).ahead() == {}
    assert noted(started(slots), {"long": TURNS * slots - 1}).ahead() == {}
    assert noted(started(slots), {"short": TURNS * slots}).ahead() == {"short": TURNS * slots}


def test_what_ended_is_forgotten() -> None:
    """What ended counts until twice AHEAD has passed, and not longer."""
    pace = noted(started(1), {"mail": 30})
    pace.look(100.0 + 1.1 * AHEAD)
    assert pace.ahead() == {"mail": 30}
    pace.look(100.0 + 2.2 * AHEAD)
    assert pace.ahead() == {}


def test_a_long_silence_is_forgotten_at_once() -> None:
    """After a silence the first look already takes nothing ahead."""
    pace = noted(started(1), {"mail": 30})
    pace.look(100.0 + 10 * AHEAD)
    assert pace.ahead() == {}


def test_the_busier_of_two_spans_counts() -> None:
    """A span that has just begun does not make the worker forget how busy the one before was."""
    pace = noted(started(1), {"mail": 30})
    pace.look(100.0 + 1.1 * AHEAD)
    assert noted(pace, {"mail": 5}).ahead() == {"mail": 30}
    assert noted(pace, {"mail": 40}).ahead() == {"mail": 45}


def test_never_more_than_so_many() -> None:
    """However fast slots turn over, MOST_JOBS of a topic wait at the most."""
    assert noted(started(1), {"mail": 3 * MOST_JOBS}).ahead() == {"mail": MOST_JOBS}


def test_never_more_than_so_many_bytes() -> None:
    """Large payloads are bounded by their bytes, going by the largest of the topic's last claim."""
    pace = noted(started(1), {"film": 100, "mail": 100, "huge": 100})
    pace.note_sizes({"film": MOST_BYTES // 10, "huge": MOST_BYTES + 1})
    assert pace.ahead() == {"film": 10, "mail": 100, "huge": 0}
    pace.note_sizes({"film": 100})
    assert pace.ahead() == {"film": 100, "mail": 100, "huge": 0}


def test_empty_payloads() -> None:
    """A topic whose payloads are empty is bounded by their number."""
    pace = noted(started(1), {"tick": 100})
    pace.note_sizes({"tick": 0})
    assert pace.ahead() == {"tick": 100}
