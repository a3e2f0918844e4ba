"""How far an attempt has come, as its handler tells it.

Telling is cheap: it keeps the last word in memory. The worker writes the words of all its attempts in one statement, at
most once a second, on the connection of the heartbeat, and only those that are new. A word is for people to read, and
never decides anything: the last one may be missing from the row of a job that has ended.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .exc import OptionError
from .failure import clean_text

MOST = 1e15
"""The largest number; up to there a float tells whole numbers apart."""

LONGEST_NOTE = 200
"""Characters."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt has come.

    Attributes:
        done: how much of it is done, in whatever unit.
        total: how much there is to do; None where nobody knows.
        note: what it is at.
    """

    done: float
    total: float | None = None
    note: str | None = None

    @property
    def ratio(self) -> float | None:
        """The share that is done, from 0 to 1; None where nobody knows how much there is."""
        return min(self.done / self.total, 1.0) if self.total else None

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {_number(self.total)}"
        share = "" if self.ratio is None else f" ({self.ratio:.0%})"
        return f"{_number(self.done)}{of}{share}" + (f": {self.note}" if self.note else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def checked(done: object, total: object = None, note: object = None) -> Progress:
    """What a handler tells, in the form that every database stores.

    Raises:
        OptionError: a number that is none, or not from 0 to `MOST`; a note that is no text.
    """
    if note is not None and not isinstance(note, str):
        raise OptionError(f"The progress's note is {note!r:.100}. Give a text, or None.")
    cleaned = None if note is None else clean_text(note, LONGEST_NOTE)
    return Progress(_amount("done", done), None if total is None else _amount("total", total), cleaned)


def _amount(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return value
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value > MOST else f"{value!r:.100}"
    raise OptionError(f"The progress's {name} is {shown}. Give a number from 0 to {MOST:g}.")


def stored(progress: Progress, attempt: int) -> str:
    """JSON text for the row, with the attempt that it is of: the next one starts anew."""
    told = {name: each for name, each in asdict(progress).items() if each is not None}
    return json.dumps({"attempt": attempt} | told)


def read(column: Mapping[str, Any] | None, attempts: int) -> Progress | None:
    """What the row's column says of its last attempt; None if that has told nothing, or somebody else wrote it."""
    if not isinstance(column, dict) or column.get("attempt") != attempts:
        return None
    try:
        return checked(column.get("done"), column.get("total"), column.get("note"))
    except OptionError:  # somebody else has written it
        return None


def on_news(worker: str, rouse: Callable[[], object]) -> None:
    """Have `rouse`, a method, called when a claim of the worker's has something new to tell, while its object lives."""
    _rousing[worker] = weakref.WeakMethod(rouse, lambda _gone: _rousing.pop(worker, None))


def tell_of_news(worker: str) -> None:
    rouse = _rousing.get(worker)
    if rouse is not None and (call := rouse()) is not None:
        call()


_rousing: dict[str, weakref.WeakMethod[Callable[[], object]]] = {}
