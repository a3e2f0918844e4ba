"""Reading what the table says: a job's fate, what is in flight, how deep each topic is."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from sqlalchemy import Executable, Integer, Table, Uuid, and_, bindparam, case, func, literal_column, select

from ..functions import now, seconds_since
from ..states import ACTIVE, State
from .guards import in_states, is_processing, is_ready


@cache
def show(job: Table) -> Executable:
    """Every column of one job."""
    return select(job).where(job.c.id == bindparam("job_id", type_=Uuid()))


@cache
def fate(job: Table) -> Executable:
    """Where one job stands: id, topic, state, attempts, error, progress, and in how many seconds it is due."""
    return select(
        *(job.c[name] for name in ("id", "topic", "state", "attempts")),
        job.c.last_error.label("error"),
        job.c.progress,
        (-seconds_since(job.c.available_at)).label("due_in"),
    ).where(job.c.id == bindparam("job_id", type_=Uuid()))


def jobs(
    job: Table,
    *,
    topics: Collection[str] = (),
    states: Collection[State] = (),
    key: str | None = None,
    worker: str | None = None,
    error: str | None = None,
    limit: int = 50,
) -> Executable:
    """Jobs that fit every filter given, the last changed first.

    Args:
        error: text that `last_error` contains, taken literally.
        limit: how many at most.
    """
    statement = select(job).order_by(job.c.updated_at.desc(), job.c.id.desc()).limit(limit)
    if topics:
        statement = statement.where(job.c.topic.in_(topics))
    if states:
        statement = statement.where(in_states(job, *states))
    if key is not None:
        statement = statement.where(job.c.idempotency_key == key)
    if worker is not None:
        statement = statement.where(job.c.locked_by == worker)
    if error is not None:
        statement = statement.where(job.c.last_error.contains(error, autoescape=True))
    return statement


@cache
def depths(job: Table) -> Executable:
    """How many jobs each topic has in each state: topic, state, count."""
    return select(job.c.topic, job.c.state, func.count().label("jobs")).group_by(job.c.topic, job.c.state)


@cache
def lags(job: Table) -> Executable:
    """For each topic with ready jobs: topic, how many are due, and the age of the oldest due one in seconds."""
    due = and_(is_ready(job), job.c.available_at <= now())
    age = func.max(seconds_since(job.c.available_at)).label("oldest_age")
    return select(job.c.topic, func.count().label("due"), age).where(due).group_by(job.c.topic)


@cache
def ready_topics(job: Table) -> Executable:
    """The topics that have ready jobs, in order, each found by one probe of the index on ready jobs."""
    ready = job.alias("ready")
    first = select(func.min(ready.c.topic)).where(is_ready(ready))
    found = select(first.scalar_subquery().label("topic")).cte("found", recursive=True)
    following = first.where(ready.c.topic > found.c.topic).correlate(found).scalar_subquery()
    found = found.union_all(select(following).where(found.c.topic.is_not(None)))
    return select(found.c.topic).where(found.c.topic.is_not(None))


@cache
def suspects(job: Table) -> Executable:
    """Active jobs whose workers have crashed more than once, most crashes first: id, topic, attempts, crashes."""
    return (
        select(job.c.id, job.c.topic, job.c.attempts, job.c.crashes)
        .where(in_states(job, *ACTIVE), job.c.crashes > literal_column("1"))
        .order_by(job.c.crashes.desc(), job.c.id)
        .limit(literal_column("20"))
    )


@cache
def leases(job: Table) -> Executable:
    """For each worker that holds jobs: its name, how many, and how many of their leases have run out."""
    lapsed = func.sum(
        case((job.c.locked_until < now(), literal_column("1")), else_=literal_column("0")), type_=Integer()
    ).label("lapsed")
    return (
        select(job.c.locked_by.label("worker"), func.count().label("jobs"), lapsed)
        .where(is_processing(job))
        .group_by(job.c.locked_by)
    )
