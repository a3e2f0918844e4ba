"""Who is at work, for people to read; nothing that must be right depends on it."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Float, Integer, Table, Text, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from ..functions import Payload, now, now_plus, seconds_since
from ..schema import worker_table


@cache
def announce(job: Table, dialect: str) -> Executable:
    """Write a worker's row, or write it anew; it is to be believed for `believed` seconds.

    Parameters: the columns, and `reaps_in`, in seconds; None if it does not reap.
    """
    workers = worker_table(job)
    insertion = sqlite.insert(workers) if dialect == "sqlite" else postgresql.insert(workers)
    current = {
        "topics": bindparam("topics", type_=Payload()),
        "running": bindparam("running", type_=Integer()),
        "seen_at": now(),
        "live_until": now_plus(bindparam("believed", type_=Float())),
        "reaps_at": now_plus(bindparam("reaps_in", type_=Float())),
    }
    constant = {name: bindparam(f"its_{name}", type_=workers.c[name].type) for name in CONSTANT}
    return insertion.values(**constant, **current).on_conflict_do_update(
        index_elements=[workers.c.id], set_={name: insertion.excluded[name] for name in current}
    )


CONSTANT = ("id", "host", "pid", "version", "slots")
"""The columns that a worker never changes."""


@cache
def leave(job: Table) -> Executable:
    """Delete the row of the worker `id`."""
    workers = worker_table(job)
    return delete(workers).where(workers.c.id == bindparam("id", type_=Text()))


@cache
def forget(job: Table) -> Executable:
    """Delete the rows of workers that have not been believed for `unseen` seconds."""
    workers = worker_table(job)
    gone = (
        select(workers.c.id)
        .where(workers.c.live_until < now_plus(-bindparam("unseen", type_=Float())))
        .with_for_update(skip_locked=True)
    )
    return delete(workers).where(workers.c.id.in_(gone))


@cache
def workers(job: Table) -> Executable:
    """Every worker that has a row: all columns, and by the database's clock `is_live`, whether it is to be believed;
    `unseen`, for how many seconds it has not been seen; `reaps_in`, in how many it next looks for lapsed leases.
    """
    table = worker_table(job)
    return select(
        table,
        (table.c.live_until >= now()).label("is_live"),
        seconds_since(table.c.seen_at).label("unseen"),
        (-seconds_since(table.c.reaps_at)).label("reaps_in"),
    ).order_by(table.c.id)
