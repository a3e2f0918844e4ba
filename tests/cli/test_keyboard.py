"""Single keys from a terminal."""

from __future__ import annotations

import os
import pty
import termios

from brooq_sa.cli.keyboard import Keyboard, keys


def test_keys() -> None:
    """Characters are themselves, what has a name goes by it, and what is neither is passed over."""
    assert keys("qé/\r\x7f\t") == ["q", "é", "/", "enter", "backspace", "tab"]
    assert keys("\x1b[A\x1b[B\x1bOA\x1b") == ["up", "down", "up", "escape"]
    assert keys("\x1b[5~\x1b[1;5C\x01") == []


def test_a_terminal() -> None:
    """Keys come one by one without Enter; the terminal is afterwards as it was, and its end is told."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with Keyboard(theirs) as keyboard:
        assert keyboard.read(0) == []
        os.write(ours, b"jq")
        assert keyboard.read(10) == ["j", "q"]
        assert not termios.tcgetattr(theirs)[3] & termios.ICANON
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
