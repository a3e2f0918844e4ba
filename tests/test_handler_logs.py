"""What handlers log says whose it is, and no trouble with a log is any trouble of a job."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from apps.embedding import base_of, job_class, put, work_off
from brooq_sa import RawJob, log
from databases import Database
from processes import Processes
from waiting import wait_until

JOBS = """
import logging
import structlog
from brooq_sa import JobBase

class AppJob(JobBase): ...

class Plain(AppJob, topic="plain", max_attempts=1):
    def run(self, claim):
        structlog.get_logger("app").info("by structlog", n=1)
        logging.getLogger("app").warning("by the stdlib")

class Coroutine(AppJob, topic="coroutine", max_attempts=1):
    async def run(self, claim):
        structlog.get_logger("app").info("by structlog", n=1)
        logging.getLogger("app").warning("by the stdlib")

class Isolated(AppJob, topic="isolated", max_attempts=1, isolation="process"):
    def run(self, claim):
        structlog.get_logger("app").info("by structlog", n=1)
        logging.getLogger("app").warning("by the stdlib")

class Failing(AppJob, topic="failing", max_attempts=1):
    def run(self, claim):
        raise ValueError("no such thing")

class Secret(AppJob, topic="secret", max_attempts=2, backoff_base="0s", backoff_max="0s"):
    token: str
    number: int = 0
    def run(self, claim):
        if claim.attempt == 1:
            raise ValueError("no such thing")

class Noted(AppJob, topic="noted", max_attempts=1):
    def run(self, claim): ...
"""


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Logging and structlog are as they were after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def start(processes: Processes, sqlite: Database) -> Any:
    """Starts ``brooq-sa worker`` with the jobs above."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")

    def run(*arguments: str) -> Any:
        return processes.module(
            "brooq_sa", "worker", "own_jobs:AppJob", "--poll-interval", "50ms", *arguments, "--url", sqlite.url
        )

    return run


@pytest.mark.parametrize("topic", ["plain", "coroutine", "isolated"])
def test_lines_of_handlers_say_whose_they_are(start: Any, sqlite: Database, topic: str) -> None:
    """By structlog or the stdlib, in a thread, a coroutine or a child process, a line has all four (W3)."""
    job_id = put(sqlite, RawJob(topic, {}))
    worker = start("--log-format", "json")
    worker.wait_for_output("job_done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    [done] = [line for line in lines if line["event"] == "job_done"]
    about = {"job_id": str(job_id), "topic": topic, "attempt": 1, "worker": done["worker"]}
    for event in ("by structlog", "by the stdlib"):
        [line] = [line for line in lines if line["event"] == event]
        assert line.items() >= about.items()
    outside = [line for line in lines if line["event"].startswith(("worker_", "endpoint_"))]
    assert outside
    assert not any("job_id" in line for line in outside)


def test_a_traceback_stands_in_the_log_once(start: Any, sqlite: Database) -> None:
    """On a terminal it is told in lines, and once; the line about the failure has its first line (W3)."""
    put(sqlite, RawJob("failing", {}))
    worker = start("--log-format", "console")
    worker.wait_for_output("job_dead")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    output = worker.output()
    assert output.count("Traceback (most recent call last):\n") == 1
    assert '\n    raise ValueError("no such thing")\n' in output
    assert "\\n" not in output
    [line] = [line for line in output.splitlines() if "job_dead" in line]
    assert "ValueError: no such thing" in line


def test_a_traceback_is_a_field_of_its_own_in_json(start: Any, sqlite: Database) -> None:
    """Programs find the error and its traceback apart, each once (W3)."""
    put(sqlite, RawJob("failing", {}))
    worker = start("--log-format", "json")
    worker.wait_for_output("job_dead")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    [line] = [json.loads(line) for line in worker.output().splitlines() if "job_dead" in line]
    assert line["error"] == "ValueError: no such thing"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert worker.output().count("Traceback") == 1


def test_no_payload_in_any_line(start: Any, sqlite: Database) -> None:
    """What a job carries is in no line, not even at debug and when it cannot be read (W3)."""
    put(sqlite, RawJob("secret", {"token": "hunter2"}))
    put(sqlite, RawJob("secret", {"token": "hunter2", "number": "hunter2"}))
    put(sqlite, RawJob("secret", {"token": "hunter2", "surprise": "hunter2"}))
    worker = start("--log-format", "json", "--log-level", "debug")
    wait_until(
        lambda: not {"pending", "processing", "failed"} & set(sqlite.states()), what="all jobs' ends", timeout=30
    )
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert "job_claimed" in worker.output()
    assert "job_dead" in worker.output()
    assert "hunter2" not in worker.output()


@pytest.mark.usefixtures("as_it_was")
def test_the_configuration_of_an_application_holds(sqlite: Database) -> None:
    """Embedded, lines of handlers and our own go through the application's structlog processors alone (W3)."""
    stream = io.StringIO()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, event: {**event, "app": "shop"},
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    job = job_class(lambda job, claim: structlog.get_logger().info("sent"))
    job_id = put(sqlite, job())
    work_off(sqlite, job)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["app"] for line in lines} == {"shop"}
    [sent] = [line for line in lines if line["event"] == "sent"]
    assert (sent["job_id"], sent["topic"], sent["attempt"]) == (str(job_id), "work", 1)
    assert {"job_claimed", "job_done", "worker_started"} <= {line["event"] for line in lines}


@pytest.mark.usefixtures("as_it_was")
def test_our_own_lines_by_the_stdlib(sqlite: Database) -> None:
    """An application's own format has the four in our lines too, wherever they are written (W3)."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(log.AttemptFilter())
    handler.setFormatter(logging.Formatter("%(message).14s|%(job_id)s|%(topic)s|%(attempt)s|%(worker)s"))
    logger = logging.getLogger(log.NAME)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        job = job_class(lambda job, claim: None)
        job_id = put(sqlite, job())
        work_off(sqlite, job)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    lines = [line.split("|") for line in stream.getvalue().splitlines()]
    [[_, *about, worker]] = [line for line in lines if line[0] == "event=job_done"]
    assert about == [str(job_id), "work", "1"]
    assert worker != "-"
    assert {tuple(line[1:]) for line in lines if line[0] == "event=worker_s"} == {("-", "-", "-", worker)}


@pytest.mark.usefixtures("as_it_was")
def test_the_filter_for_the_stdlib(sqlite: Database) -> None:
    """With the filter, an application's own format has the four in each record, and "-" outside of attempts (W3)."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(log.AttemptFilter())
    handler.setFormatter(logging.Formatter("%(message)s|%(job_id)s|%(topic)s|%(attempt)s|%(worker)s"))
    logger = logging.getLogger("app.mail")
    logger.addHandler(handler)
    try:
        logger.warning("before")
        job = job_class(lambda job, claim: logger.warning("within %s", claim.worker))
        job_id = put(sqlite, job())
        work_off(sqlite, job)
        logger.warning("after")
    finally:
        logger.removeHandler(handler)
    before, within, after = stream.getvalue().splitlines()
    assert (before, after) == ("before|-|-|-|-", "after|-|-|-|-")
    message, *about, worker = within.split("|")
    assert about == [str(job_id), "work", "1"]
    assert message == f"within {worker}"


class Full(io.TextIOBase):
    """A log that cannot be written to."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_fails_changes_no_outcome(db: Database, fails: bool) -> None:
    """Where every line raises, jobs are done, fail and die as ever (W3)."""
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(Full()),  # type: ignore[arg-type]  # all that is needed of a stream
    )

    def handler(job: Any, claim: Any) -> None:
        if fails:
            raise ValueError("no")

    job = job_class(handler, max_attempts=2)
    put(db, job())
    work_off(db, job)
    assert (db.row()["state"], db.row()["attempts"]) == (("dead", 2) if fails else ("done", 1))
    assert base_of(job).registry is not None


PRINTING = """
import sys
from brooq_sa import JobBase

class AppJob(JobBase): ...

def report():
    print("to whom it may concern", flush=True)
    print("and to nobody else" * 1_000, file=sys.stderr)
    sys.stdout.buffer.write(b"bytes, too")

class Plain(AppJob, topic="plain", max_attempts=1):
    def run(self, claim):
        report()

class Coroutine(AppJob, topic="coroutine", max_attempts=1):
    async def run(self, claim):
        report()

class Isolated(AppJob, topic="isolated", max_attempts=1, isolation="process"):
    def run(self, claim):
        report()
"""


def standard_streams(lost: str) -> tuple[str, int | None]:
    """What a shell makes of a command whose output is lost, and the descriptor that it gets for that."""
    if lost == "never there":
        return '"$@" >&- 2>&- <&-', None
    if lost == "full":
        return '"$@"', os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return '"$@"', writer


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("lost", ["full", "closed", "never there"])
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_what_handlers_print_changes_no_outcome(
    processes: Processes, sqlite: Database, lost: str, unbuffered: str
) -> None:
    """Handlers may print, though nobody reads it any more, and the worker stops in good order (W3)."""
    (processes.folder / "own_jobs.py").write_text(PRINTING, encoding="utf-8")
    for topic in ("plain", "coroutine", "isolated") * 2:
        put(sqlite, RawJob(topic, {}))
    shell, target = standard_streams(lost)
    command = ["sh", "-c", f"exec {shell}", "sh", sys.executable, "-m", "brooq_sa", "worker", "own_jobs:AppJob"]
    environment = os.environ | {"PYTHONPATH": str(processes.folder), "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        [*command, "--url", sqlite.url], stderr=target, stdout=target, env=environment, cwd=processes.folder
    ) as worker:
        if target is not None:
            os.close(target)
        try:
            wait_until(lambda: {*sqlite.states()} <= {"done", "dead"}, what="all jobs' ends", timeout=30)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    assert {row["last_error"] for row in sqlite.rows()} == {None}
    assert sqlite.states() == ["done"] * 6


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("lost", ["full", "closed"])
@pytest.mark.parametrize("form", ["json", "console"])
def test_a_worker_outlives_the_reader_of_its_log(processes: Processes, sqlite: Database, lost: str, form: str) -> None:
    """On a full disk, or when the reader of its pipe has gone, it runs its jobs, and stops in good order (W3)."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")
    for topic in ("noted", "failing", "noted"):
        put(sqlite, RawJob(topic, {}))
    if lost == "full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    command = [sys.executable, "-m", "brooq_sa", "worker", "own_jobs:AppJob", "--log-format", form, "--url", sqlite.url]
    environment = os.environ | {"PYTHONPATH": str(processes.folder)}
    with subprocess.Popen(command, stderr=target, stdout=target, env=environment, cwd=processes.folder) as worker:
        os.close(target)
        try:
            wait_until(lambda: sorted(sqlite.states()) == ["dead", "done", "done"], what="all jobs' ends", timeout=30)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
