"""What an operator does to one job, each conditional on the state it was meant for."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, Table, Uuid, bindparam, literal_column, select, update

from ..functions import now
from ..states import READY, State
from .guards import UNLEASED, in_states, literal_state


def _this(job: Table) -> Any:
    return job.c.id == bindparam("job_id", type_=Uuid())


@cache
def cancel_waiting(job: Table) -> Executable:
    """Cancel a job that waits; yields its id if it did."""
    return _move(job, READY, State.CANCELED)


@cache
def cancel_processing(job: Table) -> Executable:
    """Cancel a job that is leased; yields its id if it was. Its worker learns of it by the loss of the lease."""
    return _move(job, (State.PROCESSING,), State.CANCELED)


@cache
def retry(job: Table) -> Executable:
    """Send a job round again, now; yields its id if it was failed, dead or canceled.

    `attempts` stays: it says how often the job has been taken. A dead job so gets one attempt more. Its crashes are
    forgiven, or the next one would park it again.
    """
    forgiven: ColumnElement[int] = literal_column("0")
    return _move(job, (State.FAILED, State.DEAD, State.CANCELED), State.PENDING, available_at=now(), crashes=forgiven)


@cache
def state_of(job: Table) -> Executable:
    return select(job.c.state).where(_this(job))


def _move(job: Table, expected: tuple[State, ...], to: State, **values: Any) -> Executable:
    return (
        update(job)
        .where(_this(job), in_states(job, *expected))
        .values(state=literal_state(to), updated_at=now(), **values, **UNLEASED)
        .returning(job.c.id)
    )
