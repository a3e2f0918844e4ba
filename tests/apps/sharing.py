"""Jobs for workers that are processes of their own; they show what was run, and what came of it.

`effect` is written through the claim's session and commits with the outcome; `run` is written on another connection,
and commits at once. Run ``brooq-sa worker apps.sharing:Sharing``, or this module for a file whose journal mode is kept.
"""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

from brooq_sa import Claim, JobBase, RetryAfter, Worker, log, sqlite

EFFECTS = (
    "CREATE TABLE effect (number int, attempt int, pid int)",
    "CREATE TABLE run (number int, attempt int, pid int)",
)
"""What tests create first: `effect` is written with the outcome, `run` at once."""


class Sharing(JobBase):
    pass


class Quick(Sharing, topic="quick"):
    """Writes its effect with its outcome, and nothing else."""

    number: int

    def run(self, claim: Claim) -> None:
        write(claim.session, "effect", self.number, claim)


class Slow(Sharing, topic="slow", max_attempts=5):
    """Notes that it runs, waits, and writes its effect with its outcome."""

    number: int
    seconds: float

    def run(self, claim: Claim) -> None:
        note_run(self.number, claim)
        claim.should_stop.wait(self.seconds)
        write(claim.session, "effect", self.number, claim)


class Sleeper(Sharing, topic="sleeper", max_attempts=5):
    """Notes that it runs, waits for its attempt's file whatever it is told, and ends in the way that the job asks for.

    Attempts after the first write their effect and succeed.
    """

    number: int
    gate: str
    ending: str

    def run(self, claim: Claim) -> None:
        note_run(self.number, claim)
        while not Path(f"{self.gate}.{claim.attempt}").exists():
            time.sleep(0.01)
        match self.ending if claim.attempt == 1 else "writes":
            case "raises":
                raise ValueError("late")
            case "asks for a retry":
                raise RetryAfter("1s")
            case "writes":
                write(claim.session, "effect", self.number, claim)


def write(session: Any, table: str, number: int, claim: Claim) -> None:
    values = {"number": number, "attempt": claim.attempt, "pid": os.getpid()}
    session.execute(text(f"INSERT INTO {table} VALUES (:number, :attempt, :pid)"), values)


def note_run(number: int, claim: Claim) -> None:
    with own_engine().begin() as connection:
        write(connection, "run", number, claim)


@cache
def own_engine() -> Engine:
    """The application's own engine, at the place where the worker's is."""
    return make_engine(os.environ["DATABASE_URL"])


def make_engine(url: str) -> Engine:
    """A configured engine; on SQLite the file's journal mode stays as it is if the environment says so."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        sqlite.configure(engine, wal="KEEP_JOURNAL_MODE" not in os.environ)
    return engine


def main() -> None:
    log.configure(format="json")
    asked: list[int] = []  # not an Event: a signal may come while the main thread holds its lock
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _frame: asked.append(which))
    with Worker(own_engine(), Sharing, workers=4, poll_interval="50ms", lease="60s"):
        print("ready", flush=True)
        while not asked:
            time.sleep(0.05)
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
