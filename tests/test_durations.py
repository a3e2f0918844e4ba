"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brooq_sa.durations import format_duration, parse_duration
from brooq_sa.exc import OptionError


@pytest.mark.parametrize(
    "text, expected",
    [
        ("150ms", timedelta(milliseconds=150)),
        ("30s", timedelta(seconds=30)),
        ("2m", timedelta(minutes=2)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("1m500ms", timedelta(minutes=1, milliseconds=500)),
        ("1.5s", timedelta(milliseconds=1_500)),
        ("720h", timedelta(days=30)),
        ("250us", timedelta(microseconds=250)),
        ("0s", timedelta(0)),
        (" 2m ", timedelta(minutes=2)),
        ("0.1s", timedelta(milliseconds=100)),
    ],
)
def test_numbers_with_units_are_durations(text: str, expected: timedelta) -> None:
    """Each unit is read exactly, alone or after a longer one (U3)."""
    assert parse_duration(text) == expected


@pytest.mark.parametrize("bare", ["120", "0", "1.5", "1."])
def test_bare_numbers_are_refused(bare: str) -> None:
    """A number without a unit is refused, and the error says how to give one (U3)."""
    with pytest.raises(OptionError, match=r"has no unit\. Give a number with a unit .* such as \"30s\""):
        parse_duration(bare)


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("-5s", "is negative"),
        ("soon", "is not a duration"),
        ("30 s", "is not a duration"),
        ("30s!", "is not a duration"),
        ("1m1h", "is not a duration"),
        ("1s1s", "is not a duration"),
        ("1e3s", "is not a duration"),
        ("infs", "is not a duration"),
        ("٣s", "is not a duration"),
        ("30S", "is not a duration"),
        ("1s\n2", "is not a duration"),
        ("9" * 5_000 + "s", "is not a duration"),
        ("1000000000d", "is longer than a timedelta can be"),
    ],
)
def test_other_text_is_refused(text: str, fault: str) -> None:
    """The error names the text, in a readable length, and what is wrong with it."""
    with pytest.raises(OptionError, match=fault) as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 300
    assert text[:5] in str(caught.value) or repr(text)[1:-1] in str(caught.value)


@pytest.mark.parametrize("value", [30, 1.5, True, None, b"30s"])
def test_other_types_are_refused(value: object) -> None:
    """Whatever is neither text nor a timedelta is refused with the name of its type, numbers first of all (U3)."""
    with pytest.raises(OptionError, match=f"is of type {type(value).__name__}"):
        parse_duration(value)  # type: ignore[arg-type]


def test_a_timedelta_means_itself() -> None:
    """A timedelta is taken as it is, unless it is negative."""
    assert parse_duration(timedelta(seconds=3)) == timedelta(seconds=3)
    with pytest.raises(OptionError, match="is negative"):
        parse_duration(timedelta(seconds=-3))


@given(st.timedeltas(min_value=timedelta(0)))
def test_what_is_formatted_is_read_back(value: timedelta) -> None:
    """Every duration survives the way to text and back, to the microsecond."""
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("text", ["0s", "1h30m", "7d", "150ms", "1m1s1ms1us", "-5s"])
def test_durations_are_shown_shortly(text: str) -> None:
    """The text of a duration has no unit that is not needed, and a minus sign in front if it is negative."""
    value = -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)
    assert format_duration(value) == text
