"""Durations as people write them: ``150ms``, ``30s``, ``2m``, ``1h30m``, ``7d``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from .exc import OptionError

MICROSECONDS = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
"""How long each unit is, the longest first."""

PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|ms|m|us|s)", re.ASCII)
LONGEST_TEXT = 100
HOW = 'Give a number with a unit (us, ms, s, m, h, d), such as "30s", "1h30m" or "1.5s"'


def parse_duration(value: timedelta | str) -> timedelta:
    """The duration that `value` means; a timedelta means itself.

    Args:
        value: a timedelta, or numbers each with its unit (us, ms, s, m, h, d), the longer unit first: ``"1h30m"``.
            Whatever is finer than a microsecond is rounded to it.

    Raises:
        OptionError: it is no duration, has no unit, is negative, or is longer than a timedelta can be.
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise OptionError(f"Duration {str(value)!r} is negative. Give zero or more.")
        return value
    if not isinstance(value, str):
        raise OptionError(f"Duration {_shown(value)} is of type {type(value).__name__}. {HOW}, or a timedelta.")
    return _parse_text(value)


def format_duration(value: timedelta) -> str:
    """The duration in the form that `parse_duration` reads, exactly and shortly: ``1h30m``, ``0s``."""
    left = value // timedelta(microseconds=1)
    if left < 0:
        return "-" + format_duration(-value)
    parts = []
    for unit, length in MICROSECONDS.items():
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _parse_text(value: str) -> timedelta:
    parts = _split(value.strip())
    if parts is None:
        raise OptionError(f"Duration {_shown(value)} {_fault(value.strip())}. {HOW}.")
    microseconds = sum((Decimal(number) * MICROSECONDS[unit] for number, unit in parts), Decimal(0))
    try:
        return timedelta(microseconds=int(microseconds.to_integral_value()))
    except (OverflowError, ArithmeticError):
        raise OptionError(
            f"Duration {_shown(value)} is longer than a timedelta can be. Give at most 999999999d."
        ) from None


def _split(text: str) -> list[tuple[str, str]] | None:
    """Numbers and their units, or None if the text is anything but those, each unit once and the longest first."""
    if len(text) > LONGEST_TEXT:
        return None
    parts = PART.findall(text)
    units = [unit for _, unit in parts]
    in_order = [unit for unit in MICROSECONDS if unit in units]
    is_whole = "".join(number + unit for number, unit in parts) == text
    return parts if parts and is_whole and units == in_order else None


def _fault(text: str) -> str:
    if not text:
        return "is empty"
    if text.startswith("-"):
        return "is negative"
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        return "has no unit"
    return "is not a duration"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
