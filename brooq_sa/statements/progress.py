"""Writing how far attempts have come, for people to read."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Table, cast, select, update

from ..functions import Payload, picked
from .guards import attempt_given, field, is_among, is_held


@cache
def report(job: Table) -> Executable:
    """Write the `progress` of each held job.

    Parameters: `ids`; `entries` with each id's `attempt` and its `progress` as JSON text; `worker`. Rows that somebody
    else has locked are skipped: the next word comes soon. `updated_at` stays, which says since when the attempt runs.
    """
    mine = (
        select(job.c.id)
        .where(is_among(job), is_held(job, attempt_given(job)))
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    return (
        update(job)
        .where(picked(job.c.id, mine), is_held(job, attempt_given(job)))
        .values(progress=cast(field(job, "progress"), Payload()))
    )
