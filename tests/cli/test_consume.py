"""``brooq-sa consume``, as a real process (S3)."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brooq_sa import RawJob, enqueue
from databases import Database
from processes import Child, Processes
from waiting import wait_until

EMPTY = "--stop-when-empty"

on_sqlite_alone = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
"""For what a process does that has nothing to do with which database it is."""


@pytest.fixture
def consume(processes: Processes, db: Database) -> Any:
    """Starts ``brooq-sa consume`` on the database under test."""

    def run(*arguments: str) -> Child:
        options = ("--poll-interval", "50ms", "--backoff-base", "0s")
        return processes.module("brooq_sa", "consume", *options, *arguments, env={"DATABASE_URL": db.url})

    return run


def put(db: Database, topic: str, payload: Any, **options: Any) -> str:
    with db.engine.begin() as connection:
        return str(enqueue(connection, RawJob(topic, payload), **options).id)


def python(source: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(source)}"


def test_payload_and_variables(consume: Any, db: Database) -> None:
    """The command finds the payload on standard input and the job in its environment; jobs come in order (I10)."""
    first = put(db, "a", {"n": "naïve"}, key="k")
    second = put(db, "a", b"\x00\xff\n")
    source = """
import json, os, sys
names = ("ID", "TOPIC", "ATTEMPT", "MAX_ATTEMPTS", "KEY")
given = sys.stdin.buffer.read().decode("latin-1")
with open("seen", "a") as file:
    print(json.dumps([given, *(os.environ["BROOQ_JOB_" + name] for name in names)]), file=file)
"""
    child = consume("a", "--exec", python(source), EMPTY, "--max-attempts", "3")
    assert child.wait() == 0
    seen = [json.loads(line) for line in (child.log.parent / "seen").read_text().splitlines()]
    given = seen[0].pop(0)
    assert json.loads(given.encode("latin-1")) == {"n": "naïve"}
    assert seen == [[first, "a", "1", "3", "k"], ["\x00\xff\n", second, "a", "1", "3", ""]]
    assert db.states() == ["done", "done"]


OUTCOMES = {
    "exit 0": ("done", 1, None),
    "echo oh no >&2; exit 3": ("failed", 1, "exit code 3\noh no"),
    "echo later >&2; exit 75": ("failed", 0, "exit code 75\nlater"),
    "exit 100": ("canceled", 1, "exit code 100"),
    "kill -KILL $$": ("failed", 1, "ended by SIGKILL"),
    "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1": ("failed", 1, "xxx"),
}


def test_exit_code_decides(consume: Any, db: Database) -> None:
    """The command's exit code is the outcome, and the end of its standard error the reason (R2, R3)."""
    for command in OUTCOMES:
        put(db, "a", command.encode())
    # Each job's payload is the script that its command runs.
    child = consume("a", "--exec", "exec sh -s", EMPTY, "--backoff-base", "1h", "--backoff-max", "1h")
    assert child.wait() == 0, child.output()
    for row, (state, attempts, error) in zip(db.rows(), OUTCOMES.values(), strict=True):
        assert (row["state"], row["attempts"]) == (state, attempts)
        assert row["last_error"] is None if error is None else error in row["last_error"]


@on_sqlite_alone
def test_last_attempt(consume: Any, db: Database) -> None:
    """A command that fails every time makes the job dead at the last attempt (I7)."""
    put(db, "a", 1)
    child = consume("a", "--exec", "exit 1", EMPTY, "--max-attempts", "3")
    assert child.wait() == 0
    assert (db.row()["state"], db.row()["attempts"]) == ("dead", 3)


@on_sqlite_alone
def test_payload_that_nobody_reads(consume: Any, db: Database) -> None:
    """A command need not read what it is given, however long that is."""
    put(db, "a", "x" * 1_000_000)
    assert consume("a", "--exec", "true", EMPTY).wait() == 0
    assert db.row()["state"] == "done"


@on_sqlite_alone
def test_command_that_cannot_be_run(consume: Any, db: Database) -> None:
    """A command that is not there costs no job an attempt, and ends it all with exit code 1."""
    put(db, "a", 1)
    put(db, "a", 2)
    child = consume("a", "--exec", "no-such-command", EMPTY)
    assert child.wait() == 1
    assert "Error: The command cannot be run, so job" in child.output()
    assert [(row["state"], row["attempts"]) for row in db.rows()] == [("pending", 0), ("pending", 0)]


@on_sqlite_alone
def test_time_limit(consume: Any, db: Database) -> None:
    """A command whose time is up is ended, with all that it started; the attempt has failed (T1)."""
    put(db, "a", 1)
    command = "sleep 60 & echo $! > pid; wait"
    child = consume("a", "--exec", command, "--attempt-timeout", "300ms", "--backoff-base", "1h", "--backoff-max", "1h")
    wait_until(lambda: db.row()["state"] == "failed", what="the attempt having failed", timeout=20)
    assert "attempt timed out" in db.row()["last_error"]
    pid = int((child.log.parent / "pid").read_text())
    wait_until(lambda: not _runs(pid), what="the end of what the command started")
    child.send(signal.SIGTERM)
    assert child.wait() == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waits_for_more_and_stops_when_asked(consume: Any, db: Database) -> None:
    """Without --stop-when-empty it waits for jobs; a signal while it waits ends it, exit code 0."""
    child = consume("a", "--exec", "true")
    job_id = put(db, "a", 1)
    wait_until(lambda: db.states() == ["done"], what=f"job {job_id} being done", timeout=20)
    child.send(signal.SIGINT)
    assert child.wait() == 0, child.output()
    assert "Traceback" not in child.output()


@on_sqlite_alone
def test_first_signal_lets_the_command_end(consume: Any, db: Database) -> None:
    """The command that runs when a signal comes may end, and its job is settled; the next is left alone (T6)."""
    put(db, "a", 1)
    put(db, "a", 2)
    child = consume("a", "--exec", "touch begun; while [ ! -e go ]; do sleep 0.02; done")
    folder = child.log.parent
    wait_until((folder / "begun").exists, what="the command", timeout=20)
    child.send(signal.SIGTERM)
    (folder / "go").touch()
    assert child.wait() == 0
    assert {row["state"] for row in db.rows()} <= {"done", "pending"}
    assert db.rows()[0]["state"] == "done"
    assert db.rows(state="processing") == []


def test_second_signal_ends_at_once(consume: Any, db: Database) -> None:
    """A second signal ends the command and consume; the job comes back when its lease runs out (T6)."""
    put(db, "a", 1)
    child = consume("a", "--exec", "echo $$ > pid; sleep 60", "--lease", "2s")
    file = child.log.parent / "pid"
    wait_until(lambda: file.exists() and file.read_text().strip(), what="the command", timeout=20)
    child.send(signal.SIGTERM)

    def has_ended() -> bool:
        if child.is_running:
            child.send(signal.SIGTERM)
        return not child.is_running

    wait_until(has_ended, what="an end")
    assert child.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not _runs(int(file.read_text())), what="the end of the command")
    assert db.row()["state"] == "processing"
    db.shift_clock(timedelta(seconds=5))
    again = consume("a", "--exec", "true", EMPTY, "--reaper-period", "50ms")
    assert again.wait() == 0


def test_malformed_topic(processes: Processes, sqlite: Database) -> None:
    """A malformed topic is wrong usage."""
    child = processes.module("brooq_sa", "consume", "Not.A.Topic", "--exec", "true", "--url", sqlite.url)
    assert child.wait() == 2
    assert "Topic 'Not.A.Topic' is not lowercase" in child.output()
