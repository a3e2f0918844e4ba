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
        FROM unnest(ARRAY['pg_locks', 'pg_stat_activity', 'pg_prepared_xacts', 'pg_database', 'pg_replication_slots',
            'pg_stat_replication', 'pg_stat_progress_vacuum']) AS name""")


@cache
def xmax(job: Table) -> Executable:
    """The number of the transaction that locked or changed the row last, as text; "0" for none."""
    return select(literal_column("xmax::text")).select_from(job).where(job.c.id == bindparam("job_id", type_=Uuid()))


@cache
def row_lockers() -> TextClause:
    """The open transactions that have locked or changed the row of number `xmax`, in the `table`; 10 at the most.

    An open transaction, prepared ones too, holds the lock on its own number. If several share the row, the number is
    that of a list of them (manual, "Multixacts and Wraparound"). It cannot be told from here which of both it is, so
    members of the list count only if they have locks on the table as well.
    """
    return text("""
        WITH wanted AS (
            SELECT CAST(:xmax AS xid) AS number, FALSE AS is_shared
            UNION ALL
            -- The CASE stands in the argument: no WHERE is sure to come first, and any other number raises there.
            SELECT xid, TRUE FROM pg_class, pg_get_multixact_members(
                CASE WHEN mxid_age(CAST(:xmax AS xid)) BETWEEN 1 AND mxid_age(relminmxid) THEN CAST(:xmax AS xid) END)
            WHERE pg_class.oid = to_regclass(:table))
        SELECT DISTINCT locks.pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds, gid AS prepared, owner
        FROM wanted JOIN pg_locks AS locks ON transactionid = number
        LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
        LEFT JOIN pg_prepared_xacts ON transaction = transactionid
        WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
        AND locks.pid IS DISTINCT FROM pg_backend_pid()
        AND (NOT is_shared OR EXISTS (
            SELECT 1 FROM pg_locks AS its
            WHERE its.virtualtransaction = locks.virtualtransaction AND its.relation = to_regclass(:table)))
        ORDER BY seconds DESC NULLS LAST LIMIT 10""")


@cache
def table_lockers() -> TextClause:
    """The transactions of others that keep claims out of the `table`, or wait to; those that have it first.

    `is_alone` is whether nobody may even read; `waits_for`, the processes that are in its way. One that waits holds up
    everybody who comes after it.
    """
    return text("""
        SELECT locks.pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds,
            granted AS has_it, mode = 'AccessExclusiveLock' AS is_alone,
            CASE WHEN granted THEN '{}' ELSE pg_blocking_pids(locks.pid) END AS waits_for
        FROM pg_locks AS locks LEFT JOIN pg_stat_activity AS activity ON activity.pid = locks.pid
        WHERE relation = to_regclass(:table) AND locks.pid IS DISTINCT FROM pg_backend_pid()
        AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
        ORDER BY granted DESC, xact_start NULLS LAST, locks.pid LIMIT 10""")


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
    """The transactions of others that are older than `least` seconds and keep vacuum from this database's dead rows."""
    return text("""
        SELECT pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
        FROM pg_stat_activity
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND pid <> pg_backend_pid() AND datname = current_database()
        AND xact_start < clock_timestamp() - make_interval(secs => :least)
        -- One vacuum is in no other's way.
        AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
        ORDER BY xact_start LIMIT 10""")


@cache
def replicas() -> TextClause:
    """What keeps vacuum from dead rows for the sake of standbys: slots, and standbys without one that say what they
    still read. Those that nobody uses, or that are more than `most` transactions behind; the furthest behind first.

    A logical slot is none of them: it holds back the vacuum of the catalogs alone.
    """
    return text("""
        SELECT name, kind, active, transactions FROM (
            SELECT slot_name::text AS name, 'slot' AS kind, active, age(xmin) AS transactions
            FROM pg_replication_slots WHERE xmin IS NOT NULL
            UNION ALL
            SELECT coalesce(nullif(application_name, ''), pid::text), 'standby', TRUE, age(backend_xmin)
            FROM pg_stat_replication WHERE backend_xmin IS NOT NULL) AS found
        WHERE NOT active OR transactions > :most
        ORDER BY transactions DESC, name LIMIT 10""")
