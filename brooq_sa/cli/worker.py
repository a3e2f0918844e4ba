"""``brooq-sa worker``: a process that runs jobs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from brooq_sa.durations import format_duration

from .bases import load_base
from .codes import DONE, ENDED_AT_ONCE, REFUSED, Command
from .options import url_option
from .settings import log_options, read_settings, settings_options
from .stopping import Stopping

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from brooq_sa.jobs import JobBase


@click.command(
    cls=Command,
    examples=(
        "worker app.jobs:AppJob",
        "worker app.jobs:AppJob --topic email.receipt --workers 8 --lease 30s",
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
@log_options
@click.argument("target", metavar="MODULE:BASE")
def worker(
    url: str,
    target: str,
    topics: Sequence[str],
    name: str | None,
    log_format: str | None,
    log_level: str,
    **arguments: str | bool | None,
) -> None:
    """Run the jobs of MODULE:BASE until told to stop.

    The first SIGTERM or SIGINT stops it in good order: nothing more is claimed, what was claimed and not begun goes
    back at once, running jobs may end within --grace and are then told to stop. A second one ends it at once.

    Settings come from options, then from the environment, then from .env; durations have a unit, such as 30s or 1h30m.
    """
    stopping = Stopping()
    base = load_base(target)
    settings = read_settings(arguments)

    from brooq_sa import log

    from .database import opened

    log.configure(format=log_format, level=log_level)
    with opened(url) as engine:
        _check_table(engine, base)
        _work(engine, base, stopping, topics=topics or None, name=name, settings=settings)


def _check_table(engine: Engine, base: type[JobBase]) -> None:
    from .database import reading

    table = base.__table__
    with reading(engine, table) as connection:
        connection.execute(table.select().limit(0))


def _work(engine: Engine, base: type[JobBase], stopping: Stopping, **options: Any) -> None:
    from brooq_sa import Worker
    from brooq_sa.log import get_logger

    runner = Worker(engine, base, **options)
    runner.start()
    stopping.wait()
    get_logger().info("worker_stopping", worker=runner.id, grace=format_duration(runner.settings.grace))
    # On a thread of its own, so that this one hears a second signal whatever the stop is waiting for.
    with ThreadPoolExecutor(1, "stop") as thread:
        is_written = thread.submit(runner.stop).result()
    if not is_written:
        raise SystemExit(REFUSED)
