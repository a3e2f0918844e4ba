"""``brooq-sa why``: what a job waits for, in a sentence."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import click

from .bases import load_base
from .codes import DONE, REFUSED, Command
from .enqueue import _refuse_two_tables
from .options import json_option, table_named, where
from .printing import clean, print_json

if TYPE_CHECKING:
    from brooq_sa.jobs import JobBase


@click.command(
    cls=Command,
    examples=(
        "why 0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f",
        "why 0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f --base app.jobs:AppJob --json",
    ),
    exit_codes={DONE: "told", REFUSED: "no such job, and what may be behind that; or the database refused"},
)
@where
@click.option(
    "--base",
    metavar="MODULE:BASE",
    callback=lambda _ctx, _parameter, value: value and load_base(value),
    help="Try to read the payload with the job class of this base, and use its table.",
)
@click.argument("job_id", metavar="ID", type=click.UUID)
@json_option
def why(url: str, schema: str | None, table: str, base: type[JobBase] | None, job_id: uuid.UUID, as_json: bool) -> None:
    """Say why a job is where it is: what it waits for, who has it, or how it ended.

    What it knows of workers is what they have announced; what it knows of other transactions is what PostgreSQL tells
    the role that asks.

    With --json, one object: `id`, `reason`, `sentence`, `notes`, `facts` and `cure`.
    """
    from brooq_sa.standing import Reason, explain

    from .database import opened, reading

    _refuse_two_tables(base)
    job = table_named(table, schema) if base is None else base.__table__
    with opened(url) as engine, reading(engine, job) as connection:
        answer = explain(connection, job, job_id, None if base is None else base.registry)
    if as_json:
        print_json(
            {
                "id": answer.id,
                "reason": str(answer.reason),
                "sentence": answer.sentence,
                "notes": answer.notes,
                "facts": answer.facts,
                "cure": answer.cure,
            }
        )
    else:
        for line in answer.lines:
            click.echo(clean(line))
    if answer.reason is Reason.NOT_FOUND:
        raise click.exceptions.Exit(REFUSED)
