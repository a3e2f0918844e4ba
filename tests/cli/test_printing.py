"""Rows as they are printed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from brooq_sa.cli.printing import clean, compact, first_line, indented, json_line, print_table, relative, words

HOSTILE = "a\x1b[31mb\x00\x07\x9b2J\x7f\u202eevil\u2028\ud800\r"


def test_control_characters_are_spelled_out() -> None:
    """Nothing that commands a terminal, or turns the direction of writing, is printed raw."""
    assert clean(HOSTILE) == r"a\x1b[31mb\x00\x07\x9b2J\x7f\u202eevil\u2028\ud800\r"
    assert clean("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


@pytest.mark.parametrize("text", ["naïve", "日本語", "👩‍🔬", "a [red]b[/] :smile:"])
def test_other_text_is_left_alone(text: str) -> None:
    """Letters of any script, emoji, and what looks like markup are printed as they are."""
    assert clean(text) == text


@pytest.mark.parametrize("value", [{"x": HOSTILE.replace("\ud800", "")}, ["日本語", "👩‍🔬", "\x7f"]])
def test_json_is_ascii(value: object) -> None:
    """JSON is printed in printable ASCII, and reads back as the same value."""
    line = json_line(value)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == value
    assert compact(json.dumps(value, ensure_ascii=False, indent=3)) == line


def test_numbers_keep_their_digits() -> None:
    """A payload's numbers are printed as they are stored, not as Python's floats would have them."""
    text = '{"a": 1.00000000000000000001, "b": 12345678901234567890123}'
    assert compact(text) == text.replace(" ", "")
    assert "1.00000000000000000001" in indented(text)


@pytest.mark.parametrize(
    "seconds,expected",
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3_599, "59 min"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (86_400, "1 d"),
        (356_400, "4 d 3 h"),
    ],
)
def test_durations_in_words(seconds: float, expected: str) -> None:
    """A duration is told in its two largest units."""
    assert words(seconds) == expected


def test_instants_in_words() -> None:
    """An instant is told as seen from the database's now."""
    now = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    assert relative(now, now) == "now"
    assert relative(now - timedelta(minutes=3), now) == "3 min ago"
    assert relative(now + timedelta(hours=2), now) == "in 2 h"


def test_first_line_of_an_error() -> None:
    """Lists show an error's first line, cut where it is very long."""
    assert first_line(None) == ""
    assert first_line("\n  \nKeyError: 'a'\n  File ...") == "KeyError: 'a'"
    assert first_line("x" * 500) == "x" * 199 + "…"


def test_a_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe columns are aligned, nothing is cut, and there is no colour."""
    print_table(["name", "n", "error"], [["日本", 5, "e" * 300], ["a\x1b[1m", 10, ":smile: [b]x[/b]"]], right={"n"})
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["name       n  error", f"日本       5  {'e' * 300}", "a\\x1b[1m  10  :smile: [b]x[/b]"]


def test_a_table_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the last column alone is cut; ids are whole however narrow it is."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    print_table(["id", "error"], [["0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f", "e" * 300]])
    output = capsys.readouterr().out
    assert "0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f" in output
    assert "e" * 10 in output
    assert "e" * 100 not in output
