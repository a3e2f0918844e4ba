"""Going everywhere that a protocol leads, the nearest places first, and the way to what must not be."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .protocol import Job, Protocol, Step, World, canonical, invariants


@dataclass(frozen=True)
class CounterExample:
    """The shortest way to a broken invariant."""

    steps: list[Step]
    broken: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{number:3}. {_told(step)}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, *(f"     broken: {each}" for each in self.broken)])


@dataclass
class Exploration:
    """What was found.

    Attributes:
        worlds: how many different ones there are, mirror images left out.
        kinds: how many steps of each kind led from one to another.
        states: in which states a job was seen.
        roads: by which kinds of step each terminal state was entered.
        counter_example: the first one met; nothing beyond it was explored.
    """

    worlds: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    states: set[str] = field(default_factory=set)
    roads: set[tuple[str, str]] = field(default_factory=set)
    counter_example: CounterExample | None = None


def explore(protocol: Protocol) -> Exploration:
    """Visit every world once, the nearest first, until an invariant is broken."""
    with _without_collecting():
        return _explore(protocol)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Tuples by the million, and none in a cycle: looking for cycles among them takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _explore(protocol: Protocol) -> Exploration:
    found = Exploration()
    start = canonical(protocol.start)
    came_from: dict[World, tuple[World, Step] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        found.states.update(job.row.state for job in world.jobs if job.row is not None)
        for step in protocol.steps(world):
            found.kinds[step.kind] += 1
            broken = step.broken or tuple(invariants(step.world))
            if broken:
                found.counter_example = CounterExample([*_way(came_from, world), step], broken)
                found.worlds = len(came_from)
                return found
            _note_road(found, world, step)
            following = canonical(step.world)
            if following not in came_from:
                came_from[following] = (world, step)
                waiting.append(following)
    found.worlds = len(came_from)
    return found


def _note_road(found: Exploration, world: World, step: Step) -> None:
    for before, after in zip(world.jobs, step.world.jobs, strict=True):
        if before.row is not None and after.row is not None and before.row.state != after.row.state:
            found.roads.add((step.kind, after.row.state))
        elif before.row is not None and after.row is None:
            found.roads.add((step.kind, "deleted"))


def _way(came_from: dict[World, tuple[World, Step] | None], world: World) -> list[Step]:
    steps = []
    while (arrival := came_from[world]) is not None:
        world, step = arrival
        steps.append(step)
    return steps[::-1]


def _told(step: Step) -> str:
    about = f"job {step.job + 1}: " if len(step.world.jobs) > 1 and step.kind != "crash" else ""
    return f"{about}{step.details}\n{''.join(_look(job) for job in step.world.jobs)}".rstrip()


def _look(job: Job) -> str:
    row = job.row
    if row is None:
        return "       -> (deleted)\n"
    lease = "" if row.holder is None else f", held by {'AB'[row.holder]}, lease {row.until}"
    return f"       -> {row.state}, attempts {row.attempts}{lease}\n"
