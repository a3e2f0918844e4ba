"""Structured logs: one event name for each fact, with job id, topic, attempt and worker on each line.

In a process that has configured structlog, lines go where its configuration says. In any other they go to the stdlib
logger ``brooq_sa`` as ``event key=value``, so that a plain ``logging.basicConfig()`` shows them and an application that
configures nothing sees warnings alone.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import re
import sys
import uuid
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import Any, TextIO

import structlog
from structlog.contextvars import STRUCTLOG_KEY_PREFIX, get_contextvars

NAME = "brooq_sa"

_stdlib_logger = logging.getLogger(NAME)

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _escape_controls(_logger: Any, _method: str, event_dict: Any) -> Any:
    """Escape what could steer a terminal: the texts of errors are anybody's."""
    return {
        name: _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", value) if isinstance(value, str) else value
        for name, value in event_dict.items()
    }


_render = structlog.processors.LogfmtRenderer(key_order=["event"], drop_missing=True, bool_as_flag=False)


def _as_record(logger: Any, method: str, event_dict: Any) -> tuple[tuple[str], dict[str, Any]]:
    """The text of a record, and its attributes: those that formatters of the application's may name."""
    about = {name: event_dict[name] for name in ABOUT if name in event_dict}
    return (_render(logger, method, event_dict),), {"extra": about}


_embedded = structlog.wrap_logger(
    logging.getLogger(NAME),
    wrapper_class=structlog.stdlib.BoundLogger,
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        structlog.processors.format_exc_info,
        _escape_controls,
        _as_record,
    ],
)


class Logger:
    """Writes lines wherever the process wants them, and raises nothing: no reader of the log is worth a job."""

    def debug(self, event: str, **fields: Any) -> None:
        _write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        _write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        _write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        _write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        _write("error", event, {"exc_info": True, **fields})


def _write(level: str, event: str, fields: dict[str, Any]) -> None:
    logger = structlog.get_logger(NAME) if structlog.is_configured() else _embedded
    with suppress(Exception):  # a pipe that nobody reads, a disk that is full, a processor of the user's that fails
        getattr(logger, level)(event, **fields)


_logger = Logger()


def get_logger() -> Logger:
    """The logger of this package."""
    return _logger


_LEVELS = {
    "JobDead": "error",
    "HandlerHung": "error",
    "CrashSuspect": "error",
    "LateOutcomeRefused": "warning",
    "JobFailed": "warning",
    "JobLeaseLost": "warning",
    "JobClaimed": "debug",
}


_NUMBERS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log_event(event: Any) -> None:
    """Write an event of `brooq_sa.events` as a line: its name, and its fields.

    The text of an error is divided: its first line is `error`, the traceback and what else follows is `exception`,
    which renderers show as they show exceptions.
    """
    name, level, names = _shape(event.__class__)
    if not _is_shown(level):
        return
    fields = {field: _plain(getattr(event, field)) for field in names}
    if (error := fields.get("error")) and "\n" in error:
        fields["error"], _, fields["exception"] = error.partition("\n")
    _write(level, name, {"job_id": fields.pop("id"), **fields})


def is_logged(kind: type) -> bool:
    """Whether lines for events of that class may go anywhere."""
    return _is_shown(_shape(kind)[1])


@cache
def _shape(kind: Any) -> tuple[str, str, tuple[str, ...]]:
    """The name of an event's line, its level, and the names of its fields."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    names = tuple(field.name for field in dataclasses.fields(kind))
    return name, _LEVELS.get(kind.__name__, "info"), names


def _is_shown(level: str) -> bool:
    """Whether lines of the level may go anywhere; there are two of them for each job that succeeds."""
    is_by_stdlib = not structlog.is_configured() or structlog.get_config()["logger_factory"] is _own_factory
    return not is_by_stdlib or _stdlib_logger.isEnabledFor(_NUMBERS[level])


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return round(value.total_seconds(), 6)
        case uuid.UUID():
            return str(value)
        case _:
            return value


ABOUT = ("job_id", "topic", "attempt", "worker")
"""What every line about a job says, also one that its handler logs."""


_bound = {name: ContextVar[Any](STRUCTLOG_KEY_PREFIX + name) for name in ABOUT}
"""What `structlog.contextvars.merge_contextvars` finds by the prefix of their names.

Set one by one these cost a tenth of what its `bind_contextvars` costs, which counts in jobs that do little themselves.
"""
_job_id, _topic, _attempt, _worker = _bound.values()


def bind(job_id: uuid.UUID, topic: str, attempt: int, worker: str) -> None:
    """Let lines that are logged in this context from now on say whose they are, also a handler's own."""
    _job_id.set(str(job_id))
    _topic.set(topic)
    _attempt.set(attempt)
    _worker.set(worker)


class AttemptFilter(logging.Filter):
    """Gives each record of the stdlib's logging the attributes ``job_id``, ``topic``, ``attempt`` and ``worker``.

    They are those of the attempt that the record is about, or that runs where it was made, and "-" where there is none.
    Add it to a handler whose formatter names them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        context = get_contextvars()
        for name in ABOUT:
            if not hasattr(record, name):
                setattr(record, name, context.get(name, "-"))
        return True


def outlive_readers() -> None:
    """From now on printing fails in this process for no reader that has gone, and no disk that is full.

    For processes of our own: a handler that prints is to have the same outcome whoever listens. What cannot be written
    is dropped. A standard descriptor that is closed leads nowhere from now on; else the next socket would be in its
    place, and get what C code or a program that a handler starts prints.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, so this one
    sys.stdout, sys.stderr = _forgiving(sys.stdout, 1), _forgiving(sys.stderr, 2)


def _forgiving(stream: Any, descriptor: int) -> Any:
    if stream is None:  # it was closed when Python began
        lost: Any = _Forgiving(descriptor)
        return io.TextIOWrapper(lost, "utf-8", write_through=True)
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream.buffer, _Forgiving):
        return stream
    try:
        raw: Any = _Forgiving(stream.fileno())
        stream.flush()
    except (OSError, ValueError):  # closed, or no file but something of somebody's own
        return stream
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),  # as Python itself has it
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Forgiving(io.RawIOBase):
    """Writes to a descriptor, and drops what it does not take."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: Any) -> int:
        left = memoryview(text).cast("B")
        count = len(left)
        with suppress(OSError):
            while left:
                left = left[os.write(self._descriptor, left) :]
        return count


_own_factory = structlog.stdlib.LoggerFactory()
_configured: tuple[str, str] | None = None


def configured() -> tuple[str, str] | None:
    """The format and level that `configure` was called with in this process, if it was."""
    return _configured


def configure(*, format: str | None = None, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog and the stdlib's root logger for a worker that is a process of its own.

    Args:
        format: "console" or "json"; by default the first on a terminal, the second elsewhere.
        level: the lowest level shown: debug, info, warning or error.
        stream: where to; standard error by default.
    """
    global _configured  # noqa: PLW0603 - a process has one log, and its children are to write like it
    stream = stream or sys.stderr
    is_terminal = stream is not None and stream.isatty()
    as_console = format == "console" or (format is None and is_terminal)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = (
        structlog.dev.ConsoleRenderer(colors=is_terminal, exception_formatter=structlog.dev.plain_traceback)
        if as_console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=_own_factory,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _escape_controls,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    _configured = ("console" if as_console else "json", level)
