"""``brooq-sa pause`` and ``resume``: a topic for all workers at once."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Any

import click

from .codes import DONE, REFUSED, Command
from .options import json_option, table_named, where
from .printing import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

FAILED = "the database refused, or has no such table"

_topics = click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)


@click.command(
    cls=Command,
    examples=("pause email.receipt --reason 'the mail server is down until noon'",),
    exit_codes={DONE: "each is paused, or was paused already", REFUSED: FAILED},
)
@where
@click.option("--reason", help="Shown beside the topic by stats and why.")
@_topics
@json_option
def pause(url: str, schema: str | None, table: str, topics: tuple[str, ...], reason: str | None, as_json: bool) -> None:
    """Let no worker start jobs of TOPIC, until it is resumed.

    It holds for all workers at once, and for those that are started later. Jobs that run go on; others can be enqueued,
    canceled and retried as ever, and wait.

    With --json, one object a line: `topic` and `result` (paused, paused already).
    """

    def move(store: Any, connection: Any, topic: str) -> str:
        was_open = store.pause(connection, topic, reason=reason, by=_who())
        return "paused" if was_open else "paused already"

    _each(url, table_named(table, schema), topics, move, as_json)


@click.command(
    cls=Command,
    examples=("resume email.receipt",),
    exit_codes={DONE: "each can be claimed from, whether it was paused or not", REFUSED: FAILED},
)
@where
@_topics
@json_option
def resume(url: str, schema: str | None, table: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Let workers start jobs of TOPIC again.

    With --json, one object a line: `topic` and `result` (resumed, not paused).
    """

    def move(store: Any, connection: Any, topic: str) -> str:
        return "resumed" if store.resume(connection, topic) else "not paused"

    _each(url, table_named(table, schema), topics, move, as_json)


def _each(url: str, job: Any, topics: tuple[str, ...], move: Callable[..., str], as_json: bool) -> None:
    from brooq_sa import access
    from brooq_sa.kinds import check_topic
    from brooq_sa.store import JobStore

    from .database import opened, writing

    store = JobStore(job)
    for topic in topics:
        check_topic(topic)
    with opened(url) as engine:
        for topic in topics:
            with writing(engine, job, access.PAUSE) as connection:
                result = move(store, connection, topic)
            if as_json:
                print_json({"topic": topic, "result": result})
            else:
                click.echo(f"{topic}  {result}")


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "?"  # a user id without a name, as containers have
    return f"{name}@{socket.gethostname()}"
