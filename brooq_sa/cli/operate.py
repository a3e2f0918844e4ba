"""``brooq-sa cancel`` and ``retry``: an operator's decisions about jobs."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

import click

from .codes import DONE, REFUSED, Command
from .options import json_option, table_named, where
from .printing import print_json

_ids = click.argument("job_ids", metavar="ID...", type=click.UUID, nargs=-1, required=True)


@click.command(
    cls=Command,
    examples=("cancel 0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f",),
    exit_codes={
        DONE: "each is canceled, or told to stop",
        REFUSED: "one was too late or is not there, the others were canceled; or the database refused",
    },
)
@where
@_ids
@json_option
def cancel(url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool) -> None:
    """Cancel jobs, waiting or running.

    A waiting job is canceled at once. A running one is told to stop, which its worker hears of with its next heartbeat;
    nothing of that attempt is recorded.

    With --json, one object a line: `id` and `result` (canceled, told to stop, too late, not found).
    """
    from brooq_sa.states import CancelResult
    from brooq_sa.store import JobStore

    fine = (CancelResult.CANCELED, CancelResult.TOLD_TO_STOP)
    _operate(url, table_named(table, schema), job_ids, JobStore.cancel, fine, as_json)


@click.command(
    cls=Command,
    examples=("retry 0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f",),
    exit_codes={
        DONE: "each is pending, or was pending or running already",
        REFUSED: "one is done or is not there, the others were sent; or the database refused",
    },
)
@where
@_ids
@json_option
def retry(url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool) -> None:
    """Send failed, dead or canceled jobs round again, now.

    Their attempts are kept, so a dead job gets one attempt more.

    With --json, one object a line: `id` and `result` (retried, not needed, refused, not found).
    """
    from brooq_sa.states import RetryResult
    from brooq_sa.store import JobStore

    fine = (RetryResult.RETRIED, RetryResult.NOT_NEEDED)
    _operate(url, table_named(table, schema), job_ids, JobStore.retry, fine, as_json)


def _operate(url: str, job: Any, job_ids: Sequence[uuid.UUID], move: Any, fine: Collection[str], as_json: bool) -> None:
    from brooq_sa import access
    from brooq_sa.store import JobStore

    from .database import opened, writing

    store = JobStore(job)
    results = []
    with opened(url) as engine:
        for job_id in job_ids:
            with writing(engine, job, access.OPERATE) as connection:
                result = move(store, connection, job_id)
            results.append(result)
            if as_json:
                print_json({"id": job_id, "result": str(result)})
            else:
                click.echo(f"{job_id}  {result}")
    if any(result not in fine for result in results):
        raise click.exceptions.Exit(REFUSED)
