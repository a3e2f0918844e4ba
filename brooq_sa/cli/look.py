"""``brooq-sa jobs``, ``show`` and ``stats``: what the table says."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from brooq_sa.states import State

from .codes import DONE, REFUSED, Command
from .failing import Failure
from .options import json_option, table_named, where
from .printing import clean, compact, first_line, indented, plain, print_json, print_table, relative, stamp, words

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

FAILED = "the database refused, or has no such table"


@click.command(
    cls=Command,
    examples=(
        "jobs --state dead --state failed",
        "jobs --topic email.receipt --error 'Connection refused' --json",
    ),
    exit_codes={DONE: "listed, be it none", REFUSED: FAILED},
)
@where
@click.option("--topic", "topics", multiple=True, help="Of this topic. May be repeated.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(each) for each in State]),
    help="In this state. May be repeated.",
)
@click.option("--key", help="With this idempotency key.")
@click.option("--worker", help="Held by the worker of this name.")
@click.option("--error", help="Whose last error contains this text.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_option
def jobs(
    url: str,
    schema: str | None,
    table: str,
    topics: Sequence[str],
    states: Sequence[str],
    key: str | None,
    worker: str | None,
    error: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List jobs that fit every filter, the last changed first.

    With --json, one object a line: the columns of the table.
    """
    from brooq_sa.statements import inspect
    from brooq_sa.statements.pause import paused

    from .database import opened, reading

    job = table_named(table, schema)
    chosen = inspect.jobs(
        job, topics=topics, states=[State(each) for each in states], key=key, worker=worker, error=error, limit=limit
    )
    with opened(url) as engine, reading(engine, job) as connection:
        rows = connection.execute(_with_extras(chosen, job)).mappings().all()
        pauses = set(connection.execute(paused(job)).scalars())
    if as_json:
        for row in rows:
            print_json(_as_document(row))
    elif rows:
        print_table(
            ["id", "topic", "state", "attempts", "changed", "ready", "worker", "error"],
            [_as_line(row, pauses) for row in rows],
            right={"attempts"},
        )
    else:
        click.echo("No job fits.", err=True)


@click.command(
    cls=Command,
    examples=("show 0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f",),
    exit_codes={DONE: "shown", REFUSED: f"no such job; or {FAILED}"},
)
@where
@click.argument("job_id", metavar="ID", type=click.UUID)
@json_option
def show(url: str, schema: str | None, table: str, job_id: uuid.UUID, as_json: bool) -> None:
    """Show the whole row of one job: its payload, and its last error in full.

    With --json, one object: the columns of the table.
    """
    from brooq_sa.statements import inspect

    from .database import opened, reading

    job = table_named(table, schema)
    with opened(url) as engine, reading(engine, job) as connection:
        row = connection.execute(_with_extras(inspect.show(job), job), {"job_id": job_id}).mappings().first()
    if row is None:
        raise Failure(f"There is no job {job_id}. It was never committed, or retention has deleted it.")
    if as_json:
        print_json(_as_document(row))
    else:
        _print_in_full(row)


@click.command(
    cls=Command,
    examples=("stats", "stats --json"),
    exit_codes={DONE: "shown", REFUSED: FAILED},
)
@where
@json_option
def stats(url: str, schema: str | None, table: str, as_json: bool) -> None:
    """Show how many jobs each topic has in each state, how long the oldest due one has waited, and who holds what.

    Suspects are active jobs whose workers crashed more than once while they ran: they may be what crashes them.

    With --json, one object: `topics`, each with `states`, `due`, `oldest_due_seconds` and `paused` (null, or an object
    with `paused_at`, `paused_by` and `reason`); `workers`, each with `jobs` and `lapsed`, the number of jobs whose
    lease has run out; and `suspects`, at most 20, each with `id`, `topic`, `attempts` and `crashes`.
    """
    from sqlalchemy import select

    from brooq_sa.functions import now
    from brooq_sa.statements import inspect
    from brooq_sa.statements.pause import paused

    from .database import opened, reading

    job = table_named(table, schema)
    with opened(url) as engine, reading(engine, job) as connection:
        depths = connection.execute(inspect.depths(job)).all()
        lags = connection.execute(inspect.lags(job)).all()
        leases = connection.execute(inspect.leases(job)).all()
        suspects = [plain(dict(row)) for row in connection.execute(inspect.suspects(job)).mappings()]
        clock = connection.execute(select(now())).scalar_one()
        pauses = {row["topic"]: dict(row) for row in connection.execute(paused(job)).mappings()}
    topics: dict[str, dict[str, Any]] = {
        topic: {
            "topic": topic,
            "states": dict.fromkeys(map(str, State), 0),
            "due": 0,
            "oldest_due_seconds": 0.0,
            "paused": pauses.get(topic),
        }
        for topic in sorted({topic for topic, _, _ in depths} | pauses.keys())
    }
    for topic, state, count in depths:
        topics[topic]["states"][state] = count
    for topic, due, age in lags:
        if topic in topics:  # else it came after the first look
            topics[topic] |= {"due": due, "oldest_due_seconds": round(float(age), 3)}
    workers = [{"worker": worker, "jobs": count, "lapsed": lapsed} for worker, count, lapsed in sorted(leases)]
    if as_json:
        for each in topics.values():
            each["paused"] = each["paused"] and _without_topic(each["paused"])
        print_json({"topics": list(topics.values()), "workers": workers, "suspects": suspects})
    else:
        _print_stats(list(topics.values()), workers, suspects)
        _print_pauses(pauses, clock)


def _with_extras(statement: Any, job: Any) -> Any:
    """The statement with the payload as text, since Python's floats hold fewer digits, and the database's clock."""
    from brooq_sa.functions import json_text, now

    return statement.add_columns(json_text(job.c.payload).label("payload_text"), now().label("database_now"))


def _as_document(row: RowMapping) -> dict[str, Any]:
    import msgspec

    columns = {name: value for name, value in row.items() if name not in ("payload_text", "database_now")}
    return plain(columns) | {"payload": msgspec.Raw(compact(row["payload_text"]).encode())}


def _as_line(row: RowMapping, pauses: Collection[str]) -> list[object]:
    now = row["database_now"]
    waits = row["state"] in (State.PENDING, State.FAILED)
    ready = relative(row["available_at"], now) + (", paused" if row["topic"] in pauses else "")
    return [
        row["id"],
        row["topic"],
        row["state"],
        row["attempts"],
        relative(row["updated_at"], now),
        ready if waits else "",
        row["locked_by"] or "",
        first_line(row["last_error"]),
    ]


def _print_in_full(row: RowMapping) -> None:
    from brooq_sa.progress import read

    now = row["database_now"]
    columns = dict(row)
    width = max(map(len, columns))
    for name, value in columns.items():
        if name in ("payload", "last_error", "payload_text", "database_now"):
            continue
        if name == "progress":
            value = read(value, row["attempts"])  # noqa: PLW2901 - as people read it
        shown = f"{stamp(value)}, {relative(value, now)}" if isinstance(value, datetime) else value
        click.echo(f"{name:<{width}}  {'' if shown is None else clean(shown)}".rstrip())
    _print_block("payload", indented(row["payload_text"]))
    if row["last_error"] is not None:
        _print_block("last_error", clean(row["last_error"], keep="\n\t"))


def _print_block(name: str, text: str) -> None:
    click.echo(f"{name}")
    for line in text.splitlines():
        click.echo(f"  {line}")


def _without_topic(pause: Mapping[str, Any]) -> dict[str, Any]:
    return plain({name: value for name, value in pause.items() if name != "topic"})


def _print_pauses(pauses: Mapping[str, Mapping[str, Any]], clock: datetime) -> None:
    if pauses:
        click.echo()
        print_table(
            ["paused", "since", "by", "reason"],
            [
                [topic, relative(each["paused_at"], clock), each["paused_by"] or "", first_line(each["reason"])]
                for topic, each in pauses.items()
            ],
        )


def _print_stats(
    topics: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]], suspects: Sequence[Mapping[str, Any]]
) -> None:
    if not topics:
        click.echo("There are no jobs.", err=True)
        return
    names = [str(state) for state in State]
    print_table(
        ["topic", *names, "due", "oldest due"],
        [
            [
                each["topic"],
                *each["states"].values(),
                each["due"],
                words(each["oldest_due_seconds"]) if each["due"] else "",
            ]
            for each in topics
        ],
        right={*names, "due"},
    )
    if workers:
        click.echo()
        print_table(
            ["worker", "jobs", "lapsed"],
            [[each["worker"], each["jobs"], each["lapsed"]] for each in workers],
            right={"jobs", "lapsed"},
        )
    if suspects:
        click.echo()
        print_table(
            ["suspect", "attempts", "crashes", "topic"],
            [[each["id"], each["attempts"], each["crashes"], each["topic"]] for each in suspects],
            right={"attempts", "crashes"},
        )
