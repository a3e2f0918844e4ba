"""Writing the outcomes of attempts, each only by the claim that holds the job."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Double, Executable, Integer, Table, bindparam, case, cast, func, update

from ..functions import now, now_plus
from ..states import State
from .guards import UNLEASED, attempt_given, field, is_among, is_held, literal_state


@cache
def settle_done(job: Table) -> Executable:
    """Mark as done those of `ids` that `worker` holds by attempt number `attempt`; yields their ids.

    One statement for each attempt number that a batch has, because ``id = ANY (...)`` goes by primary key under any
    statistics, where a join with a list of pairs may be planned as a loop within a loop.
    """
    return (
        update(job)
        .where(is_among(job), is_held(job, bindparam("attempt", type_=Integer())))
        .values(state=literal_state(State.DONE), updated_at=now(), **UNLEASED)
        .returning(job.c.id)
    )


@cache
def settle_otherwise(job: Table) -> Executable:
    """Write each held job's own outcome: failed, dead, canceled, or released; yields the ids it wrote.

    Parameters: `ids`; `worker`; `entries` with, for each id, the `attempt`, the new `state`, the `delay` in seconds
    until it is available again (none: unchanged), the `error` (none: unchanged), and `given_back`, how many attempts
    (0 or 1) it gets back.
    """
    delay = field(job, "delay")
    return (
        update(job)
        .where(is_among(job), is_held(job, attempt_given(job)))
        .values(
            state=field(job, "state"),
            attempts=job.c.attempts - cast(field(job, "given_back"), Integer),
            available_at=case((delay.is_(None), job.c.available_at), else_=now_plus(cast(delay, Double))),
            last_error=func.coalesce(field(job, "error"), job.c.last_error),
            updated_at=now(),
            **UNLEASED,
        )
        .returning(job.c.id)
    )
