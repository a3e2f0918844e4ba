"""What handlers tell of how far they are: checked, bounded, kept for the attempt that told it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from brooq_sa import OptionError
from brooq_sa.progress import LONGEST_NOTE, MOST, Progress, checked, read, stored


@pytest.mark.parametrize(
    "told, words",
    [
        ((45, 100), "45 of 100 (45%)"),
        ((1234567,), "1,234,567"),
        ((0.5, 2, "half a page"), "0.50 of 2 (25%): half a page"),
        ((12, 10), "12 of 10 (100%)"),
        ((3, 0), "3 of 0"),
    ],
)
def test_in_words(told: tuple[float, ...], words: str) -> None:
    """How much of how much, the share where there is one, and the note."""
    assert str(checked(*told)) == words


@pytest.mark.parametrize(
    "told",
    [
        ("1",),
        (-1,),
        (math.nan,),
        (math.inf,),
        (True,),
        (None,),
        (1, "2"),
        (1, -2),
        (1, math.inf),
        (1, 2, 3),
        (1, 2, b"x"),
        (10**400,),
        (10**5000,),
        (1, 2e15),
    ],
)
def test_what_cannot_be_meant_is_refused(told: tuple[object, ...]) -> None:
    """A number that is none, is negative or endless, and a note that is no text, name the value and the rule."""
    with pytest.raises(OptionError, match="Give a "):
        checked(*told)


@given(
    some.one_of(some.integers(0, 10**15), some.floats(0, MOST)),
    some.none() | some.floats(0, MOST),
    some.none() | some.text(max_size=300),
    some.integers(1, 9),
)
def test_a_word_survives_the_row(done: float, total: float | None, note: str | None, attempt: int) -> None:
    """Whatever a handler tells is read again as it was told, for its attempt alone; no text breaks a database."""
    told = checked(done, total, note)
    text = stored(told, attempt)
    assert "\\u0000" not in text
    assert read(json.loads(text), attempt) == told
    assert read(json.loads(text), attempt + 1) is None
    assert len(told.note or "") <= LONGEST_NOTE


@pytest.mark.parametrize("column", [None, 7, [], {}, {"attempt": 1}, {"attempt": 1, "done": "x"}, {"done": 1}])
def test_what_somebody_else_has_written(column: object) -> None:
    """A column that holds something else is as good as none."""
    assert read(column, 1) is None  # type: ignore[arg-type]


def test_a_share_is_no_more_than_all() -> None:
    """Nobody is more than done."""
    assert (Progress(12, 10).ratio, Progress(5, 10).ratio, Progress(5).ratio) == (1.0, 0.5, None)
