"""Structured logs: one event name for each fact, with job id, topic, attempt and worker on each line.

In a process that has configured structlog, lines go where its configuration says. In any other they go to the stdlib
logger ``brooq_sa`` as ``event key=value``, so that a plain ``logging.basicConfig()`` shows them and an application that
configures nothing sees warnings alone.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
import uuid
from datetime import timedelta
from functools import cache
from typing import Any, TextIO

import structlog

NAME = "brooq_sa"

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _escape_controls(_logger: Any, _method: str, event_dict: Any) -> Any:
    """Escape what could steer a terminal: the texts of errors are anybody's."""
    return {
        name: _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", value) if isinstance(value, str) else value
        for name, value in event_dict.items()
    }


_embedded = structlog.wrap_logger(
    logging.getLogger(NAME),
    wrapper_class=structlog.stdlib.BoundLogger,
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.contextvars.merge_contextvars,
        structlog.processors.format_exc_info,
        _escape_controls,
        structlog.processors.LogfmtRenderer(key_order=["event"], drop_missing=True, bool_as_flag=False),
    ],
)


def get_logger() -> Any:
    """The logger of this package, wherever the process wants its lines."""
    return structlog.get_logger(NAME) if structlog.is_configured() else _embedded


_LEVELS = {
    "JobDead": "error",
    "HandlerHung": "error",
    "LateOutcomeRefused": "warning",
    "JobFailed": "warning",
    "JobLeaseLost": "warning",
    "JobClaimed": "debug",
}


def log_event(event: Any) -> None:
    """Write an event of `brooq_sa.events` as a line: its name, and its fields."""
    name = type(event).__name__
    fields = {field.name: _plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
    job_id = fields.pop("id")
    getattr(get_logger(), _LEVELS.get(name, "info"))(_snake(name), job_id=job_id, **fields)


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return round(value.total_seconds(), 6)
        case uuid.UUID():
            return str(value)
        case _:
            return value


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def configure(*, format: str | None = None, level: str = "info", stream: TextIO | None = None) -> None:
    """Configure structlog and the stdlib's root logger for a worker that is a process of its own.

    Args:
        format: "console" or "json"; by default the first on a terminal, the second elsewhere.
        level: the lowest level shown: debug, info, warning or error.
        stream: where to; standard error by default.
    """
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
        logger_factory=structlog.stdlib.LoggerFactory(),
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
