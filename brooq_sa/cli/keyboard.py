"""Single keys from a terminal, without waiting for Enter."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from typing import Any

ENTER, ESCAPE, BACKSPACE, TAB, UP, DOWN = "enter", "escape", "backspace", "tab", "up", "down"

_NAMES = {
    "\r": ENTER,
    "\n": ENTER,
    "\x1b": ESCAPE,
    "\x7f": BACKSPACE,
    "\b": BACKSPACE,
    "\t": TAB,
    "\x1b[A": UP,
    "\x1bOA": UP,
    "\x1b[B": DOWN,
    "\x1bOB": DOWN,
}
_KEY = re.compile(r"\x1b(?:\[[\d;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)


class Keyboard:
    """Reads keys while it is entered; the terminal is afterwards as it was. Ctrl-C stays what it is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: Any = None

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_error: object) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout: float) -> list[str] | None:
        """The keys that were pressed, after waiting for one for so many seconds; None once the terminal is gone."""
        readable, _, _ = select.select([self._descriptor], [], [], max(0.0, timeout))
        if not readable:
            return []
        try:
            text = os.read(self._descriptor, 1024).decode(errors="ignore")
        except OSError:  # what a terminal that was hung up answers
            return None
        return keys(text) if text else None


def keys(text: str) -> list[str]:
    """What was typed, key by key: characters, or names of those that are none."""
    typed: list[str] = _KEY.findall(text)
    return [key for key in (_NAMES.get(each, each) for each in typed) if key.isprintable()]
