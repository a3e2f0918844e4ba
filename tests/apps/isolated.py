"""Job classes whose handlers run in child processes."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from brooq_sa import AsyncClaim, CancelJob, Claim, JobBase, PreserveAttempt, RetryAfter

INSERT = text("INSERT INTO effect (name) VALUES (:name)")


class Isolated(JobBase):
    pass


class Work(Isolated, topic="work", isolation="process"):
    """Does one of `ACTIONS`."""

    action: str
    path: str = ""

    def run(self, claim: Claim) -> None:
        ACTIONS[self.action](self, claim)


class Short(Work, topic="short", attempt_timeout="200ms", max_attempts=1):
    """The same, and told to stop soon."""


class Large(Work, topic="large", memory_limit="256MB", max_attempts=1):
    """The same, and not to hold much."""


class Coroutine(Isolated, topic="coroutine", isolation="process", max_attempts=1):
    """Does something and awaits something."""

    action: str
    path: str = ""

    async def run(self, claim: AsyncClaim) -> None:
        match self.action:
            case "write":
                await claim.session.execute(INSERT, {"name": str(claim.id)})
                claim.chain(Next(number=claim.attempt))
            case "note":
                note(self.path, os.getpid())
            case "wait":
                note(self.path, os.getpid())
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    note(self.path, f"told {claim.cause}")
                    raise
            case _:
                raise ValueError(self.action)


class Next(Isolated, topic="next"):
    """What handlers chain; nobody runs it."""

    number: int


class Registered(Isolated, topic="registered", isolation="process", max_attempts=1):
    """Its handler stands in another module."""

    path: str


def note(path: str, line: object) -> None:
    """Add a line to a file, in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def notes(path: Path) -> list[str]:
    """The lines that were added, so far."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def write(job: Work, claim: Claim) -> None:
    claim.session.execute(INSERT, {"name": str(claim.id)})
    claim.chain(Next(number=claim.attempt))


def write_and_fail(job: Work, claim: Claim) -> None:
    write(job, claim)
    claim.session.flush()
    raise ValueError("after the write")


def chain(job: Work, claim: Claim) -> None:
    claim.chain(Next(number=claim.attempt))


def lose(job: Work, claim: Claim) -> None:
    """Write, while somebody else takes the job."""
    write(job, claim)
    claim.session.rollback()
    claim.session.execute(text("UPDATE job SET locked_by = 'somebody else' WHERE topic = 'work'"))
    claim.session.commit()
    write(job, claim)


def die_before_commit(job: Work, claim: Claim) -> None:
    write(job, claim)
    session: Any = claim.session
    session.commit = lambda: os._exit(9)


def wait(job: Work, claim: Claim) -> None:
    note(job.path, os.getpid())
    claim.should_stop.wait(60)
    note(job.path, f"told {claim.cause}")


def wait_and_succeed(job: Work, claim: Claim) -> None:
    note(job.path, os.getpid())
    while not Path(f"{job.path}.go").exists():
        time.sleep(0.01)


def spin(job: Work, claim: Claim) -> None:
    note(job.path, os.getpid())
    while True:
        pass


def sleep_in_c(job: Work, claim: Claim) -> None:
    note(job.path, os.getpid())
    ctypes.PyDLL(None).sleep(60)  # which holds the GIL


def start_a_program(job: Work, claim: Claim) -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note(job.path, program.pid)
    program.wait()


def allocate(job: Work, claim: Claim) -> None:
    held = bytearray(b"x") * 400_000_000
    note(job.path, len(held))
    time.sleep(60)


def keep(job: Work, claim: Claim) -> None:
    """Leave memory behind."""
    KEPT.append(bytearray(b"x") * 200_000_000)
    note(job.path, os.getpid())


KEPT: list[bytearray] = []


class Unpicklable(Exception):
    def __init__(self, claim: Claim) -> None:
        super().__init__("cannot be sent anywhere")
        self.claim = claim


def raise_(error: Callable[[Claim], BaseException]) -> Callable[[Work, Claim], None]:
    def action(job: Work, claim: Claim) -> None:
        raise error(claim)

    return action


def tell_and_wait(job: Work, claim: Claim) -> None:
    for number in range(1, 101):
        claim.progress(number, 100, "in a child")
    claim.should_stop.wait(30)


ACTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda job, claim: None,
    "note": lambda job, claim: note(job.path, os.getpid()),
    "print": lambda job, claim: print("from the handler", flush=True),
    "log": lambda job, claim: logging.getLogger("app").warning("from its log"),
    "stdin": lambda job, claim: note(job.path, repr(sys.stdin.read())),
    "write": write,
    "write and fail": write_and_fail,
    "chain": chain,
    "lose": lose,
    "die before commit": die_before_commit,
    "tell and wait": tell_and_wait,
    "wait": wait,
    "wait and succeed": wait_and_succeed,
    "spin": spin,
    "sleep in C": sleep_in_c,
    "start a program": start_a_program,
    "allocate": allocate,
    "keep": keep,
    "exit": lambda job, claim: os._exit(3),
    "segfault": lambda job, claim: ctypes.string_at(0),
    "kill": lambda job, claim: os.kill(os.getpid(), signal.SIGKILL),
    "close": lambda job, claim: os.closerange(3, 100),
    "fail": raise_(lambda claim: ValueError("the secret is 1234")),
    "exotic": raise_(lambda claim: ValueError("the secret is 5678")),
    "system exit": raise_(lambda claim: SystemExit(4)),
    "unpicklable": raise_(Unpicklable),
    "retry": raise_(lambda claim: RetryAfter("1h", reason="later")),
    "preserve": raise_(lambda claim: PreserveAttempt("not its fault")),
    "cancel": raise_(lambda claim: CancelJob("no point")),
}


def session_of_its_own() -> Session:
    """A session factory that a child can import."""
    note(os.environ["SESSIONS"], os.getpid())
    return Session(create_engine(os.environ["SESSION_URL"], poolclass=NullPool))
