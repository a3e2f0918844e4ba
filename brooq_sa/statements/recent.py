"""Reading what goes on: what runs, what ended last, what waits for a retry; each of a bounded number of rows."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Executable, Table, bindparam, func, literal_column, select

from ..functions import seconds_since
from ..states import TERMINAL, State
from .guards import in_states, is_processing, is_ready, literal_state

HEADLINE = 200
"""Characters of an error."""


@cache
def running(job: Table) -> Executable:
    """Up to `most` leased jobs: id, topic, state, attempts, worker, `seconds` since the claim, `lease_left`, error."""
    return (
        select(
            *_columns(job),
            seconds_since(job.c.updated_at).label("seconds"),
            (-seconds_since(job.c.locked_until)).label("lease_left"),
        )
        .where(job.c.locked_by.is_not(None), is_processing(job))
        .order_by(job.c.locked_by, job.c.id)
        .limit(_most())
    )


@cache
def ended(job: Table) -> Executable:
    """The `most` jobs that ended last: as `running`, and `took`, the seconds from ready to the end."""
    seconds = seconds_since(job.c.updated_at)
    return (
        select(*_columns(job), seconds.label("seconds"), (seconds_since(job.c.available_at) - seconds).label("took"))
        .where(in_states(job, *TERMINAL))
        .order_by(job.c.updated_at.desc())
        .limit(_most())
    )


@cache
def failed(job: Table) -> Executable:
    """The failed jobs among the first `most` ready ones, in the order of topics and of claims; as `running`."""
    ready = (
        select(*_columns(job), seconds_since(job.c.updated_at).label("seconds"))
        .where(is_ready(job))
        .order_by(job.c.topic, job.c.priority, job.c.available_at, job.c.id)
        .limit(_most())
        .subquery("ready")
    )
    return select(ready).where(ready.c.state == literal_state(State.FAILED))


def _columns(job: Table) -> list[Any]:
    error = func.substr(job.c.last_error, literal_column("1"), literal_column(str(HEADLINE)))
    columns = [job.c[name] for name in ("id", "topic", "state", "attempts", "progress")]
    return [*columns, job.c.locked_by.label("worker"), error.label("error")]


def _most() -> Any:
    return bindparam("most", type_=BigInteger())
