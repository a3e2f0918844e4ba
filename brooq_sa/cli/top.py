"""``brooq-sa top``: what goes on, on a screen that keeps itself up to date."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from .codes import DONE, REFUSED, SIGNALED, Command
from .failing import Failure, database_said, hide
from .frame import KEYS, View, lines
from .options import json_option, table_named, where
from .printing import clean, print_json

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console
    from rich.live import Live
    from sqlalchemy import Engine, Table

    from brooq_sa.overview import Overview

    from .keyboard import Keyboard

WIDTH = 100
"""Of a frame that is printed where there is no terminal."""

NO_TERMINAL = "Standard input and output are no terminal to show it on. Use --once, or --json."


@click.command(
    cls=Command,
    examples=("top", "top --topic email --interval 5", "top --once", "top --json"),
    exit_codes={
        DONE: "quit, or printed",
        REFUSED: "the database refused, or has no such table",
        "129, 143": "ended by SIGHUP or SIGTERM",
    },
)
@where
@click.option("--topic", default="", metavar="TEXT", help="Only topics that contain this.")
@click.option(
    "--interval", type=click.FloatRange(0.5), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--once", is_flag=True, help="Print one frame with all rows, and end.")
@json_option
def top(url: str, schema: str | None, table: str, topic: str, interval: float, once: bool, as_json: bool) -> None:
    """Show topics, live workers and running jobs on a screen that keeps itself up to date.

    Keys: q quits, p holds the refresh and goes on, / filters by topic, Tab shows failed, dead and canceled jobs in
    place of running ones, the arrows (or j and k) choose a job, c cancels it and r retries it, after a question. The
    last line has the error of the chosen job.

    p95 is the time from ready to the end that 95 of 100 of a topic's lately done jobs stayed within.

    With --json, one object: `at`, `topics`, `workers`, `running`, `troubled` and `is_estimated`.
    """
    from .database import opened

    job = table_named(table, schema)
    is_screen = not once and not as_json
    if is_screen and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(NO_TERMINAL)
    with opened(url, wal=False) as engine:
        seen = _look(engine, job)
        if is_screen:
            _Screen(engine, job, seen, View(wanted=topic), interval).run()
        elif as_json:
            print_json(_document(seen, topic))
        else:
            for line in lines(seen, View(wanted=topic), WIDTH):
                click.echo(line)


def _look(engine: Engine, job: Table) -> Overview:
    from brooq_sa.overview import overview

    from .database import reading

    with reading(engine, job) as connection:
        return overview(connection, job)


def _document(seen: Overview, wanted: str) -> dict[str, Any]:
    import dataclasses

    document = dataclasses.asdict(seen)
    for name in ("topics", "running", "troubled"):
        document[name] = [each for each in document[name] if wanted in each["topic"]]
    return document | {"at": seen.at.isoformat()}


class _Heard(Exception):
    """A signal has come that is to be obeyed with the terminal as it was."""


@contextmanager
def _hearing(hear: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Hear of the signals that would leave the terminal as the screen needs it."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP
    before = {number: signal.signal(number, hear) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Screen:
    """The live view: one thread that looks, draws, and waits for keys until the next look."""

    def __init__(self, engine: Engine, job: Table, seen: Overview, view: View, interval: float) -> None:
        self._engine = engine
        self._job = job
        self._seen = seen
        self._view = view
        self._interval = interval
        self._typed: str | None = None
        self._asked: tuple[str, Any] | None = None
        self._is_refused = False
        self._is_over = False
        self._is_shown = False
        self._is_waiting = False
        self._heard: int | None = None

    def run(self) -> None:
        try:
            from .keyboard import Keyboard
        except ImportError as error:
            raise Failure("Keys can be read on Unix alone. Use --once, or --json.") from error
        from rich.console import Console
        from rich.live import Live

        console = Console()
        with _hearing(self._hear):
            while not self._is_over:
                with (
                    Keyboard(sys.stdin.fileno()) as keyboard,
                    Live(console=console, screen=True, auto_refresh=False) as live,
                ):
                    self._show(console, live, keyboard)
                # The terminal is as it was: what we were told can take its course.
                self._obey()

    def _show(self, console: Console, live: Live, keyboard: Keyboard) -> None:
        """Draw, and do what the keys say, until it is over or a signal comes."""
        with suppress(_Heard, KeyboardInterrupt):
            self._is_shown = True
            try:
                self._go_on(console, live, keyboard)
            finally:
                self._is_shown = False

    def _go_on(self, console: Console, live: Live, keyboard: Keyboard) -> None:
        from rich.text import Text

        look_at = time.monotonic() + self._interval
        while not self._is_over:
            frame = lines(self._seen, self._view, console.width, console.height)
            live.update(Text("\n".join(frame), no_wrap=True, overflow="crop"), refresh=True)
            pressed = self._wait(keyboard, look_at - time.monotonic())
            if pressed is None:
                self._is_over = True
                return
            for key in pressed:
                self._press(key)
            if time.monotonic() >= look_at:
                self._refresh()
                look_at = time.monotonic() + self._interval

    def _wait(self, keyboard: Keyboard, timeout: float) -> list[str] | None:
        self._is_waiting = True
        try:
            if self._heard is not None:
                raise _Heard
            return keyboard.read(timeout)
        finally:
            self._is_waiting = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        """Note it, and cut short what the screen is at: once at most, so that the terminal is put back undisturbed."""
        if number == signal.SIGINT:
            self._is_over = True
            if self._is_shown:
                self._is_shown = self._is_waiting = False
                raise KeyboardInterrupt
        elif self._heard is None or number != signal.SIGTSTP:  # a stop does not undo an end that is still to come
            self._heard = number
            # Only a wait is cut short: a look, or a move that the user asked for, comes to its end.
            if self._is_waiting:
                self._is_shown = self._is_waiting = False
                raise _Heard

    def _obey(self) -> None:
        """Stop, until the shell's `fg`; or end, with the exit code of a signal."""
        number, self._heard = self._heard, None
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number is not None:
            raise click.exceptions.Exit(SIGNALED + number)

    def _refresh(self) -> None:
        if self._view.is_held:
            return
        before = self._view.job(self._seen)
        seen = self._try(lambda: _look(self._engine, self._job))
        if seen is None:
            # The last line no longer shows what was asked, so a key must not answer it.
            self._is_refused, self._asked, self._typed = True, None, None
            return
        if self._is_refused:
            self._is_refused, self._view.bottom = False, KEYS
        self._seen = seen
        jobs = [each.id for each in self._view.jobs(seen)]
        if before is not None:  # the choice stays with the job, not with the line
            self._view.chosen = jobs.index(before.id) if before.id in jobs else None
            if before.id not in jobs and self._asked is None and self._typed is None:
                self._view.bottom = KEYS

    def _press(self, key: str) -> None:
        if self._typed is not None:
            self._type(key)
        elif self._asked is not None:
            self._answer(key)
        else:
            self._command(key)

    def _command(self, key: str) -> None:
        view = self._view
        view.bottom = KEYS
        match key:
            case "q":
                self._is_over = True
            case "p" | " ":
                view.is_held = not view.is_held
            case "/":
                self._typed = view.wanted
                self._prompt()
            case "tab":
                view.shows_trouble, view.chosen = not view.shows_trouble, None
            case "up" | "k":
                view.move(-1, self._seen)
            case "down" | "j":
                view.move(1, self._seen)
            case "c":
                self._ask("cancel")
            case "r":
                self._ask("retry")

    def _type(self, key: str) -> None:
        typed = self._typed or ""
        match key:
            case "enter":
                self._view.wanted, self._view.chosen, self._typed = typed, None, None
                self._view.bottom = KEYS
                return
            case "escape":
                self._typed, self._view.bottom = None, KEYS
                return
            case "backspace":
                self._typed = typed[:-1]
            case _ if len(key) == 1:
                self._typed = typed + key
        self._prompt()

    def _prompt(self) -> None:
        self._view.bottom = f"Only topics that contain (Enter, Esc): {self._typed}_"

    def _ask(self, move: str) -> None:
        job = self._view.job(self._seen)
        if job is None:
            self._view.bottom = "No job is chosen: use the arrows, or j and k."
            return
        self._asked = (move, job.id)
        self._view.bottom = f"{move} {job.id} of {job.topic}? y/n"

    def _answer(self, key: str) -> None:
        if self._asked is None:
            return
        (move, job_id), self._asked = self._asked, None
        self._view.bottom = KEYS
        if key == "y":
            result = self._try(lambda: self._move(move, job_id))
            if result is not None:
                self._view.bottom = f"{job_id}: {result}"

    def _move(self, move: str, job_id: Any) -> str:
        from brooq_sa import access
        from brooq_sa.store import JobStore

        from .database import writing

        store = JobStore(self._job)
        with writing(self._engine, self._job, access.OPERATE) as connection:
            return str((store.cancel if move == "cancel" else store.retry)(connection, job_id))

    def _try(self, ask: Any) -> Any:
        """What the database answers; None if it refused, which the last line then tells."""
        from sqlalchemy.exc import SQLAlchemyError

        from brooq_sa.exc import BrooqError

        try:
            return ask()
        except BrooqError as error:
            self._view.bottom = hide(clean(error))
        except SQLAlchemyError as error:
            self._view.bottom = hide(clean(database_said(error)))
        return None
