"""Returning the jobs of crashed workers, and deleting finished ones; safe for many at once."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Executable,
    Float,
    ScalarSelect,
    Select,
    Table,
    Text,
    bindparam,
    case,
    delete,
    literal_column,
    not_,
    select,
    update,
)

from ..functions import Payload, ceiling_for, now, now_plus, picked
from ..states import ACTIVE, TERMINAL, State
from .guards import UNLEASED, in_states, is_among, is_processing, literal_state


@cache
def reap(job: Table) -> Executable:
    """Return up to `limit` jobs whose lease ran out to `pending`, available now.

    Yields id, topic, attempts, crashes and state. `attempts` stays: a lease that ran out is a crash, not a failure.
    Where the parameter `ceilings` names a number for the topic, the crash that reaches it leaves the job dead instead.
    The guard is repeated outside the locking sub-select, so that a job which finished in between keeps its outcome.
    """
    crashes = job.c.crashes + literal_column("1")
    is_too_many = crashes >= ceiling_for(bindparam("ceilings", type_=Payload()), job.c.topic)
    lapsed = (
        select(job.c.id)
        .where(job.c.locked_by.is_not(None), is_processing(job), job.c.locked_until < now())
        .order_by(job.c.locked_by, job.c.id)
        .limit(_limit())
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    return (
        update(job)
        .where(picked(job.c.id, lapsed), is_processing(job), job.c.locked_until < now())
        .values(
            state=case((is_too_many, literal_state(State.DEAD)), else_=literal_state(State.PENDING)),
            crashes=crashes,
            last_error=case((is_too_many, bindparam("reason", type_=Text())), else_=job.c.last_error),
            available_at=now(),
            updated_at=now(),
            **UNLEASED,
        )
        .returning(job.c.id, job.c.topic, job.c.attempts, job.c.crashes, job.c.state)
    )


@cache
def purge(job: Table) -> Executable:
    """Delete up to `limit` terminal jobs older than `ttl` seconds, oldest first, but for `ids`; yields their topics.

    The guard that is repeated outside the sub-select says "not active". "Terminal" would imply the predicate of the
    index on finished jobs, and a planner that believes there are none walks all of that index.
    """
    old = expired(job).with_for_update(skip_locked=True).scalar_subquery()
    return delete(job).where(picked(job.c.id, old), not_(in_states(job, *ACTIVE))).returning(job.c.topic)


@cache
def expired(job: Table) -> Select[Any]:
    """The ids of the jobs that `purge` is about: up to `limit`, but for `ids`."""
    return (
        select(job.c.id)
        .where(
            in_states(job, *TERMINAL),
            job.c.updated_at < now_plus(-bindparam("ttl", type_=Float())),
            not_(is_among(job)),
        )
        .order_by(job.c.updated_at)
        .limit(_limit())
    )


@cache
def purge_these(job: Table) -> Executable:
    """Delete those of `ids` that are terminal, but for locked ones; yields their topics."""
    unlocked = select(job.c.id).where(is_among(job)).with_for_update(skip_locked=True).scalar_subquery()
    return delete(job).where(picked(job.c.id, unlocked), not_(in_states(job, *ACTIVE))).returning(job.c.topic)


def _limit() -> ScalarSelect[Any]:
    """The `limit` parameter, hidden from PostgreSQL's planner.

    On a table that was never analysed it believes that few rows fit. A limit that it can read, and that is no smaller,
    then tells it to fetch them all and sort them, or to walk the table; one that it cannot read is taken for a tenth of
    the rows, and makes it go by an index in the wanted order.
    """
    return select(bindparam("limit", type_=BigInteger())).scalar_subquery()
