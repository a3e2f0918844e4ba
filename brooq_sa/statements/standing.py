"""Reading why a job is where it is: its own row, who could take it, and who is in the way.

What PostgreSQL's catalogs tell depends on the role that asks. ``pg_locks`` names every process; of other roles'
processes, ``pg_stat_activity`` keeps most from those who are no members of ``pg_read_all_stats``.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import (
    BindParameter,
    Executable,
    Integer,
    Table,
    TextClause,
    Uuid,
    bindparam,
    func,
    literal_column,
    select,
    text,
    tuple_,
)

from ..functions import json_text, now, seconds_since
from ..schema import pause_table
from .guards import is_processing, is_ready

MOST_AHEAD = 1_000
"""How many jobs that go first are counted."""


@cache
def standing(job: Table) -> Executable:
    """One job, and what holds for its topic; instants also as seconds ago, by the database's clock."""
    pause = pause_table(job)
    return (
        select(
            *(job.c[name] for name in ("id", "topic", "state", "attempts", "crashes", "priority", "available_at")),
            *(job.c[name] for name in ("locked_by", "locked_until", "last_error", "updated_at")),
            json_text(job.c.payload).label("payload"),
            (-seconds_since(job.c.available_at)).label("due_in"),
            (-seconds_since(job.c.locked_until)).label("lease_left"),
            seconds_since(job.c.updated_at).label("unchanged"),
            seconds_since(pause.c.paused_at).label("paused_for"),
            pause.c.paused_by,
            pause.c.reason.label("pause_reason"),
        )
        .select_from(job.outerjoin(pause, pause.c.topic == job.c.topic))
        .where(job.c.id == bindparam("job_id", type_=Uuid()))
    )


@cache
def at_work(job: Table) -> Executable:
    """What the `workers` hold by leases that have not run out: worker, topic, how many, and since when the last."""
    names: BindParameter[str] = bindparam("workers", expanding=True)
    return (
        select(
            job.c.locked_by.label("worker"),
            job.c.topic,
            func.count().label("jobs"),
            func.min(seconds_since(job.c.updated_at)).label("newest"),
        )
        .where(job.c.locked_by.in_(names), is_processing(job), job.c.locked_until >= now())
        .group_by(job.c.locked_by, job.c.topic)
    )


@cache
def ahead(job: Table) -> Executable:
    """How many due jobs of the topic go before the one at this `priority`, `available_at` and `job_id`, at most."""
    place = tuple_(
        bindparam("priority", type_=job.c.priority.type),
        bindparam("available_at", type_=job.c.available_at.type),
        bindparam("job_id", type_=Uuid()),
    )
    before = (
        select(literal_column("1"))
        .where(
            job.c.topic == bindparam("topic", type_=job.c.topic.type),
            is_ready(job),
            tuple_(job.c.priority, job.c.available_at, job.c.id) < place,
            job.c.available_at <= now(),
        )
        # In the order of the index: a bitmap of all of them would be made before the limit ends it.
        .order_by(job.c.priority, job.c.available_at, job.c.id)
        .limit(literal_column(str(MOST_AHEAD), Integer()))
        .subquery()
    )
    return select(func.count()).select_from(before)


@cache
def may_look() -> TextClause:
    """Whether the role may read the catalogs that the following ask."""
    return text("""
        SELECT bool_and(has_table_privilege('pg_catalog.' || name, 'SELECT'))
        FROM unnest(ARRAY['pg_locks', 'pg_stat_activity', 'pg_prepared_xacts', 'pg_database']) AS name""")


@cache
def xmax(job: Table) -> Executable:
    """The number of the transaction that locked or changed the row last, as text; "0" for none."""
    return select(literal_column("xmax::text")).select_from(job).where(job.c.id == bindparam("job_id", type_=Uuid()))


@cache
def row_locker() -> TextClause:
    """The transaction of number `xmax`, if it is open: it then holds the lock on that number."""
    return text("""
        SELECT locks.pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
        FROM pg_locks AS locks LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
        WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
        AND locks.pid IS DISTINCT FROM pg_backend_pid() AND transactionid = CAST(:xmax AS xid)""")


@cache
def writers() -> TextClause:
    """The open transactions of others that have written to the `table`, oldest first; 10 at the most."""
    return text("""
        SELECT locks.pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
        FROM pg_locks AS locks LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
        WHERE relation = to_regclass(:table) AND mode = 'RowExclusiveLock' AND granted
        AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND locks.pid <> pg_backend_pid()
        ORDER BY xact_start NULLS LAST, locks.pid LIMIT 10""")


@cache
def prepared() -> TextClause:
    """The transactions of this database that are prepared and not committed (two-phase commit), oldest first."""
    return text("""
        SELECT gid AS name, owner AS "user", extract(epoch FROM clock_timestamp() - prepared)::float AS seconds
        FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 10""")


@cache
def snapshots() -> TextClause:
    """The snapshots of others that are older than `least` seconds and keep vacuum from this database's dead rows."""
    return text("""
        SELECT pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
        FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
        AND xact_start < clock_timestamp() - make_interval(secs => :least)
        ORDER BY xact_start LIMIT 10""")
