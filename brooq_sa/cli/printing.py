"""Rows on a terminal or in a pipe: aligned, in words, and never with a control character that a job brought along."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

# Beside the control characters: lone surrogates, line separators, and what turns the direction of writing.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_NOT_ASCII = re.compile("[^\x20-\x7e]")

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

GAP = 2
LEAST_FOR_LAST = 20


def clean(text: object, *, keep: str = "") -> str:
    """The text with what could command a terminal spelled out, such as ``\\x1b``."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _spelled(found[0]), str(text))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def print_json(value: object) -> None:
    """Print one JSON document in one line of ASCII, so that no text in it reaches the terminal raw."""
    click.echo(json_line(value))


def json_line(value: object) -> str:
    import msgspec

    return _ascii(msgspec.json.encode(value).decode())


def compact(text: str) -> str:
    """JSON text in one line of ASCII, its numbers as they are written."""
    return _ascii(_formatted(text, -1))


def indented(text: str) -> str:
    """JSON text over many lines, its numbers as they are written."""
    return clean(_formatted(text, 2), keep="\n")


def _formatted(text: str, indent: int) -> str:
    import msgspec

    return msgspec.json.format(text.encode(errors="backslashreplace"), indent=indent).decode()


def _ascii(text: str) -> str:
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", text)


def words(seconds: float) -> str:
    """How long that is: ``12 s``, ``3 min``, ``2 h 5 min``, ``4 d 3 h``."""
    left = int(abs(seconds))
    if left < MINUTE:
        return f"{left} s"
    if left < HOUR:
        return f"{left // MINUTE} min"
    if left < DAY:
        return _pair(left // HOUR, "h", left % HOUR // MINUTE, "min")
    return _pair(left // DAY, "d", left % DAY // HOUR, "h")


def _pair(large: int, unit: str, small: int, its_unit: str) -> str:
    return f"{large} {unit} {small} {its_unit}" if small else f"{large} {unit}"


def relative(instant: datetime, now: datetime) -> str:
    """An instant as seen from another: ``3 min ago``, ``in 2 h``."""
    seconds = (now - instant).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{words(seconds)} ago" if seconds > 0 else f"in {words(seconds)}"


def stamp(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()) -> None:
    """Print rows under headers.

    On a terminal, the last column alone is cut to what room is left; in a pipe nothing is.

    Args:
        right: headers of columns that are flush right.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headers, *cells, strict=True)]
    terminal = Console(file=sys.stdout)
    if terminal.is_terminal:
        left = terminal.width - sum(widths[:-1]) - GAP * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(left, LEAST_FOR_LAST))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for header, width in zip(headers, widths, strict=True):
        table.add_column(
            header, justify="right" if header in right else "left", width=width, no_wrap=True, overflow="ellipsis"
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    # Wide enough for all of them, since a narrower console would cut every column; and a width without a height is not
    # always heeded.
    width = max(terminal.width, sum(widths) + GAP * len(widths))
    Console(file=sys.stdout, width=width, height=terminal.height).print(table, crop=False)


def first_line(text: str | None, limit: int = 200) -> str:
    line = next((line for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: instants as ISO 8601 in UTC."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
