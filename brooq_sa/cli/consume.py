"""``brooq-sa consume``: a command for each job, in any language."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from .codes import DONE, ENDED_AT_ONCE, REFUSED, Command
from .failing import Failure
from .options import where
from .settings import log_options, read_settings, settings_options
from .stopping import Stopping

if TYPE_CHECKING:
    from brooq_sa.claims import Claim
    from brooq_sa.jobs import JobBase

GIVE_BACK = 75
"""EX_TEMPFAIL of sysexits.h: not the job's own failure."""
CANCEL = 100
"""What qmail's deliveries and their kin exit with when trying again has no point."""
NOT_RUN = (126, 127)
"""What a shell exits with when it cannot run the command."""

NOTICE = 5.0
"""Seconds that a command gets to end after SIGTERM, before SIGKILL."""
LOOK = 0.1
"""Seconds between looks whether the attempt has been told to stop."""
KEPT = 4_096
"""How many bytes from the end of its standard error are kept for `last_error`."""


class CommandFailed(Exception):
    """The command ended with an exit code that means a failed attempt."""


class _CannotRun(BaseException):
    """There is no such command: not a job's failure, so it must not count as one."""


class _Stopped(Exception):
    """Told to stop while there was nothing to do."""


@click.command(
    cls=Command,
    examples=(
        "consume image.resize --exec './resize.sh' --stop-when-empty",
        """consume email.receipt email.reminder --exec 'jq -r .to | xargs notify'""",
    ),
    exit_codes={
        DONE: "nothing is due (--stop-when-empty), or stopped as it was asked to; whatever became of the jobs",
        REFUSED: "the command cannot be run, and its job was given back; or the database refused",
        ENDED_AT_ONCE: "ended at once, by a second SIGINT or SIGTERM; its job comes back when the lease runs out",
    },
)
@where
@click.option("--exec", "command", metavar="COMMAND", required=True, help="Run by the shell once for each job.")
@click.option("--stop-when-empty", is_flag=True, help="End when nothing is due, instead of waiting for more.")
@click.option("--name", help="The beginning of the name that holds the jobs.  [default: host and process]")
@settings_options(without=("workers", "watchdog_grace", "grace", "wake_url"))
@log_options
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
def consume(
    url: str,
    schema: str | None,
    table: str,
    command: str,
    stop_when_empty: bool,
    name: str | None,
    topics: Sequence[str],
    log_format: str | None,
    log_level: str,
    **arguments: str | bool | None,
) -> None:
    """Run a command for each job of the topics, one by one, in order.

    The command reads the payload on standard input: JSON, or the very bytes of a job that was enqueued as bytes. It
    finds BROOQ_JOB_ID, BROOQ_JOB_TOPIC, BROOQ_JOB_ATTEMPT, BROOQ_JOB_MAX_ATTEMPTS and BROOQ_JOB_KEY in its environment.
    Its exit code decides:

    \b
      0         done
      75        failed, but the attempt is given back: the fault is not the job's
      100       canceled: trying again has no point
      126, 127  the command cannot be run: the job is given back and consume ends
      others    failed; tried again later, dead on the last attempt

    The end of its standard error goes into the job's last_error. A command whose time is up, or whose job was canceled,
    gets SIGTERM, and SIGKILL 5 seconds later.

    The first SIGTERM or SIGINT lets the command that runs end, and stops then.
    """
    runner = _Runner(command)
    stopping = Stopping(at_once=runner.kill)
    settings = read_settings(arguments).settings

    import brooq_sa
    from brooq_sa import log

    from .database import opened

    def sleep(seconds: float) -> None:
        if runner.is_busy:
            time.sleep(seconds)
        elif stopping.wait(seconds):
            raise _Stopped

    log.configure(format=log_format, level=log_level)
    with opened(url) as engine, suppress(_Stopped):
        base = _base(table, schema)
        claims: Any = brooq_sa.consume(
            engine, base, topics, stop_when_empty=stop_when_empty, name=name, settings=settings, sleep=sleep
        )
        with closing(claims):
            for claim in claims:
                if stopping.is_asked:
                    break  # and so give it back
                _run(runner, claim)


def _base(table: str, schema: str | None) -> type[JobBase]:
    """A base without job classes, so that payloads are taken as they are."""
    from brooq_sa.jobs import JobBase

    base: type[JobBase] = types.new_class("CommandLineJob", (JobBase,), {"table_name": table, "schema": schema})
    return base


def _run(runner: _Runner, claim: Any) -> None:
    runner.is_busy = True
    try:
        with claim as job:
            given = job.payload if isinstance(job.payload, bytes) else f"{claim.payload}\n".encode()
            _judge(runner.run(claim, given), claim, runner.last_words)
    except _CannotRun as error:
        raise Failure(f"The command cannot be run, so job {claim.id} was given back: {error}") from None
    finally:
        runner.is_busy = False


def _judge(exit_code: int, claim: Claim, last_words: str) -> None:
    """Raise what records the outcome that the exit code stands for."""
    from brooq_sa.exc import CancelJob, PreserveAttempt

    if claim.should_stop:
        raise CommandFailed(f"ended, as it was told to: {claim.cause}\n{last_words}")
    match exit_code:
        case 0:
            return
        case code if code == GIVE_BACK:
            raise PreserveAttempt(f"exit code {code}\n{last_words}")
        case code if code == CANCEL:
            raise CancelJob(f"exit code {code}\n{last_words}")
        case code if code in NOT_RUN:
            raise _CannotRun(last_words or f"exit code {code}")
        case code if code < 0:
            raise CommandFailed(f"ended by {signal.Signals(-code).name}\n{last_words}")
        case code:
            raise CommandFailed(f"exit code {code}\n{last_words}")


class _Runner:
    """Runs the command for one job at a time.

    Attributes:
        is_busy: whether a job is in hand, from before its command starts until its outcome is written.
    """

    def __init__(self, command: str) -> None:
        self.is_busy = False
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = b""

    @property
    def last_words(self) -> str:
        """The end of what the command wrote to its standard error."""
        return self._tail.decode(errors="backslashreplace").strip()

    def run(self, claim: Claim, given: bytes) -> int:
        """Run the command for a job; its exit code, or a signal's number below zero."""
        self._tail = b""
        with tempfile.TemporaryFile() as payload:  # not a pipe: a command need not read what it is given
            payload.write(given)
            payload.seek(0)
            self._process = subprocess.Popen(  # noqa: S602 - the shell is wanted, and nothing of the job is in the command
                self._command,
                shell=True,
                stdin=payload,
                stderr=subprocess.PIPE,
                env=os.environ | _variables(claim),
                start_new_session=True,  # a Ctrl-C at the terminal is ours, not the command's
            )
        listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        listener.start()
        try:
            return self._await(self._process, claim)
        finally:
            self.kill()
            listener.join(1.0)  # what the command left running may hold the pipe open
            self._process = None

    def kill(self) -> None:
        """End the command, if it runs, and all that it started, at once."""
        if self._process is not None:
            self._signal(self._process, signal.SIGKILL)

    def _await(self, process: subprocess.Popen[bytes], claim: Claim) -> int:
        while not claim.should_stop:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK)
        self._signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(NOTICE)
        self._signal(process, signal.SIGKILL)
        return process.wait()

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if process.returncode is None:  # else its number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _listen(self, stream: Any) -> None:
        """Pass standard error on, and keep its end."""
        with stream:
            while chunk := stream.read1():
                self._tail = (self._tail + chunk)[-KEPT:]
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()


def _variables(claim: Claim) -> dict[str, str]:
    return {
        "BROOQ_JOB_ID": str(claim.id),
        "BROOQ_JOB_TOPIC": claim.topic,
        "BROOQ_JOB_ATTEMPT": str(claim.attempt),
        "BROOQ_JOB_MAX_ATTEMPTS": str(claim.max_attempts),
        "BROOQ_JOB_KEY": claim.key or "",
    }
