"""What an operator does to many jobs: finding them a window at a time, and moving them by their ids.

A window goes on from where the one before it ended, in the order of an index, so that a sweep over a large table reads
each of its rows once:

========== ============================================= =========================
sweep      index and order                               its states
========== ============================================= =========================
ready      topic, priority, available_at, id             pending, failed
held       locked_by, id                                 processing
finished   updated_at (then id)                          done, dead, canceled
========== ============================================= =========================

A move names the state that was seen: a job that has changed since is left alone.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    true,
    tuple_,
    update,
)

from ..functions import Instant, now, picked
from ..states import READY, TERMINAL, State
from .guards import UNLEASED, in_states, is_among, literal_state

ESCAPE = "/"


def literally(text: str) -> str:
    """The text without the wildcards of LIKE."""
    return re.sub(r"[/%_]", lambda found: ESCAPE + found[0], text)


class Sweep(enum.Enum):
    """Jobs that one index finds, and the columns that order them."""

    READY = (READY, ("topic", "priority", "available_at", "id"))
    HELD = ((State.PROCESSING,), ("locked_by", "id"))
    FINISHED = (TERMINAL, ("updated_at", "id"))

    def __init__(self, states: tuple[State, ...], order: tuple[str, ...]) -> None:
        self.states = states
        self.order = order


@dataclass(frozen=True, slots=True)
class Shape:
    """Which conditions a sweep has; their values are parameters of the statement.

    Attributes:
        states: those wanted, of the sweep's.
        by_topic: of the parameter `topic`.
        by_error: whose last error contains the parameter `error`, made by `literally`.
        has_after, has_before: changed at or after the parameter `after`, before the parameter `before`.
        is_early: not due yet.
    """

    sweep: Sweep
    states: tuple[State, ...]
    by_topic: bool = False
    by_error: bool = False
    has_after: bool = False
    has_before: bool = False
    is_early: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order it; a topic that is fixed orders nothing."""
        return tuple(name for name in self.sweep.order if not (name == "topic" and self.by_topic))


_AVOIDED = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


@cache
def by_index() -> Executable:
    """Have PostgreSQL go by the order of an index for the rest of the transaction.

    A planner whose statistics are old, or that has none, would rather read all that may fit, and sort it.
    """
    off: ColumnElement[str] = literal_column("'off'")
    return select(*(func.set_config(literal_column(f"'{name}'"), off, literal_column("true")) for name in _AVOIDED))


@cache
def count(job: Table, shape: Shape) -> Executable:
    """How many jobs there are in each state: state, jobs."""
    return select(job.c.state, func.count().label("jobs")).where(_fits(job, shape)).group_by(job.c.state)


@cache
def window(job: Table, shape: Shape, *, goes_on: bool) -> Executable:
    """Up to `limit` jobs in the sweep's order: id, state, topic, what orders them, and what a person wants to see.

    On PostgreSQL it is to be run after `by_index`.

    Args:
        goes_on: after the job whose columns in that order are the parameters ``last_<column>``.
    """
    order = [job.c[name] for name in shape.order]
    shown = [job.c[name] for name in ("id", "state", "topic", "updated_at", "last_error")]
    columns = {column.name: column for column in (*shown, *order)}
    condition = _fits(job, shape)
    if goes_on:
        condition = and_(condition, _goes_on(job, shape))
    found: Select[Any] = select(*columns.values(), now().label("database_now")).where(condition)
    return found.order_by(*order).limit(bindparam("limit", type_=BigInteger()))


def _goes_on(job: Table, shape: Shape) -> ColumnElement[bool]:
    last = {name: bindparam(f"last_{name}", type_=job.c[name].type) for name in shape.order}
    beyond = tuple_(*(job.c[name] for name in shape.order)) > tuple_(*last.values())
    first = shape.order[0]
    # Said again, for indexes that have the first column alone.
    return and_(job.c[first] >= last[first], beyond)


def _fits(job: Table, shape: Shape) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [_is_in(job, shape.sweep), in_states(job, *shape.states)]
    if shape.by_topic:
        conditions.append(job.c.topic == bindparam("topic", type_=Text()))
    if shape.by_error:
        conditions.append(job.c.last_error.contains(bindparam("error", type_=Text()), escape=ESCAPE))
    if shape.has_after:
        conditions.append(job.c.updated_at >= bindparam("after", type_=Instant()))
    if shape.has_before:
        conditions.append(job.c.updated_at < bindparam("before", type_=Instant()))
    if shape.is_early:
        conditions.append(job.c.available_at > now())
    return and_(true(), *conditions)


def _is_in(job: Table, sweep: Sweep) -> ColumnElement[bool]:
    """The predicate of the sweep's index, in its very words: SQLite takes no others."""
    return job.c.locked_by.is_not(None) if sweep is Sweep.HELD else in_states(job, *sweep.states)


@cache
def retry(job: Table, seen: State) -> Executable:
    """Send round again, now, those of `ids` that are still in the state seen; yields their ids."""
    forgiven: ColumnElement[int] = literal_column("0")
    return _move(job, seen, state=literal_state(State.PENDING), available_at=now(), crashes=forgiven, **UNLEASED)


@cache
def cancel(job: Table, seen: State) -> Executable:
    """Cancel those of `ids` that are still in the state seen; yields their ids."""
    return _move(job, seen, state=literal_state(State.CANCELED), **UNLEASED)


@cache
def run_now(job: Table, seen: State) -> Executable:
    """Make due those of `ids` that are still in the state seen, and not due yet; yields their ids."""
    return _move(job, seen, job.c.available_at > now(), available_at=now())


@cache
def remove(job: Table, seen: State) -> Executable:
    """Delete those of `ids` that are still in the state seen; yields their ids."""
    unlocked = select(job.c.id).where(is_among(job), _is_still(job, seen)).with_for_update(skip_locked=True)
    return delete(job).where(picked(job.c.id, unlocked.scalar_subquery()), _is_still(job, seen)).returning(job.c.id)


def _move(job: Table, seen: State, *more: ColumnElement[bool], **values: Any) -> Executable:
    unlocked = (
        select(job.c.id)
        .where(is_among(job), _is_still(job, seen), *more)
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    return (
        update(job)
        .where(picked(job.c.id, unlocked), _is_still(job, seen), *more)
        .values(updated_at=now(), **values)
        .returning(job.c.id)
    )


def _is_still(job: Table, seen: State) -> ColumnElement[bool]:
    # A plain "=" would imply the predicate of a partial index, all of which PostgreSQL up to 16 may walk in place of
    # going by primary key, if its statistics say that there is next to nothing in that state.
    return job.c.state.is_not_distinct_from(literal_state(seen))
