"""Carrying rows out: sides of one group in turn, again and again, so that a slow minute is everybody's."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.bench import Bench
from benchmarks.measuring import Figures, Result, Row, Samples, Side
from benchmarks.peers.installing import CannotInstall

Say = Callable[[str], None]


def measure(bench: Bench, rows: Sequence[Row], say: Say = lambda _: None) -> Iterator[Result]:
    """Measure rows, group by group; a side that cannot be measured keeps no other from it."""
    for group in dict.fromkeys(row.group for row in rows):
        yield from _Group(bench, [row for row in rows if row.group == group], say).measure()


class _Group:
    """Rows whose sides are measured in turn."""

    def __init__(self, bench: Bench, rows: list[Row], say: Say) -> None:
        self._bench = bench
        self._rows = rows
        self._say = say
        self._sides = list(dict.fromkeys(side for row in rows for side in row.sides))
        self._samples: Samples = {side.name: [] for side in self._sides}
        self._absent: dict[str, str] = {}
        self._failed: dict[str, str] = {}

    def measure(self) -> list[Result]:
        is_once = all(row.once for row in self._rows)
        for _ in range(1 if is_once else self._bench.sizes.repetitions):
            for side in self._sides:
                if side.name not in self._absent and side.name not in self._failed:
                    self._say(f"{self._rows[0].group}: {side.name}: {self._run(side)}")
        return [self._result(row) for row in self._rows]

    def _run(self, side: Side) -> str:
        try:
            if side.peer is not None:
                self._bench.peers.command(side.peer)
            figures = side.measure(self._bench)
        except CannotInstall as error:
            self._absent[side.name] = str(error)
            return f"absent: {error}"
        except Exception:
            self._failed[side.name] = traceback.format_exc()
            return f"failed: {self._failed[side.name]}"
        self._samples[side.name].append(figures)
        return shown(figures)

    def _result(self, row: Row) -> Result:
        names = [side.name for side in row.sides]
        return Result(
            row=row.name,
            samples={name: self._samples[name] for name in names},
            absent={name: why for name, why in self._absent.items() if name in names},
            failed={name: why for name, why in self._failed.items() if name in names},
        )


def shown(figures: Figures) -> str:
    """Figures for people."""
    return ", ".join(f"{name} {number(value)}" for name, value in figures.items())


def number(value: float) -> str:
    """A number with three or four digits that matter."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 or not size else f"{value:.3f}"


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
