"""The conditions that keep one party's write from undoing another's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Table,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    exists,
    literal_column,
    null,
    select,
    update,
)

from ..functions import ById, IdArray, entry, one_of, picked
from ..schema import pause_table
from ..states import READY, State

UNLEASED: dict[str, Any] = {"locked_by": null(), "locked_until": null()}
"""What every move out of `processing` writes, so that the index on holders stays as small as the work in flight."""


def literal_state(state: State) -> ColumnElement[str]:
    return literal_column(f"'{state}'")


def in_states(job: FromClause, *states: State) -> ColumnElement[bool]:
    return job.c.state.in_([literal_state(state) for state in states])


def is_ready(job: FromClause) -> ColumnElement[bool]:
    """Waits for an attempt; whether it is due is a matter of `available_at`."""
    return in_states(job, *READY)


def is_processing(job: Table) -> ColumnElement[bool]:
    return job.c.state == literal_state(State.PROCESSING)


def is_paused(job: Table, topic: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether nothing of the topic is to be claimed."""
    pause = pause_table(job)
    return exists(select(literal_column("1")).where(pause.c.topic == topic).correlate_except(pause))


def is_among(job: Table) -> ColumnElement[bool]:
    """One of the `ids` parameter."""
    return one_of(job.c.id, bindparam("ids", type_=IdArray()))


def is_held(job: Table, attempt: ColumnElement[int]) -> ColumnElement[bool]:
    """Leased to the `worker` parameter by that very attempt: the fence.

    The state cannot be left out: a cancel in plain SQL changes the state alone. The worker cannot be left out, or a
    worker could settle what another has claimed; nor the attempt, or one that slept through its lease and claimed the
    job again could mix up its own two runs.

    With a plain "=" the worker would imply the predicate of the index on holders. PostgreSQL up to 16 then reads every
    entry of that worker, those of all it has ever settled among them until they are vacuumed.
    """
    is_mine = job.c.locked_by.is_not_distinct_from(bindparam("worker", type_=Text()))
    return and_(is_processing(job), is_mine, job.c.attempts == attempt)


def update_held(job: Table) -> Update:
    """An update of those of `ids` that `worker` holds by the attempts in `entries`.

    Rows that somebody else has locked are skipped, so that one of them cannot hold up the rest.
    """
    mine = (
        select(job.c.id)
        .where(is_among(job), is_held(job, attempt_given(job)))
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    return update(job).where(picked(job.c.id, mine), is_held(job, attempt_given(job)))


def field(job: Table, name: str) -> ColumnElement[str]:
    """A field of the `entries` parameter, a `ById`, for the row at hand."""
    return entry(bindparam("entries", type_=ById()), job.c.id, name)


def attempt_given(job: Table) -> ColumnElement[int]:
    """The attempt that the `entries` parameter names for the row at hand."""
    return cast(field(job, "attempt"), Integer)
