"""``brooq-sa cancel``, ``retry``, ``run-now``, ``delete``: an operator's decisions, about jobs by id or by filter."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brooq_sa.states import READY, TERMINAL, State

from .codes import DONE, REFUSED, Command
from .failing import Failure
from .options import json_option, table_named, where
from .printing import first_line, print_json, print_table, relative

if TYPE_CHECKING:
    from brooq_sa.bulk import Bulk, Preview, Tally

F = TypeVar("F", bound=Callable[..., Any])

ID = "0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f"
BY_FILTER = "of those that fit the filter, one was left as it was, or the answer was no; or the database refused"

_ids = click.argument("job_ids", metavar="[ID...]", type=click.UUID, nargs=-1)


def _filters(takes: Sequence[State]) -> Callable[[F], F]:
    """The options that choose jobs by what they are."""
    options = (
        click.option("--topic", "topics", multiple=True, help="Of this topic. May be repeated."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice([str(each) for each in takes]),
            help="In this state. May be repeated.",
        ),
        click.option("--error", metavar="TEXT", help="Whose last error contains this text."),
        click.option("--older-than", metavar="DURATION", help="Last changed longer ago than this, such as 90s or 2h."),
        click.option("--newer-than", metavar="DURATION", help="Last changed not as long ago as this."),
        click.option("--dry-run", is_flag=True, help="Show how many jobs fit, and some of them, and move none."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(
    cls=Command,
    examples=(f"cancel {ID}", "cancel --topic email.receipt --older-than 2h --dry-run"),
    exit_codes={
        DONE: "each is canceled, or told to stop; or, with --dry-run, nothing was done",
        REFUSED: f"one was too late, is locked or is not there, the others were canceled; {BY_FILTER}",
    },
)
@where
@_filters([*READY, State.PROCESSING])
@_ids
@json_option
def cancel(url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool, **given: Any) -> None:
    """Cancel jobs, waiting or running.

    A waiting job is canceled at once. A running one is told to stop, which its worker hears of with its next heartbeat;
    nothing of that attempt is recorded.

    Without IDs, all jobs that fit every filter are canceled, after a look at how many these are and a question: those
    that wait and those that run, unless --state says otherwise. Run it again to go on where it was interrupted.

    With --json and IDs, one object a line: `id` and `result` (canceled, told to stop, too late, not found,
    locked). With --json and filters, one object: `fit`, by state, `moved` and `left`.
    """
    from brooq_sa.states import CancelResult
    from brooq_sa.store import JobStore

    job = table_named(table, schema)
    if _by_ids(job_ids, given):
        fine = (CancelResult.CANCELED, CancelResult.TOLD_TO_STOP)
        _each(url, job, job_ids, JobStore(job).cancel, fine, "OPERATE", as_json)
    else:
        _all(url, job, "cancel", "canceled", as_json, **given)


@click.command(
    cls=Command,
    examples=(f"retry {ID}", "retry --topic email.receipt --error 'Connection refused' --newer-than 6h"),
    exit_codes={
        DONE: "each is pending, or was pending or running already; or, with --dry-run, nothing was done",
        REFUSED: f"one is done, is locked or is not there, the others were sent; {BY_FILTER}",
    },
)
@where
@_filters([State.FAILED, State.DEAD, State.CANCELED])
@_ids
@json_option
def retry(url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool, **given: Any) -> None:
    """Send failed, dead or canceled jobs round again, now.

    Their attempts are kept, so a dead job gets one attempt more.

    Without IDs, all jobs that fit every filter are sent, after a look at how many these are and a question: failed and
    dead ones, unless --state says otherwise. Run it again to go on where it was interrupted.

    With --json and IDs, one object a line: `id` and `result` (retried, not needed, refused, not found,
    locked). With --json and filters, one object: `fit`, by state, `moved` and `left`.
    """
    from brooq_sa.states import RetryResult
    from brooq_sa.store import JobStore

    job = table_named(table, schema)
    if _by_ids(job_ids, given):
        fine = (RetryResult.RETRIED, RetryResult.NOT_NEEDED)
        _each(url, job, job_ids, JobStore(job).retry, fine, "OPERATE", as_json)
    else:
        _all(url, job, "retry", "retried", as_json, **given)


@click.command(
    cls=Command,
    name="run-now",
    examples=(f"run-now {ID}", "run-now --topic email.receipt --state failed"),
    exit_codes={
        DONE: "each is due, or was due already; or, with --dry-run, nothing was done",
        REFUSED: f"one runs, has ended, is locked or is not there, the others are due; {BY_FILTER}",
    },
)
@where
@_filters(READY)
@_ids
@json_option
def run_now(
    url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool, **given: Any
) -> None:
    """Make jobs due now that are scheduled for later, or wait for a retry.

    Without IDs, all jobs that fit every filter are made due, after a look at how many these are and a question. Run it
    again to go on where it was interrupted.

    With --json and IDs, one object a line: `id` and `result` (moved, not needed, refused, not found,
    locked). With --json and filters, one object: `fit`, by state, `moved` and `left`.
    """
    from brooq_sa.bulk import Move, MoveResult, move_one

    job = table_named(table, schema)
    if _by_ids(job_ids, given):
        fine = (MoveResult.MOVED, MoveResult.NOT_NEEDED)
        _each(url, job, job_ids, partial(move_one, job, Move.RUN_NOW), fine, "OPERATE", as_json)
    else:
        _all(url, job, "run-now", "due now", as_json, **given)


@click.command(
    cls=Command,
    examples=(f"delete {ID}", "delete --state dead --older-than 7d --yes"),
    exit_codes={
        DONE: "each is deleted; or, with --dry-run, nothing was done",
        REFUSED: f"one runs, is locked or is not there, the others are deleted; {BY_FILTER}",
    },
)
@where
@_filters([*READY, *TERMINAL])
@_ids
@json_option
def delete(url: str, schema: str | None, table: str, job_ids: Sequence[uuid.UUID], as_json: bool, **given: Any) -> None:
    """Delete jobs that have ended, or wait. One that runs is to be canceled first.

    Without IDs, all jobs that fit every filter are deleted, after a look at how many these are and a question: those
    that have ended, unless --state says otherwise. Run it again to go on where it was interrupted. A job that a foreign
    key refers to is left.

    With --json and IDs, one object a line: `id` and `result` (moved, refused, not found, locked). With --json and
    filters, one object: `fit`, by state, `moved` and `left`.
    """
    from brooq_sa.bulk import Move, MoveResult, move_one

    job = table_named(table, schema)
    if _by_ids(job_ids, given):
        _each(url, job, job_ids, partial(move_one, job, Move.DELETE), (MoveResult.MOVED,), "DELETE", as_json)
    else:
        _all(url, job, "delete", "deleted", as_json, **given)


def _by_ids(job_ids: Sequence[uuid.UUID], given: dict[str, Any]) -> bool:
    chosen = [name for name, value in given.items() if value and name != "yes"]
    if job_ids and chosen:
        raise click.UsageError("IDs and filters are both given. Give one of them.")
    if not job_ids and not chosen:
        raise click.UsageError("Give the IDs of jobs, or a filter, such as --topic or --state.")
    return bool(job_ids)


LOCK_TIMEOUT = "5s"
"""For which a job's row may stay locked by somebody else."""

LOCKED = "locked"
"""What has become of a job that stayed so."""


def _each(
    url: str,
    job: Any,
    job_ids: Sequence[uuid.UUID],
    move: Callable[[Any, uuid.UUID], Any],
    fine: Collection[str],
    needs: str,
    as_json: bool,
) -> None:
    from sqlalchemy.exc import DBAPIError

    from brooq_sa import access
    from brooq_sa.engines import is_lock_timeout

    from .database import opened, writing

    results = []
    with opened(url) as engine:
        for job_id in job_ids:
            try:
                with writing(engine, job, getattr(access, needs)) as connection:
                    if connection.dialect.name == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                    result = move(connection, job_id)
            except DBAPIError as error:
                if not is_lock_timeout(error):
                    raise
                result = LOCKED
            results.append(result)
            if as_json:
                print_json({"id": job_id, "result": str(result)})
            elif result == LOCKED:
                click.echo(f"{job_id}  {result} by another transaction: brooq-sa why {job_id} says whose")
            else:
                click.echo(f"{job_id}  {result}")
    if any(result not in fine for result in results):
        raise click.exceptions.Exit(REFUSED)


def _all(url: str, job: Any, move: str, moved: str, as_json: bool, *, dry_run: bool, yes: bool, **filters: Any) -> None:
    from brooq_sa.bulk import Bulk, Move, Tally

    from .database import opened

    filters["states"] = [State(each) for each in filters["states"]]
    with opened(url) as engine:
        bulk = Bulk(engine, job, Move(move), **filters)
        preview = bulk.preview()
        tally = Tally()
        if not as_json:
            _show(preview)
        if preview.total and not dry_run:
            if not yes:
                _confirm(f"{move} {preview.total:,} {'job' if preview.total == 1 else 'jobs'}?")
            tally = _run(bulk, move, preview.total)
            # Some may have been moved by others before their batch was looked for.
            tally.left = max(tally.left, preview.total - tally.moved)
    if as_json:
        fit = {str(state): count for state, count in preview.counts.items()}
        print_json({"fit": fit, "moved": tally.moved, "left": tally.left})
    elif preview.total and not dry_run:
        as_before = "it was" if tally.left == 1 else "they were"
        left = f", {tally.left:,} left as {as_before}: changed, locked or referred to" if tally.left else ""
        click.echo(f"{tally.moved:,} {moved}{left}.")
    if tally.left:
        raise click.exceptions.Exit(REFUSED)


def _confirm(question: str) -> None:
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        click.echo(err=True)
        if sys.stdin.isatty():
            raise Failure("Nothing was done.") from None
        raise Failure("Nothing was done: the answer was not yes. Give --yes where nobody is asked.") from None


def _show(preview: Preview) -> None:
    if not preview.total:
        click.echo("No job fits.", err=True)
        return
    states = ", ".join(f"{count:,} {state}" for state, count in preview.counts.items())
    click.echo(f"{preview.total:,} {'job fits' if preview.total == 1 else 'jobs fit'}: {states}. Among them:")
    print_table(
        ["id", "topic", "state", "changed", "error"],
        [
            [
                row["id"],
                row["topic"],
                row["state"],
                relative(row["updated_at"], row["database_now"]),
                first_line(row["last_error"]),
            ]
            for row in preview.sample
        ],
    )


def _run(bulk: Bulk, move: str, total: int) -> Tally:
    done = 0
    try:
        with _progress(move, total) as show:

            def on_batch(tally: Tally) -> None:
                nonlocal done
                done = tally.moved
                show(tally.moved + tally.left)

            return bulk.run(on_batch)
    except KeyboardInterrupt:
        click.echo(f"Interrupted: {done:,} are moved. The same command goes on with the others.", err=True)
        raise click.exceptions.Exit(REFUSED) from None


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; it is told how many are behind it."""
    if not sys.stderr.isatty():
        yield lambda _behind: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=True) as bar:
        yield lambda behind: bar.update(behind - bar.pos)
