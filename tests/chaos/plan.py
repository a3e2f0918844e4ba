"""The plan of a run: which fault when, to whom, for how long. It follows from the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from chaos.jobs import LEASE

EVERY = 1.6
"""Seconds between two faults, on the average."""

QUIET = 1.0
"""Seconds without a fault, once all processes are at work."""

LENGTHS = {
    "stop worker": (0.5 * LEASE, 2.0 * LEASE),
    "stop consumer": (0.5 * LEASE, 2.0 * LEASE),
    "cut line, delay": (0.3 * LEASE, 2.0 * LEASE),
    "cut line, silence": (0.3 * LEASE, 2.0 * LEASE),
    "cut line, reset": (0.3, 1.5 * LEASE),
    "restart server, fast": (0.0, 2.0),
    "restart server, immediate": (0.0, 2.0),
    "read-only": (0.5, 3.0),
    "end worker twice": (0.0, 2.0),
}
"""How long the faults that end last, in seconds."""

ON_SQLITE = {"kill worker": 5, "kill consumer": 1, "kill producer": 2, "cancel": 1}
WEIGHTS = {
    "kill worker": 5,
    "end worker": 4,
    "end worker twice": 1,
    "stop worker": 5,
    "kill consumer": 2,
    "stop consumer": 1,
    "kill producer": 3,
    "cut line, delay": 4,
    "cut line, silence": 4,
    "cut line, reset": 3,
    "restart server, fast": 2,
    "restart server, immediate": 2,
    "end connections": 3,
    "kill connection's process": 1,
    "read-only": 2,
    "cancel": 5,
    "cancel in plain SQL": 4,
    "retry": 4,
    "step a clock": 2,
}
PROMOTION = "promote standby"
PROMOTE_EVERY = 150.0
"""Seconds; it is the longest of all faults, so it has a time of its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to the run.

    Attributes:
        at: seconds after the beginning.
        target: to be taken modulo how many there are to choose from.
        length: seconds that it lasts.
    """

    at: float
    name: str
    target: int
    length: float

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.name}" + (f", {self.length:.1f} s" if self.length else "")


def plan(seed: int, seconds: float, *, is_sqlite: bool = False, only: frozenset[str] = frozenset()) -> list[Fault]:
    """The faults of a run in order of time; every kind comes once before any comes twice, if there is time."""
    chance = Random(f"faults {seed}")
    weights = ON_SQLITE if is_sqlite else WEIGHTS
    if only:
        weights = {name: weight for name, weight in weights.items() if name in only}
    first = chance.sample(list(weights), len(weights))
    faults: list[Fault] = []
    at = QUIET
    while at < seconds:
        name = first.pop() if first else chance.choices(list(weights), list(weights.values()))[0]
        shortest, longest = LENGTHS.get(name, (0.0, 0.0))
        faults.append(Fault(at, name, chance.randrange(1_000), chance.uniform(shortest, longest)))
        at += chance.uniform(0.2, 2 * EVERY - 0.2)
    if not is_sqlite and (not only or PROMOTION in only):
        faults += [
            Fault(moment, PROMOTION, chance.randrange(1_000), 0.0)
            for moment in _evenly(min(PROMOTE_EVERY, seconds) * 0.4, PROMOTE_EVERY, seconds)
        ]
    return sorted(faults, key=lambda fault: fault.at)


def _evenly(begin: float, step: float, end: float) -> list[float]:
    return [begin + step * number for number in range(int((end - begin) // step) + 1)]
