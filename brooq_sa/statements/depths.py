"""Reading how deep a table is at a bounded cost, whatever lies in it.

Counting a million rows takes a database a tenth of a second and more, each time it is asked. So these statements read
a bounded number of rows, and say so by giving as many as they were allowed to; above that, `sample` estimates from a
few hundred pages of the table, on PostgreSQL.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    Executable,
    Float,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    extract,
    func,
    literal_column,
    or_,
    select,
    table,
    tablesample,
    tuple_,
)

from ..functions import seconds_since
from ..states import TERMINAL
from .guards import in_states, is_processing, is_ready

_AVOIDED = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")


@cache
def restrain() -> Executable:
    """Have PostgreSQL give up a statement of this transaction after `timeout`, and go by indexes alone.

    Statistics that are old may say that a million rows are none, and then the planner would rather read them all.
    """
    scans = [
        func.set_config(literal_column(f"'{name}'"), literal_column("'off'"), literal_column("true"))
        for name in _AVOIDED
    ]
    timeout = func.set_config(
        literal_column("'statement_timeout'"), bindparam("timeout", type_=Text()), literal_column("true")
    )
    return select(timeout, *scans)


@cache
def heads(job: Table) -> Executable:
    """The first job of each topic and priority that has ready ones: topic, and seconds since it became available.

    Each is found by one probe of the index on ready jobs, in the order of the index, `most` of them at the most. The
    seconds are negative where even the first is not due yet.
    """
    first, here, ready = job.alias("first"), job.alias("here"), job.alias("ready")
    start = select(first.c.id).where(is_ready(first)).order_by(*_order(first)).limit(literal_column("1"))
    head = select(start.scalar_subquery().label("id")).cte("head", recursive=True)
    following = (
        select(ready.c.id)
        .where(is_ready(ready), tuple_(ready.c.topic, ready.c.priority) > tuple_(here.c.topic, here.c.priority))
        .order_by(*_order(ready))
        .limit(literal_column("1"))
        .correlate(here)
    )
    return _found(job, head, here, following)


@cache
def heads_of_topic(job: Table) -> Executable:
    """The first job of each priority that `of_topic` has ready ones of, as `heads` gives them."""
    first, here, ready = job.alias("first"), job.alias("here"), job.alias("ready")
    of_topic = bindparam("of_topic", type_=Text())
    start = select(first.c.id).where(first.c.topic == of_topic, is_ready(first)).order_by(*_order(first)[1:])
    head = select(start.limit(literal_column("1")).scalar_subquery().label("id")).cte("head", recursive=True)
    following = (
        select(ready.c.id)
        .where(is_ready(ready), ready.c.topic == of_topic, ready.c.priority > here.c.priority)
        .order_by(*_order(ready)[1:])
        .limit(literal_column("1"))
        .correlate(here)
    )
    return _found(job, head, here, following)


@cache
def ready(job: Table) -> Executable:
    """How many ready jobs `of_topic` has in each state: state, count; of the first `most` in the order of claims."""
    some = (
        select(job.c.state)
        .where(job.c.topic == bindparam("of_topic", type_=Text()), is_ready(job))
        .order_by(job.c.priority, job.c.available_at, job.c.id)
        .limit(_most())
        .subquery("some")
    )
    return select(some.c.state, func.count()).group_by(some.c.state)


@cache
def processing(job: Table) -> Executable:
    """How many leased jobs each topic has: topic, count; of `most` in all."""
    some = (
        select(job.c.topic)
        .where(job.c.locked_by.is_not(None), is_processing(job))
        .order_by(job.c.locked_by, job.c.id)
        .limit(_most())
        .subquery("some")
    )
    return select(some.c.topic, func.count()).group_by(some.c.topic)


@cache
def finished(job: Table) -> Executable:
    """How many terminal jobs each topic has in each state: topic, state, count; of the `most` that ended last."""
    some = (
        select(job.c.topic, job.c.state)
        .where(in_states(job, *TERMINAL))
        .order_by(job.c.updated_at.desc())
        .limit(_most())
        .subquery("some")
    )
    return select(some.c.topic, some.c.state, func.count()).group_by(some.c.topic, some.c.state)


@cache
def sample(job: Table) -> Executable:
    """How many jobs lie in a random `share`, in percent, of the table's pages: topic, state, count. PostgreSQL only."""
    some = tablesample(job, func.system(bindparam("share", type_=Float())), name="some")
    return select(some.c.topic, some.c.state, func.count()).group_by(some.c.topic, some.c.state)


@cache
def size() -> Executable:
    """What PostgreSQL itself knows of the table `named`: pages, bytes with indexes, rows alive, rows dead."""
    statistics = table("pg_stat_all_tables", *map(column, ("relid", "n_live_tup", "n_dead_tup")), schema="pg_catalog")
    relation = func.to_regclass(bindparam("named", type_=Text()))
    block = cast(func.current_setting(literal_column("'block_size'")), BigInteger())
    return select(
        func.pg_relation_size(statistics.c.relid) / block,
        func.pg_total_relation_size(statistics.c.relid),
        statistics.c.n_live_tup,
        statistics.c.n_dead_tup,
    ).where(statistics.c.relid == relation)


@cache
def oldest_transaction() -> Executable:
    """Seconds since the oldest transaction of this database began that keeps VACUUM from removing what is dead.

    A session of another role shows when it began to roles with pg_read_all_stats alone; its process's age in
    transactions is no substitute, being no time.
    """
    names = ("pid", "datname", "xact_start", "backend_xmin", "backend_xid")
    activity = table("pg_stat_activity", *map(column, names), schema="pg_catalog")
    prepared = table("pg_prepared_xacts", column("prepared"), column("database"), schema="pg_catalog")
    here = func.current_database()
    of_sessions = (
        select(func.min(activity.c.xact_start))
        .where(
            and_(
                activity.c.datname == here,
                activity.c.pid != func.pg_backend_pid(),
                or_(activity.c.backend_xmin.is_not(None), activity.c.backend_xid.is_not(None)),
            )
        )
        .scalar_subquery()
    )
    of_prepared = select(func.min(prepared.c.prepared)).where(prepared.c.database == here).scalar_subquery()
    age = extract("epoch", func.statement_timestamp() - func.least(of_sessions, of_prepared))
    return select(func.greatest(age, literal_column("0")))


def _found(job: Table, head: CTE, here: Any, following: Any) -> Executable:
    """Each head, from the first and that which follows one."""
    head = head.union_all(select(following.scalar_subquery()).select_from(head.join(here, here.c.id == head.c.id)))
    found = head.join(job, job.c.id == head.c.id)
    return select(job.c.topic, seconds_since(job.c.available_at)).select_from(found).limit(_most())


def _order(job: Any) -> tuple[Any, ...]:
    return job.c.topic, job.c.priority, job.c.available_at, job.c.id


def _most() -> Any:
    return bindparam("most", type_=BigInteger())
