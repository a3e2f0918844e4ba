"""Carrying rows out: sides of one group in turn, again and again, so that a slow minute is everybody's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.measuring import Figures, Row, Samples, Side
from benchmarks.peers.installing import CannotInstall

Say = Callable[[str], None]


@dataclass
class Measured:
    """What came of a run.

    Attributes:
        samples: of each side of each row, by the row's name.
        absent: why a side was not measured, by its name.
        failed: the traceback of a side that raised, by its name.
    """

    samples: dict[str, Samples] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def measure(bench: Bench, rows: Sequence[Row], say: Say = lambda _: None) -> Measured:
    """Measure rows, group by group; a side that cannot be measured keeps no other from it."""
    measured = Measured()
    for group in dict.fromkeys(row.group for row in rows):
        _measure_group(bench, [row for row in rows if row.group == group], measured, say)
    return measured


def _measure_group(bench: Bench, rows: list[Row], measured: Measured, say: Say) -> None:
    sides = list(dict.fromkeys(side for row in rows for side in row.sides))
    once = all(row.once for row in rows)
    gathered: Samples = {side.name: [] for side in sides}
    for _ in range(1 if once else bench.sizes.repetitions):
        for side in sides:
            if side.name not in measured.absent and side.name not in measured.failed:
                if figures := _run(bench, side, measured):
                    gathered[side.name].append(figures)
                    say(f"{rows[0].group}: {side.name}: {shown(figures)}")
                else:
                    say(f"{rows[0].group}: {side.name}: {_why(side, measured)}")
    for row in rows:
        measured.samples[row.name] = {side.name: gathered[side.name] for side in row.sides}


def _run(bench: Bench, side: Side, measured: Measured) -> Figures | None:
    try:
        if side.peer is not None:
            bench.peers.command(side.peer)
        return side.measure(bench)
    except CannotInstall as error:
        measured.absent[side.name] = str(error)
    except Exception:
        measured.failed[side.name] = traceback.format_exc()
    return None


def _why(side: Side, measured: Measured) -> str:
    if side.name in measured.absent:
        return f"absent: {measured.absent[side.name]}"
    return f"failed: {measured.failed[side.name]}"


def shown(figures: Figures) -> str:
    """Figures for people."""
    return ", ".join(f"{name} {number(value)}" for name, value in figures.items())


def number(value: float) -> str:
    """A number with three or four digits that matter."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}"


def chosen(rows: Iterable[Row], only: Sequence[str]) -> list[Row]:
    """The rows that are asked for by name or by group; all, if none is.

    Raises:
        LookupError: there is no such row.
    """
    known = list(rows)
    for name in only:
        if not any(name in (row.name, row.group) for row in known):
            raise LookupError(f"There is no row {name!r}. There are {', '.join(row.name for row in known)}.")
    return [row for row in known if not only or row.name in only or row.group in only]
