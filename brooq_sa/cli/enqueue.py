"""``brooq-sa enqueue``: a job from the command line."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from . import following
from .bases import load_base
from .codes import DONE, REFUSED, Command
from .options import json_option, table_named, where
from .printing import print_json

if TYPE_CHECKING:
    from brooq_sa.jobs import JobBase, RawJob


@click.command(
    cls=Command,
    examples=(
        """enqueue email.receipt '{"order_id": 1, "to": "a@b.c"}' --key receipt-1""",
        "enqueue email.receipt - --base app.jobs:AppJob < payload.json",
        "enqueue image.resize --bytes - < photo.jpg",
        "enqueue report.build '{}' --wait --timeout 10m",
    ),
    exit_codes={
        DONE: "the job is in the table, put there now or before with the same key; with --wait: it is done",
        REFUSED: "the database refused, or has no such table; with --wait: the job was deleted before its end was seen",
        following.DEAD: "with --wait: it is dead",
        following.CANCELED: "with --wait: it was canceled",
        following.NOT_ENDED: "with --wait and --timeout: it has not ended in time, and goes on",
        "130": "with --wait: interrupted; the job goes on",
    },
)
@where
@click.option(
    "--base",
    metavar="MODULE:BASE",
    callback=lambda _ctx, _parameter, value: value and load_base(value),
    help="Check the payload against the job class of this base, and use its table.",
)
@click.option("--bytes", "as_bytes", is_flag=True, help="The payload is bytes, not JSON.")
@click.option("--key", help="At most one job lives under a topic and key.")
@click.option("--delay", help="Not to be run before this has passed, such as 90s or 1h30m.")
@click.option("--available-at", metavar="INSTANT", help="Not to be run before, in ISO 8601 with an offset or Z.")
@click.option("--priority", type=int, help="-32768 to 32767, the smaller goes first.  [default: the job class's, or 0]")
@click.option("--wait", is_flag=True, help="Follow the job until it has ended, and tell how.")
@click.option("--timeout", metavar="DURATION", help="With --wait: for how long at most, such as 90s or 1h.")
@click.argument("topic")
@click.argument("payload", metavar="JSON")
@json_option
def enqueue(
    url: str,
    schema: str | None,
    table: str,
    base: type[JobBase] | None,
    as_bytes: bool,
    key: str | None,
    delay: str | None,
    available_at: str | None,
    priority: int | None,
    wait: bool,
    timeout: str | None,
    topic: str,
    payload: str,
    as_json: bool,
) -> None:
    """Put a job of TOPIC into the table. Its payload is JSON, or - for what stands on standard input.

    With --wait, what becomes of it is followed on standard error, with a word on what it waits for, and the exit code
    says how it ended. Ctrl-C ends the waiting, and not the job.

    With --json, one object: `id` and `created`. With --wait, a second one when the job has ended: `id`, `state`,
    `attempts` and `error`.
    """
    from brooq_sa.durations import parse_duration
    from brooq_sa.session import enqueue as put

    from .database import opened

    _refuse_two_tables(base)
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait. Give both, or neither.")
    patience = None if timeout is None else parse_duration(timeout)
    instant = None if available_at is None else _instant(available_at)
    job = _job(topic, _payload(payload, as_bytes), base, as_bytes)
    if base is None:
        job.table = table_named(table, schema)  # type: ignore[union-attr]  # without a base it is a RawJob
    with opened(url) as engine:
        with engine.begin() as connection:
            answer = put(connection, job, key=key, available_at=instant, delay=delay, priority=priority)
        if as_json:
            print_json({"id": answer.id, "created": answer.created})
        else:
            click.echo(f"{answer.id}  {'created' if answer.created else 'has that key already'}")
        if wait:
            its_table = table_named(table, schema) if base is None else base.__table__
            following.follow(engine, its_table, answer.id, patience, as_json)


def _refuse_two_tables(base: type[JobBase] | None) -> None:
    given = click.get_current_context().get_parameter_source
    sources = (given("table"), given("schema"))
    if base is not None and any(source is click.core.ParameterSource.COMMANDLINE for source in sources):
        raise click.UsageError("The base says which table it is. Leave out --table and --schema, or --base.")


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no instant. Give one such as 2026-01-31T09:30:00Z.", param_hint="--available-at"
        ) from None


def _payload(text: str, as_bytes: bool) -> bytes | str:
    if text != "-":
        return text.encode() if as_bytes else text
    given = sys.stdin.buffer.read()
    if as_bytes:
        return given
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"Standard input is not UTF-8: {error.reason} at byte {error.start}. Give JSON, or --bytes."
        ) from None


def _job(topic: str, payload: bytes | str, base: type[JobBase] | None, as_bytes: bool) -> JobBase | RawJob:
    from brooq_sa.jobs import RawJob

    if base is None or as_bytes:
        return RawJob(topic, payload if isinstance(payload, bytes) else _parsed(payload), base)
    if topic not in base.registry:
        known = ", ".join(sorted(base.registry)) or "none"
        raise click.UsageError(f"Base {base.__name__!r} has no job class of topic {topic!r}. Its topics: {known}.")
    job: JobBase = base.registry[topic].codec.decode(payload if isinstance(payload, str) else payload.decode())
    return job


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise click.UsageError(
            f"The payload is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            """ Give such as '{"order_id": 1}', - for standard input, or --bytes."""
        ) from None
    except (RecursionError, ValueError) as error:
        raise click.UsageError(f"The payload is JSON that nobody could read: {error}.") from None
