"""``brooq-sa worker``: a process that runs jobs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from brooq_sa.durations import format_duration

from .bases import load_base
from .codes import DONE, ENDED_AT_ONCE, REFUSED, Command
from .options import json_option, url_option
from .printing import print_json, print_table
from .settings import effective, hidden, http_option, log_options, read_settings, settings_options
from .stopping import Stopping
from .supervisor import Supervisor

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from brooq_sa import Worker
    from brooq_sa.jobs import JobBase
    from brooq_sa.settings import Loaded

SOURCES = {ParameterSource.COMMANDLINE: "argument", ParameterSource.ENVIRONMENT: "environment"}


@click.command(
    cls=Command,
    examples=(
        "worker app.jobs:AppJob",
        "worker app.jobs:AppJob --topic email.receipt --workers 8 --lease 30s",
        "worker app.jobs:AppJob --check",
    ),
    exit_codes={
        DONE: "stopped as it was asked to: no job is held any more",
        REFUSED: "it could not start (the module failed while it was imported, or the database refused); or it stopped"
        " while the database was out of reach, and the jobs it held come back when their leases run out",
        ENDED_AT_ONCE: "ended at once, by a second SIGINT or SIGTERM; its jobs come back when their leases run out",
    },
)
@url_option
@click.option("--topic", "topics", multiple=True, help="Only this one. May be repeated.  [default: all with a handler]")
@click.option("--name", help="The beginning of the worker's id.  [default: host and process]")
@settings_options()
@http_option
@log_options
@click.option("--check", is_flag=True, help="Print what it would run and by which settings, from where, and end.")
@json_option
@click.argument("target", metavar="MODULE:BASE")
def worker(
    url: str,
    target: str,
    topics: Sequence[str],
    name: str | None,
    log_format: str | None,
    log_level: str,
    check: bool,
    as_json: bool,
    **arguments: str | bool | None,
) -> None:
    """Run the jobs of MODULE:BASE until told to stop.

    The first SIGTERM or SIGINT stops it in good order: nothing more is claimed, what was claimed and not begun goes
    back at once, running jobs may end within --grace and are then told to stop. A second one ends it at once.

    Settings come from options, then from the environment, then from .env; durations have a unit, such as 30s or 1h30m.
    Metrics and health pages are served at --http-addr: /metrics, /healthz, /readyz. Under systemd it says when it is
    ready, that it is alive, and that it stops.

    With --check they are printed, each with its source, and nothing is started and no connection opened.

    With --check and --json, one object: `database`, `topics` and `settings`.
    """
    stopping = Stopping()

    from brooq_sa import Worker, log

    log.outlive_readers()
    base = load_base(target)
    loaded = read_settings(arguments)

    from .database import opened

    with opened(url) as engine:
        runner = Worker(
            engine, base, topics=topics or None, name=name, settings=loaded.settings, http_addr=loaded.http_addr
        )
        if check:
            _print(runner, loaded, hidden(url), as_json)
            return
        log.configure(format=log_format, level=log_level)
        _check_table(engine, base)
        _work(runner, stopping, Supervisor(os.environ))


def _print(runner: Worker, loaded: Loaded, database: str, as_json: bool) -> None:
    source = SOURCES.get(click.get_current_context().get_parameter_source("url"), ".env")  # type: ignore[arg-type]
    settings = effective(loaded)
    if as_json:
        as_objects = {name: {"value": value, "source": where} for name, (value, where) in settings.items()}
        print_json({"database": {"value": database, "source": source}, "topics": runner.topics, "settings": as_objects})
        return
    rows = [("database", database, source), *((name, value, where) for name, (value, where) in settings.items())]
    print_table(["setting", "value", "source"], rows)
    click.echo(f"topics: {', '.join(runner.topics)}")


def _check_table(engine: Engine, base: type[JobBase]) -> None:
    from brooq_sa import access

    from .database import reading

    table = base.__table__
    with reading(engine, table, access.WORK) as connection:
        connection.execute(table.select().limit(0))


SWITCH_INTERVAL = 0.001
"""Seconds after which a thread lets another have the interpreter.

By default it is five times as long. Threads that have an answer of the database to read would wait for as long, though
what they do with it takes a fraction of that.
"""

YOUNG_OBJECTS = 20_000
"""How many new objects let the garbage collector look at them; by default 700, which is what a few jobs are made of."""

TIMER_SLACK = 1_000
"""By how many nanoseconds Linux may put off the end of a sleep; by default 50,000, a hundredth of a 5 ms handler."""


def _settle_in() -> None:
    """Make this process, which is ours alone, fit for many short jobs."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/timerslack_ns").write_text(str(TIMER_SLACK))  # this thread's, and of those that it will begin
    # Modules and classes are there to stay: without them a full collection is over in a moment.
    gc.collect()
    gc.freeze()
    # Jobs leave nothing for the collector, but a thousand of them on their way would have it look ever again.
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _work(runner: Worker, stopping: Stopping, supervisor: Supervisor) -> None:
    from brooq_sa.log import get_logger

    _settle_in()
    runner.start()
    while not stopping.wait(supervisor.period):
        supervisor.tell(runner.unready, is_alive=runner.is_alive)
    get_logger().info("worker_stopping", worker=runner.id, grace=format_duration(runner.settings.grace))
    supervisor.tell_of_stop()
    # On a thread of its own, so that this one hears a second signal whatever the stop is waiting for.
    with ThreadPoolExecutor(1, "stop") as thread:
        is_written = _outcome(thread.submit(runner.stop), supervisor)
    if not is_written:
        raise SystemExit(REFUSED)


def _outcome(stop: Future[bool], supervisor: Supervisor) -> bool:
    while True:
        try:
            return stop.result(supervisor.period)
        except NotYet:
            if stop.done():
                raise
            supervisor.tell_of_life()
