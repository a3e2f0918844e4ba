"""Following a job to its end: a line that keeps itself up to date on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import click

from .codes import DONE, REFUSED, SIGNALED
from .failing import Failure
from .frame import cut
from .printing import clean, first_line, print_json, words

if TYPE_CHECKING:
    import uuid
    from datetime import timedelta

    from sqlalchemy import Engine, Table

    from brooq_sa.progress import Progress
    from brooq_sa.waiting import Fate

DEAD, CANCELED, NOT_ENDED = 4, 5, 6
"""Exit codes, beside those of every command."""

IMPATIENT = 5.0
"""Seconds after which it is asked why the job is not running, and asked again."""

USUAL_WIDTH = 80

BAR = 20
"""Cells."""

CLEAR = "\r\x1b[K"
"""Back to the start of the line, and nothing on it."""


def follow(engine: Engine, table: Table, job_id: uuid.UUID, timeout: timedelta | None, as_json: bool) -> NoReturn:
    """Wait until the job has ended, tell how, and end with the exit code for it."""
    from brooq_sa.exc import JobNotFound
    from brooq_sa.waiting import wait_for

    shown = _Line(engine, table)
    try:
        fate = wait_for(engine, table, job_id, timeout=timeout, on_look=shown.show)
    except TimeoutError as error:
        raise Failure(f"{error} brooq-sa why {job_id} says more.", exit_code=NOT_ENDED) from None
    except JobNotFound as error:
        raise Failure(str(error), exit_code=REFUSED) from None
    except KeyboardInterrupt:
        shown.clear()
        click.echo(f"The job goes on: brooq-sa why {job_id}", err=True)
        raise click.exceptions.Exit(SIGNALED + 2) from None
    finally:
        shown.clear()
    _tell(fate, as_json)
    raise click.exceptions.Exit({"done": DONE, "dead": DEAD, "canceled": CANCELED}[fate.state])


def _tell(fate: Fate, as_json: bool) -> None:
    if as_json:
        print_json({"id": fate.id, "state": str(fate.state), "attempts": fate.attempts, "error": fate.error})
        return
    attempts = "1 attempt" if fate.attempts == 1 else f"{fate.attempts} attempts"
    error = f": {first_line(fate.error)}" if fate.error and fate.state != "done" else ""
    click.echo(clean(f"{fate.id}  {fate.state}, after {attempts}{error}"))


def _bar(progress: Progress) -> str:
    if progress.ratio is None:
        return ""
    full = round(progress.ratio * BAR)
    return f"[{'#' * full}{'-' * (BAR - full)}] "


class _Line:
    """What standard error shows of the job while it is waited for."""

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = engine
        self._table = table
        self._is_terminal = sys.stderr.isatty()
        self._begun = self._asked = time.monotonic()
        self._shown: str | None = None
        self._reason = ""

    def show(self, fate: Fate) -> None:
        if fate.is_over:
            return
        if fate.state == "processing":
            self._asked = time.monotonic()
            told = f"  {_bar(fate.progress)}{fate.progress}" if fate.progress else ""
            self._print(f"attempt {fate.attempts} runs{told}", f"runs {fate.progress}" if fate.progress else "runs")
        elif fate.state == "failed" and fate.due_in > 0:
            error = first_line(fate.error, 120)
            self._print(f"attempt {fate.attempts} failed with {error}; it will be tried again", "failed")
        elif time.monotonic() - self._asked > IMPATIENT:
            self._asked = time.monotonic()
            self._print(*self._why(fate))
        else:
            self._print(self._shown or "waits", self._reason)

    def clear(self) -> None:
        if self._is_terminal and self._shown is not None:
            click.echo(CLEAR, nl=False, err=True)
        self._shown = None

    def _print(self, text: str, reason: str) -> None:
        if self._is_terminal:
            line = clean(f"{words(time.monotonic() - self._begun)}  {text}")
            # A second line could not be taken back. A terminal that knows no width says 0.
            width = os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_WIDTH
            click.echo(CLEAR + cut(line, width - 1), nl=False, err=True)
        elif self._shown is None or reason != self._reason:
            click.echo(clean(text), err=True)
        self._shown, self._reason = text, reason

    def _why(self, fate: Fate) -> tuple[str, str]:
        from sqlalchemy.exc import SQLAlchemyError

        from brooq_sa.standing import explain

        from .database import reading

        try:
            with reading(self._engine, self._table) as connection:
                answer = explain(connection, self._table, fate.id)
        except SQLAlchemyError:  # the wait itself deals with it
            return "waits", self._reason
        return answer.sentence, str(answer.reason)
