"""What a row of the table is: sides that are measured side by side, and what is demanded of their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.bench import Bench

Figures = dict[str, float]
"""What one run of a side gives, by name."""

Samples = dict[str, list[Figures]]
"""What all of them gave, by side."""


class Absent(LookupError):
    """A figure that was not measured, since its side could not be."""


@dataclass(frozen=True)
class Side:
    """One of the things that a row holds against each other.

    Attributes:
        measure: gives the figures of one run.
        peer: what must be installed for it, if it is not ours.
    """

    name: str
    measure: Callable[[Bench], Figures]
    peer: str | None = None


class Medians:
    """The median of each figure of each side."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __call__(self, side: str, figure: str = "rate") -> float:
        """The median over the runs of a side.

        Raises:
            Absent: there was no such run.
        """
        values = [sample[figure] for sample in self._samples.get(side, []) if figure in sample]
        if not values:
            raise Absent(f"{side}: {figure}")
        return median(values)

    def ratio(self, side: str, other: str, figure: str = "rate") -> float:
        """How many times the other's figure this side's is.

        Raises:
            Absent: one of them was not measured, or the other's is nought.
        """
        of = self(other, figure)
        if not of:
            raise Absent(f"{other}: {figure} is 0")
        return self(side, figure) / of


@dataclass(frozen=True)
class Demand:
    """A figure that is to be reached.

    Attributes:
        what: names the figure.
        figure: from the medians of the row's sides.
        floor: what must hold; None only reports.
        goal: what is wished for.
        at_most: whether smaller is better.
    """

    what: str
    figure: Callable[[Medians], float]
    floor: float | None = None
    goal: float | None = None
    at_most: bool = False
    unit: str = "×"

    def holds(self, value: float, bound: float | None) -> bool | None:
        """Whether a value reaches a bound, to the third decimal; None if there is none."""
        if bound is None:
            return None
        return round(value, 3) <= bound if self.at_most else round(value, 3) >= bound


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: to ask for it by.
        group: rows of one group are measured together, their sides interleaved.
        what: what is measured, in a sentence.
        chart: the figure of each side that the chart shows, if any.
        once: whether one run is enough, because it is long and steady.
    """

    name: str
    group: str
    what: str
    sides: tuple[Side, ...]
    demands: tuple[Demand, ...]
    chart: str | None = None
    once: bool = False


@dataclass(frozen=True)
class Result:
    """What came of measuring a row.

    Attributes:
        row: its name.
        absent: why a side could not be had, by its name.
        failed: the traceback of a side that raised, by its name.
        conditions: under which it was measured.
    """

    row: str
    samples: Samples
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """A demand, and what came of it; `value` is None where it could not be measured, and `why` then says why."""

    demand: Demand
    value: float | None
    why: str = ""

    @property
    def floor_held(self) -> bool | None:
        return None if self.value is None else self.demand.holds(self.value, self.demand.floor)

    @property
    def goal_reached(self) -> bool | None:
        return None if self.value is None else self.demand.holds(self.value, self.demand.goal)


def verdicts(row: Row, result: Result) -> list[Verdict]:
    """What came of each of a row's demands."""
    medians = Medians(result.samples)
    return [_verdict(demand, medians) for demand in row.demands]


def _verdict(demand: Demand, medians: Medians) -> Verdict:
    try:
        return Verdict(demand, demand.figure(medians))
    except Absent as absent:
        return Verdict(demand, None, f"not measured: {absent}")
