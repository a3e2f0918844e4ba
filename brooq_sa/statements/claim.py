"""Taking ready jobs under a lease: the statement that the whole queue turns on.

On PostgreSQL one statement serves all the wanted topics::

    UPDATE job ... WHERE id = ANY (ARRAY(                  -- evaluated once: never more than asked for
      SELECT ... FROM want, LATERAL (                      -- for each topic
        SELECT ... FROM level, LATERAL (                   --   for each priority it has, smallest first
          SELECT id ... ORDER BY available_at, id LIMIT n  --     an ordered probe of the ready index, locking
          FOR NO KEY UPDATE SKIP LOCKED)                   --     what it finds
        LIMIT want.room)                                   --   stops as soon as the topic's room is full; 0 if paused
      LIMIT room))                                         -- stops as soon as there is no room at all

A probe reads only rows that it takes (or that somebody holds locked). A million jobs of another topic, a million
scheduled for later and a million finished cost it nothing, whatever their priorities are.

`level` walks the distinct priorities by jumping from one to the next through the index (a loose index scan; the
PostgreSQL wiki describes it). One `ORDER BY priority, available_at` over the whole topic would be simpler, but would
step over every job that a smaller priority has scheduled for later.

That a topic is paused is asked in the LIMIT, once a topic and before the probes: a limit of 0 runs nothing beneath it.
As a condition it might be joined after the probes, which would lock and drop what they find.

Claimed jobs leave dead entries in the index, which are skipped one by one until a vacuum takes them away, and a vacuum
cannot while anybody holds an old snapshot. So a claim may begin at a `Place`: where the last one ended, in the order of
the index. What comes to lie before that place (jobs sent round again, of a smaller priority, or committed late) is for
claims that begin at the start.

SQLite has neither LATERAL nor row locks. There `claim_level` takes from one topic and priority inside BEGIN IMMEDIATE.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Float,
    Integer,
    SmallInteger,
    Table,
    Text,
    Update,
    Uuid,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql

from ..functions import Instant, json_text, microseconds, now, now_plus, picked, seconds_since
from ..schema import ATTEMPTS_CEILING, PRIORITIES
from ..states import State
from .guards import is_paused, is_ready, literal_state


@cache
def claim(job: Table) -> Executable:
    """Take up to the wanted number of due jobs of each topic, in order of priority, ready time and enqueuing.

    Parameters of the statement: `want`, a list of what `wanted` makes; `room`, how many to take in all; `worker`;
    `lease`, in seconds.

    Returns:
        A statement for PostgreSQL that yields one row a job, in the order of `returned`; none if nothing is due.
    """
    want = (
        func.jsonb_to_recordset(bindparam("want", type_=postgresql.JSONB()))
        .table_valued(
            column("topic", Text()),
            column("room", BigInteger()),
            column("from_priority", SmallInteger()),
            column("from_instant", Instant()),
            column("from_id", Uuid()),
        )
        .render_derived(name="want", with_types=True)
    )
    level = _priorities(job, want)
    due = (
        select(job.c.id)
        .where(
            job.c.topic == want.c.topic,
            job.c.priority == level.c.priority,
            is_ready(job),
            job.c.available_at <= now(),
            _is_at_or_behind(job, want),
            # Which the comparison above implies; but only from this one an index scan knows where to begin.
            job.c.available_at >= _first_instant(level, want),
        )
        .order_by(job.c.available_at, job.c.id)
        .limit(want.c.room)
        .with_for_update(skip_locked=True, key_share=True)
        .correlate(want, level)
        .lateral("due")
    )
    room_if_open = case((is_paused(job, want.c.topic), literal_column("0")), else_=want.c.room)
    of_topic = (
        select(due.c.id).select_from(level.join(due, true())).limit(room_if_open).correlate(want).lateral("of_topic")
    )
    chosen = (
        select(of_topic.c.id)
        .select_from(want.join(of_topic, true()))
        .limit(bindparam("room", type_=BigInteger()))
        .scalar_subquery()
    )
    return _take(job).where(picked(job.c.id, chosen)).returning(*returned(job))


def _priorities(job: Table, want: Any) -> Any:
    """The distinct priorities among a topic's ready jobs, smallest first, each found by one probe of the index."""
    ready = job.alias("ready")
    smallest = (
        select(ready.c.priority)
        .where(ready.c.topic == want.c.topic, is_ready(ready))
        .order_by(ready.c.priority)
        .limit(literal_column("1"))
    )
    first = smallest.where(_is_at_or_behind(ready, want)).correlate(want).scalar_subquery()
    level = select(first.label("priority")).cte("level", recursive=True, nesting=True)
    following = smallest.where(ready.c.priority > level.c.priority).correlate(want, level).scalar_subquery()
    return level.union_all(select(following).where(level.c.priority.is_not(None)))


def _is_at_or_behind(job: Any, want: Any) -> ColumnElement[bool]:
    place = tuple_(want.c.from_priority, want.c.from_instant, want.c.from_id)
    return tuple_(job.c.priority, job.c.available_at, job.c.id) >= place


def _first_instant(level: Any, want: Any) -> ColumnElement[datetime]:
    earliest = cast(literal_column("'-infinity'"), Instant())
    return case((level.c.priority == want.c.from_priority, want.c.from_instant), else_=earliest)


class Place(NamedTuple):
    """A place in the order in which a topic's jobs are claimed.

    Attributes:
        instant: of readiness, in microseconds since 1970.
    """

    priority: int
    instant: int
    id: uuid.UUID


def wanted(topic: str, room: int, place: Place | None) -> dict[str, Any]:
    """What `claim` is to take of a topic: up to `room` jobs, from `place` on or from the start."""
    if place is None:
        return {
            "topic": topic,
            "room": room,
            "from_priority": PRIORITIES.start,
            "from_instant": "-infinity",
            "from_id": _LEAST_ID,
        }
    return {
        "topic": topic,
        "room": room,
        "from_priority": place.priority,
        "from_instant": (_EPOCH + timedelta(microseconds=place.instant)).isoformat(),
        "from_id": str(place.id),
    }


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST_ID = str(uuid.UUID(int=0))


@cache
def next_priority(job: Table) -> Executable:
    """The smallest priority above `above` among the topic's ready jobs; NULL if there is none, or it is paused."""
    topic = bindparam("of_topic", type_=Text())
    # Not as a condition of its own, which SQLite would ask of each ready job in turn.
    topic_if_open = select(topic).where(~is_paused(job, topic)).scalar_subquery()
    return select(func.min(job.c.priority)).where(
        job.c.topic == topic_if_open,
        is_ready(job),
        job.c.priority > bindparam("above", type_=Integer()),
    )


@cache
def claim_level(job: Table) -> Executable:
    """Take up to `room` due jobs of one `topic` and `priority`; for SQLite, within BEGIN IMMEDIATE."""
    chosen = (
        select(job.c.id)
        .where(
            job.c.topic == bindparam("of_topic", type_=Text()),
            job.c.priority == bindparam("level", type_=Integer()),
            is_ready(job),
            job.c.available_at <= now(),
        )
        .order_by(job.c.available_at, job.c.id)
        .limit(bindparam("room", type_=BigInteger()))
        .scalar_subquery()
    )
    return _take(job).where(picked(job.c.id, chosen)).returning(*returned(job))


def _take(job: Table) -> Update:
    return update(job).values(
        state=literal_state(State.PROCESSING),
        # An operator may have left any number in a row; one that overflowed here would fail every claim it is in.
        attempts=case(
            (job.c.attempts < literal_column(str(ATTEMPTS_CEILING)), job.c.attempts + literal_column("1")),
            else_=job.c.attempts,
        ),
        locked_by=bindparam("worker", type_=Text()),
        locked_until=now_plus(bindparam("lease", type_=Float())),
        updated_at=now(),
        progress=null(),  # the attempt starts anew, also if it has the number of one that was given back
    )


def returned(job: Table) -> list[ColumnElement[Any]]:
    """The columns of a claimed job, in the order of `brooq_sa.store.Claimed`."""
    return [
        job.c.id,
        job.c.topic,
        json_text(job.c.payload).label("payload"),
        job.c.attempts,
        job.c.priority,
        seconds_since(job.c.available_at).label("waited"),
        job.c.idempotency_key,
        microseconds(job.c.available_at).label("instant"),
    ]
