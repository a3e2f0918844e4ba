"""Structured logs: one line a fact, in whatever the process logs with."""

from __future__ import annotations

import io
import json
import logging
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from brooq_sa import log
from brooq_sa.events import (
    Event,
    JobCanceled,
    JobClaimed,
    JobDead,
    JobDone,
    JobFailed,
    JobLeaseLost,
    JobRequeued,
)
from databases import Database
from processes import Processes

JOB = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
ABOUT = (JOB, "email.send", 2, "mill-1")
SECOND = timedelta(seconds=1)

EVENTS: list[tuple[Event, str, str, dict[str, Any]]] = [
    (JobClaimed(*ABOUT, SECOND / 2), "debug", "job_claimed", {"waited": 0.5}),
    (JobDone(*ABOUT, SECOND), "info", "job_done", {"duration": 1.0}),
    (JobFailed(*ABOUT, SECOND, SECOND * 2, "E: no"), "warning", "job_failed", {"delay": 2.0, "error": "E: no"}),
    (JobDead(*ABOUT, SECOND, "E: no"), "error", "job_dead", {"error": "E: no"}),
    (JobCanceled(*ABOUT, SECOND, "no use"), "info", "job_canceled", {"reason": "no use"}),
    (JobRequeued(*ABOUT, reaped=True), "info", "job_requeued", {"reaped": True}),
    (JobLeaseLost(*ABOUT, "canceled"), "warning", "job_lease_lost", {"cause": "canceled"}),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Logging and structlog are as they were after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("event, level, name, fields", EVENTS, ids=[name for _, _, name, _ in EVENTS])
class TestEachEvent:
    @pytest.mark.usefixtures("as_it_was")
    def test_as_json(self, event: Event, level: str, name: str, fields: dict[str, Any]) -> None:
        """A line has the fact's name, job, topic, attempt, worker, and what else the fact says (W3)."""
        stream = io.StringIO()
        log.configure(format="json", level="debug", stream=stream)
        log.log_event(event)
        [line] = lines_of(stream)
        assert line["timestamp"].endswith("Z")
        wanted = {"event": name, "level": level, "job_id": str(JOB), "topic": "email.send", "attempt": 2}
        assert line.items() >= (wanted | fields | {"worker": "mill-1"}).items()

    def test_in_a_process_of_somebody_else(
        self, event: Event, level: str, name: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without a configuration the same goes to the stdlib logger ``brooq_sa``, at its level (W3)."""
        with caplog.at_level("DEBUG", logger="brooq_sa"):
            log.log_event(event)
        [record] = caplog.records
        assert (record.name, record.levelname) == ("brooq_sa", level.upper())
        message = record.getMessage()
        assert message.startswith(f"event={name} job_id={JOB} topic=email.send attempt=2 worker=mill-1")
        assert "\n" not in message


@pytest.mark.usefixtures("as_it_was")
class TestConfigure:
    @pytest.mark.parametrize(
        "stream, format, is_json",
        [(io.StringIO, None, True), (Terminal, None, False), (Terminal, "json", True), (io.StringIO, "console", False)],
    )
    def test_the_format(self, stream: type[io.StringIO], format: str | None, is_json: bool) -> None:
        """By default people read on a terminal and programs elsewhere; `format` decides otherwise (W3)."""
        to = stream()
        log.configure(format=format, stream=to)
        log.log_event(EVENTS[1][0])
        assert to.getvalue().startswith("{") is is_json
        assert "job_done" in to.getvalue()

    def test_the_level(self) -> None:
        """Lines below the level are left out."""
        stream = io.StringIO()
        log.configure(format="json", level="warning", stream=stream)
        for event, *_ in EVENTS:
            log.log_event(event)
        assert [line["event"] for line in lines_of(stream)] == ["job_failed", "job_dead", "job_lease_lost"]

    def test_others_come_out_alike(self) -> None:
        """What handlers and libraries log by the stdlib has the same form and place."""
        stream = io.StringIO()
        log.configure(format="json", stream=stream)
        logging.getLogger("app.mail").warning("sent %d", 3)
        [line] = lines_of(stream)
        assert (line["event"], line["level"]) == ("sent 3", "warning")

    def test_errors_keep_their_stack(self) -> None:
        """An exception is told in its line, whose form it does not break."""
        stream = io.StringIO()
        log.configure(format="json", stream=stream)
        try:
            raise ValueError("no\nsuch\tthing")
        except ValueError:
            log.get_logger().exception("part_failed")
        [line] = lines_of(stream)
        assert "ValueError: no\nsuch\tthing" in line["exception"]

    @pytest.mark.parametrize("format", ["console", "json"])
    def test_a_terminal_is_not_steered(self, format: str) -> None:
        """Control characters in the text of an error do not reach a terminal as such."""
        stream = Terminal()
        log.configure(format=format, stream=stream)
        text = "E: \x1b[2J\x1b]0;owned\x07 \x9b31m \r back"
        log.log_event(JobDead(*ABOUT, SECOND, text))
        try:
            raise ValueError(text)
        except ValueError:
            log.get_logger().exception("part_failed")
        for bad in ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\r"):
            assert bad not in stream.getvalue()
        assert stream.getvalue().count("owned") >= 2

    def test_bound_values_are_there(self) -> None:
        """What an application binds to its context is in our lines as well."""
        stream = io.StringIO()
        log.configure(format="json", stream=stream)
        with structlog.contextvars.bound_contextvars(request="r-1"):
            log.log_event(EVENTS[1][0])
        assert lines_of(stream)[0]["request"] == "r-1"


@pytest.mark.usefixtures("as_it_was")
def test_an_application_that_has_configured_structlog() -> None:
    """Our lines go where its own go, in its own form."""
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.ReturnLoggerFactory()
    )
    with structlog.testing.capture_logs() as captured:
        log.log_event(EVENTS[1][0])
    [line] = captured
    assert (line["event"], line["job_id"], line["log_level"]) == ("job_done", str(JOB), "info")


def test_an_application_that_configures_nothing(processes: Processes, sqlite: Database) -> None:
    """It sees what has gone wrong, and nothing else (W3)."""
    child = processes.script(
        f"""
        import brooq_sa
        from brooq_sa import JobBase, Worker, enqueue
        from sqlalchemy import create_engine

        class Jobs(JobBase):
            pass

        class Job(Jobs, topic="work", max_attempts=1):
            fails: bool

            def run(self, claim):
                if self.fails:
                    raise ValueError("no \\x1b[2J")
                done.append(1)

        import threading
        done, dead = [], threading.Event()
        engine = brooq_sa.sqlite.configure(create_engine({sqlite.url!r}))
        with engine.begin() as connection:
            enqueue(connection, Job(fails=False))
            enqueue(connection, Job(fails=True))
        worker = Worker(engine, Jobs, poll_interval="20ms")
        worker.events.subscribe(lambda event: dead.set() if type(event).__name__ == "JobDead" else None)
        with worker:
            assert dead.wait(20)
        """
    )
    assert child.wait() == 0
    lines = [line for line in child.output().splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("event=job_dead ")
    assert "\x1b" not in lines[0]


def test_no_password_in_any_line(processes: Processes, pg: Database) -> None:
    """A worker that cannot connect, or fails in SQL, tells why without the password of its URL (W3)."""
    child = processes.script(
        f"""
        import time
        from brooq_sa import JobBase, Worker, log
        from sqlalchemy import create_engine, make_url

        log.configure(level="debug")

        class Jobs(JobBase, table_name="missing"):
            pass

        class Job(Jobs, topic="work"):
            def run(self, claim): ...

        url = make_url({pg.url!r}).set(password="hunter2")
        for each in (url, url.set(database="none"), url.set(port=1), url.set(username="nobody")):
            with Worker(create_engine(each), Jobs, poll_interval="20ms") as worker:
                while "claiming" not in worker.troubles:
                    time.sleep(0.01)
            print("troubled", worker.troubles["claiming"])
        """
    )
    assert child.wait(60) == 0
    assert child.output().count("troubled") == 4
    assert "hunter2" not in child.output()
