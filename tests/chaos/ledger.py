"""What happened, by those whom it happened to: the evidence that is independent of the database under test.

Each process writes a SQLite file of its own, in autocommit, so that neither a database that is down nor another process
that is stopped keeps it from writing. What was written survives the kill of its writer.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = "BROOQ_CHAOS_LEDGERS"
"""The environment's variable for the folder of the files."""

NAME = "BROOQ_CHAOS_NAME"
"""The variable for the name that the process's connections have."""

COMMITTED, ROLLED_BACK, IN_DOUBT = "committed", "rolled back", "in doubt"
RETURNED = "returned"

SCHEMA = """
    CREATE TABLE enqueued (job TEXT, batch TEXT, topic TEXT, is_new INTEGER, is_kept INTEGER);
    CREATE TABLE answer (batch TEXT, answer TEXT);
    CREATE TABLE run (number INTEGER PRIMARY KEY, job TEXT, attempt INTEGER, worker TEXT, topic TEXT);
    CREATE TABLE ended (run INTEGER PRIMARY KEY, how TEXT);
    CREATE TABLE trouble (what TEXT, who TEXT, began REAL, ended REAL);
"""


class Ledger:
    """One process's file."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.ledger"
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.executescript(SCHEMA)

    def _write(self, table: str, *values: object) -> int:
        places = ", ".join("?" * len(values))
        with self._lock:
            return self._file.execute(f"INSERT INTO {table} VALUES ({places})", values).lastrowid or 0

    # By producers.

    def enqueued(self, job: uuid.UUID, batch: str, topic: str, *, is_new: bool, is_kept: bool) -> None:
        """A job was put in a transaction; `is_kept` unless its savepoint was rolled back."""
        self._write("enqueued", job.hex, batch, topic, is_new, is_kept)

    def answered(self, batch: str, answer: str) -> None:
        """What became of the transaction. One without an answer is in doubt: its producer was killed."""
        self._write("answer", batch, answer)

    # By handlers.

    def ran(self, job: uuid.UUID, attempt: int, worker: str, topic: str) -> int:
        """A handler has begun; the number of its run."""
        return self._write("run", None, job.hex, attempt, worker, topic)

    def ended(self, run: int, how: str) -> None:
        """How the handler ended: ``returned``, or the name of what it raised."""
        self._write("ended", run, how)

    @contextmanager
    def trouble(self, what: str) -> Iterator[None]:
        """The handler does something to its whole process while the block runs."""
        number = self._write("trouble", what, os.environ[NAME], now(), None)  # first: it may be killed in the middle
        yield
        with self._lock:
            self._file.execute("UPDATE trouble SET ended = ? WHERE rowid = ?", (now(), number))

    def close(self) -> None:
        self._file.close()


def now() -> float:
    """The host's time, whatever a process was made to believe that it is."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@cache
def own() -> Ledger:
    """This process's ledger."""
    return Ledger(Path(os.environ[FOLDER]))


@dataclass(frozen=True, slots=True)
class Promise:
    """A job that a producer put.

    Attributes:
        answer: of its transaction; ROLLED_BACK too if its savepoint was.
    """

    job: str
    topic: str
    is_new: bool
    answer: str


@dataclass(frozen=True, slots=True)
class Run:
    """A handler's run; `how` is None if it never ended."""

    job: str
    attempt: int
    worker: str
    topic: str
    how: str | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that may well cost a lease.

    Attributes:
        who: the name of the process that it befell, or of the place and so of all processes there; None is everybody.
        began, ended: seconds of the host's time; a kill never ends.
    """

    what: str
    who: str | None
    began: float
    ended: float

    def befell(self, process: str | None) -> bool:
        return self.who is None or (process is not None and f"{process}-".startswith(f"{self.who}-"))


@dataclass
class Evidence:
    """All ledgers together."""

    promises: list[Promise] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


def read(folder: Path) -> Evidence:
    evidence = Evidence()
    for path in sorted(folder.glob("*.ledger")):
        file = sqlite3.connect(path)
        if not file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'trouble'").fetchone()[0]:
            file.close()
            continue  # killed before it had a table
        answers = dict(file.execute("SELECT batch, answer FROM answer"))
        for job, batch, topic, is_new, is_kept in file.execute("SELECT * FROM enqueued"):
            answer = answers.get(batch, IN_DOUBT) if is_kept else ROLLED_BACK
            evidence.promises.append(Promise(job, topic, bool(is_new), answer))
        query = "SELECT job, attempt, worker, topic, how FROM run LEFT JOIN ended ON run = number"
        evidence.runs += [Run(*row) for row in file.execute(query)]
        troubles = file.execute("SELECT what, who, began, ifnull(ended, 9e999) FROM trouble")
        evidence.troubles += [Trouble(*row) for row in troubles]
        file.close()
    return evidence
