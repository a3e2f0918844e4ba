"""Putting jobs into the table, in the caller's transaction."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Executable,
    Insert,
    SmallInteger,
    Table,
    Text,
    Uuid,
    bindparam,
    column,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from .. import wake
from ..functions import Instant, json_parsed, now_plus

_COLUMNS = ["id", "topic", "payload", "priority", "available_at", "idempotency_key"]


def _parameters(*, is_due: bool) -> dict[str, Any]:
    """One job's columns from bound parameters; `new_available_at` wins over `new_delay`, seconds from now.

    Args:
        is_due: it is due at once, as the table's own default says, and has neither of the two.
    """
    parameters: dict[str, Any] = {
        "id": bindparam("new_id", type_=Uuid()),
        "topic": bindparam("new_topic", type_=Text()),
        "payload": json_parsed(bindparam("new_payload", type_=Text())),
        "priority": bindparam("new_priority", type_=SmallInteger()),
    }
    if not is_due:
        parameters["available_at"] = func.coalesce(
            bindparam("new_available_at", type_=Instant()), now_plus(bindparam("new_delay", type_=Double()))
        )
    return parameters


@cache
def insert_job(job: Table, channel: str | None = None, *, is_due: bool) -> Any:
    """Put one job without a key. Nothing of it comes back: the id is the caller's own.

    Args:
        channel: of a notification to send along with it, on PostgreSQL, in the same round trip.
        is_due: as for `_parameters`.
    """
    insertion = job.insert().values(_parameters(is_due=is_due))
    return insertion.returning(_notified(job, channel)) if channel else insertion


@cache
def insert_keyed_job(job: Table, dialect: str, channel: str | None = None, *, is_due: bool) -> Any:
    """Put one job unless its topic and key are taken; yields its id if it was put.

    Args:
        channel, is_due: as for `insert_job`; nothing is sent if the key is taken.

    A key that another transaction has inserted and not committed is waited for. DO NOTHING leaves no dead row and
    does not touch the row that is there, which a worker may be holding.
    """
    values = {**_parameters(is_due=is_due), "idempotency_key": bindparam("new_key", type_=Text())}
    insertion = _unless_taken(job, _insert(job, dialect).values(values))
    return insertion.returning(job.c.id, *([_notified(job, channel)] if channel else []))


def _notified(job: Table, channel: str) -> ColumnElement[Any]:
    return func.pg_notify(literal(channel, Text()), literal(wake.JOBS, Text()) + job.c.topic)


@cache
def notify() -> Executable:
    """Send a notification with `hint` on `channel`, on PostgreSQL, when the transaction commits."""
    return select(func.pg_notify(bindparam("channel", type_=Text()), bindparam("hint", type_=Text())))


@cache
def find_by_key(job: Table) -> Executable:
    """The id under a topic and key, if there is one."""
    return select(job.c.id).where(job.c.topic == bindparam("topic"), job.c.idempotency_key == bindparam("key"))


@cache
def find_by_keys(job: Table) -> Executable:
    """Those of the `keys` of a topic that are taken: key and id."""
    return select(job.c.idempotency_key, job.c.id).where(
        job.c.topic == bindparam("topic"), job.c.idempotency_key.in_(bindparam("keys", expanding=True))
    )


@cache
def insert_jobs_singly(job: Table, *, is_due: bool) -> Insert:
    """Put jobs without keys by the driver's ``executemany``, on SQLite; all of them are due, or none is."""
    return job.insert().inline().values(_parameters(is_due=is_due))


@cache
def insert_jobs(job: Table, *, keyed: bool) -> Any:
    """Put many jobs, on PostgreSQL, from one JSON parameter; if keyed, yields the ids of those that were put."""
    rows = (
        func.jsonb_to_recordset(json_parsed(bindparam("rows", type_=Text())))
        .table_valued(
            column("id", Uuid()),
            column("topic", Text()),
            column("payload", postgresql.JSONB()),
            column("priority", SmallInteger()),
            column("available_at", Instant()),
            column("delay", Double()),
            column("key", Text()),
        )
        .render_derived(name="new", with_types=True)
    )
    due = func.coalesce(rows.c.available_at, now_plus(rows.c.delay))
    # A recordset turns JSON's null, which is a payload, into SQL's, which is none.
    payload = func.coalesce(rows.c.payload, literal_column("CAST('null' AS JSONB)"))
    source = select(rows.c.id, rows.c.topic, payload, rows.c.priority, due, rows.c.key)
    insertion = postgresql.insert(job).from_select(_COLUMNS, source)
    return _unless_taken(job, insertion).returning(job.c.id) if keyed else insertion


def _insert(job: Table, dialect: str) -> Any:
    return sqlite.insert(job) if dialect == "sqlite" else postgresql.insert(job)


def _unless_taken(job: Table, insertion: Any) -> Any:
    return insertion.on_conflict_do_nothing(
        index_elements=[job.c.topic, job.c.idempotency_key], index_where=job.c.idempotency_key.is_not(None)
    )
