"""What the demonstration shows, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from brooq_sa.demo.display import Display
from brooq_sa.demo.numbers import Line
from brooq_sa.states import State

COUNTS = dict.fromkeys(State, 0) | {State.PENDING: 70, State.PROCESSING: 4, State.FAILED: 1, State.DONE: 25}


def shown(monkeypatch: pytest.MonkeyPatch, *, encoding: str = "utf-8") -> str:
    """All that a display writes to standard output."""
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding=encoding, write_through=True))
    display = Display()
    with display.live():
        display.show(COUNTS, ["worker-1", "worker-2"])
        display.say("something [bold]happened[/bold]")
        display.show(COUNTS, ["worker-1"])
    display.table([Line("done", 3, 3), Line("effects written twice", 1, 0)])
    display.chart([("ast", 1_600, 12, 3), ("this", 16, 0, 0)])
    display.hint("To look further", ["SELECT 1;"])
    return buffer.getvalue().decode(encoding)


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the counts are live: written over as they change, with colours and a bar."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = shown(monkeypatch)
    assert "\x1b[1A" in output  # a line up
    assert "━" in output
    assert re.sub(r"\x1b\[[\d;]*m", "", output).count("70 pending   4 processing   1 failed   25 done") >= 2
    assert "worker-1 worker-2" in output


def test_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere there are plain lines, the counts no more than one a second, and no control characters."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    output = shown(monkeypatch)
    assert re.findall(r"[^\n\x20-\x7e█✓✗]", output) == []
    assert re.search(r"^ +\d+\.\d s  something \[bold\]happened\[/bold\]$", output, re.MULTILINE)
    assert re.search(r"^done +3 +3 +✓ *$", output, re.MULTILINE)
    assert re.search(r"^effects written twice +1 +0 +✗ *$", output, re.MULTILINE)
    assert output.count("█") > output.count("\n")
    assert "  SELECT 1;\n" in output


def test_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only ASCII can be written, marks and bars are ASCII."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    output = shown(monkeypatch, encoding="ascii")
    assert "WRONG" in output
    assert "####" in output
