"""Keeping the leases of running jobs, many in one statement."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Float, Table, and_, bindparam, case, literal_column, not_, select, update

from ..functions import now, now_plus, picked
from ..states import State
from .guards import UNLEASED, is_among, is_processing, literal_state, update_held


@cache
def renew(job: Table) -> Executable:
    """Move the end of each held lease to `lease` seconds from now; yields the ids and attempts it renewed.

    Parameters: `ids`; `entries` with each id's `attempt`; `worker`; `lease`. Rows that somebody else has locked are
    skipped: a row that is missing from the answer is not yet a lost lease, see `look`.
    """
    until = now_plus(bindparam("lease", type_=Float()))
    return update_held(job).values(locked_until=until).returning(job.c.id, job.c.attempts)


@cache
def release_unknown(job: Table) -> Executable:
    """Return to `pending` what the `worker` holds besides `ids`, each attempt given back; yields the ids."""
    holds = and_(is_processing(job), job.c.locked_by == bindparam("worker"))
    unknown = (
        select(job.c.id)
        .where(holds, not_(is_among(job)))
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    given_back = case(
        (job.c.attempts > literal_column("0"), job.c.attempts - literal_column("1")), else_=job.c.attempts
    )
    return (
        update(job)
        .where(picked(job.c.id, unknown), holds)
        .values(state=literal_state(State.PENDING), attempts=given_back, updated_at=now(), **UNLEASED)
        .returning(job.c.id)
    )


@cache
def look(job: Table) -> Executable:
    """Where the jobs among `ids` stand: id, attempts, state, holder. A plain read, which no row lock can hide from."""
    return select(job.c.id, job.c.attempts, job.c.state, job.c.locked_by).where(is_among(job))
