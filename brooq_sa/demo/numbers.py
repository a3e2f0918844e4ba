"""What became of it all, counted in the database, and whether that is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, case, func, select

from brooq_sa.states import State

from .jobs import DemoJob
from .models import LeftBehind, Module, Parsed

JOB = DemoJob.__table__
GHOST = "ghost."
"""How the names of modules begin whose transaction is rolled back."""

_done = JOB.c.state == State.DONE


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the demonstration did.

    Attributes:
        enqueued: jobs whose transaction was committed.
        rolled_back: jobs whose transaction was rolled back.
        failing: jobs that fail once.
        left_behind: jobs that the killed worker held.
    """

    enqueued: int
    rolled_back: int
    failing: int
    left_behind: int


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What the database says.

    Attributes:
        enqueued: jobs in the table.
        ghosts: jobs and rows of the transaction that was rolled back.
        done: jobs that are done.
        retried: jobs that are done and had failed before.
        recovered: jobs that are done, were held by the killed worker, and were taken again.
        twice: modules with more than one effect.
        missing: modules with none.
    """

    enqueued: int
    ghosts: int
    done: int
    retried: int
    recovered: int
    twice: int
    missing: int


@dataclass(frozen=True)
class Line:
    """A number of the final table."""

    name: str
    number: int
    expected: int

    @property
    def is_right(self) -> bool:
        return self.number == self.expected


def states(connection: Connection) -> dict[State, int]:
    """How many jobs are in each state."""
    rows = connection.execute(select(JOB.c.state, func.count()).group_by(JOB.c.state))
    return dict.fromkeys(State, 0) | {State(state): count for state, count in rows}


def count(connection: Connection) -> Numbers:
    """All numbers, in one look each."""

    def number(query: Select[Any]) -> int:
        return int(connection.execute(query).scalar_one())

    failures = case((JOB.c.last_error.is_not(None), 1), else_=0)
    left_behind = JOB.join(LeftBehind.__table__, LeftBehind.job_id == JOB.c.id)
    effects = select(Module.id, func.count(Parsed.id).label("written")).outerjoin(Parsed).group_by(Module.id).subquery()
    ghost_rows = number(select(func.count()).where(Module.name.startswith(GHOST)))
    ghost_jobs = number(select(func.count()).where(JOB.c.idempotency_key.startswith(GHOST)))
    return Numbers(
        enqueued=number(select(func.count()).select_from(JOB)),
        ghosts=ghost_rows + ghost_jobs,
        done=number(select(func.count()).where(_done)),
        retried=number(select(func.count()).where(_done, failures == 1)),
        # Taken more often than it failed, and once: so another worker took it after the one that was killed.
        recovered=number(
            select(func.count()).select_from(left_behind).where(and_(_done, JOB.c.attempts > failures + 1))
        ),
        twice=number(select(func.count()).select_from(effects).where(effects.c.written > 1)),
        missing=number(select(func.count()).select_from(effects).where(effects.c.written == 0)),
    )


def table(numbers: Numbers, expected: Expected) -> list[Line]:
    """The final table; all is well if every line is right."""
    return [
        Line("enqueued", numbers.enqueued, expected.enqueued),
        Line("rolled back", expected.rolled_back - numbers.ghosts, expected.rolled_back),
        Line("done", numbers.done, expected.enqueued),
        Line("retried", numbers.retried, expected.failing),
        Line("recovered from the killed worker", numbers.recovered, expected.left_behind),
        Line("effects missing", numbers.missing, 0),
        Line("effects written twice", numbers.twice, 0),
    ]


def is_well(lines: list[Line], expected: Expected) -> bool:
    """Whether every number is right, and the worker was killed while it held something."""
    return all(line.is_right for line in lines) and expected.left_behind > 0


def largest(connection: Connection, limit: int) -> list[tuple[str, int, int, int]]:
    """The modules with the most lines: name, lines, functions, classes."""
    query = (
        select(Module.name, Parsed.lines, Parsed.functions, Parsed.classes)
        .join(Parsed)
        .order_by(Parsed.lines.desc(), Module.name)
        .limit(limit)
    )
    return [(row.name, row.lines, row.functions, row.classes) for row in connection.execute(query)]
