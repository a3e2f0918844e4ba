"""Writing how far attempts have come, for people to read."""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Table, cast

from ..functions import Payload
from .guards import field, update_held


@cache
def report(job: Table) -> Executable:
    """Write the `progress` of each held job.

    Parameters: `ids`; `entries` with each id's `attempt` and its `progress` as JSON text; `worker`. Rows that somebody
    else has locked are skipped: the next word comes soon. `updated_at` stays, which says since when the attempt runs.
    """
    return update_held(job).values(progress=cast(field(job, "progress"), Payload()))
