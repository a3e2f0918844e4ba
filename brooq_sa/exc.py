"""Every error and signal of brooq-sa.

::

    BrooqError
    ├── DeclarationError    a job class, a base or a handler is declared wrongly
    ├── OptionError         an option's value breaks its rule
    ├── SettingsError       settings that break their rules, all of them at once
    ├── PayloadError        a value that JSON or a database cannot carry, or a payload that cannot be read
    ├── EnqueueError        an enqueue that could not be decided
    ├── SchemaError         the table is missing, or not the one this version needs
    ├── AccessError         the database role lacks a privilege on the table
    ├── SqliteSetupError    a SQLite engine whose savepoints would not hold
    ├── UsageError          a worker, consumer or claim used in a way that has no meaning
    ├── JobNotFound         there is no job of that id
    ├── LeaseLost           the claim no longer holds its job
    └── Signal              raised by handlers to choose an outcome
        ├── RetryAfter
        ├── PreserveAttempt
        └── CancelJob
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta


class BrooqError(Exception):
    """The base of every error that brooq-sa raises itself."""


class DeclarationError(BrooqError, TypeError):
    """A job class, a base or a handler is declared wrongly."""


class OptionError(BrooqError, ValueError):
    """An option's value breaks its rule."""


class SettingsError(BrooqError, ValueError):
    """Settings that break their rules.

    Attributes:
        problems: one sentence for each setting at fault, all of them.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class PayloadError(BrooqError, ValueError):
    """A value that cannot be carried, or a stored payload that cannot be read.

    Attributes:
        topic: the job's topic.
        path: where in the payload, such as ``$.lines[2].price``; ``$`` is the whole.
        rule: what the value at that path breaks.
    """

    def __init__(self, topic: str, path: str, rule: str) -> None:
        self.topic = topic
        self.path = path
        self.rule = rule
        super().__init__(f"Payload of topic {topic!r}: {rule} - at `{path}`")

    def __reduce__(self) -> tuple[type[PayloadError], tuple[str, str, str]]:
        return type(self), (self.topic, self.path, self.rule)


class EnqueueError(BrooqError):
    """An enqueue that could not be decided."""


class SchemaError(BrooqError):
    """The table is missing, or is not the one this version needs."""


class AccessError(BrooqError):
    """The database role lacks a privilege on the table, or its updates are kept out.

    Attributes:
        grants: the statements that give it what it needs; empty where it lacks none.
    """

    def __init__(self, message: str, grants: Sequence[str]) -> None:
        super().__init__(message)
        self.grants = tuple(grants)

    def __reduce__(self) -> tuple[type[AccessError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.grants)


class SqliteSetupError(BrooqError):
    """A SQLite engine whose transactions would not keep what an enqueue promises."""


class SqliteSetupWarning(UserWarning):
    """A SQLite engine that was not set up by `brooq_sa.sqlite.configure`."""


class UsageError(BrooqError):
    """A worker, consumer or claim used in a way that has no meaning."""


class JobNotFound(BrooqError, LookupError):
    """There is no job of that id.

    Attributes:
        id: that was looked for.
        last_state: in which it was last seen, if it was there before.
    """

    def __init__(self, job_id: uuid.UUID, last_state: str | None = None) -> None:
        self.id = job_id
        self.last_state = last_state
        super().__init__(
            f"There is no job {job_id}. The transaction that enqueued it has not committed, or it has been deleted."
            if last_state is None
            else f"Job {job_id} has been deleted; it was {last_state} when it was last seen."
        )

    def __reduce__(self) -> tuple[type[JobNotFound], tuple[uuid.UUID, str | None]]:
        return type(self), (self.id, self.last_state)


class LeaseLost(BrooqError):
    """The claim no longer holds its job; nothing that it did is recorded."""


class Signal(BrooqError):
    """Raised by a handler, or the ``__cause__`` of what it raises, to choose the attempt's outcome."""


class RetryAfter(Signal):
    """Try again after a delay of the handler's choosing.

    The attempt stays charged, so on the last one the job is dead all the same.

    Args:
        delay: a timedelta or a string with a unit (``"30s"``); clamped to the kind's ``backoff_max``.
        reason: kept in ``last_error``.
    """

    def __init__(self, delay: timedelta | str, reason: str = "") -> None:
        from .durations import parse_duration

        self.delay = parse_duration(delay)
        self.reason = reason
        super().__init__(reason or f"retry after {self.delay}")

    def __reduce__(self) -> tuple[type[RetryAfter], tuple[timedelta, str]]:
        return type(self), (self.delay, self.reason)


class PreserveAttempt(Signal):
    """Try again with the usual backoff, and give the attempt back.

    For failures that are not the job's own, such as a dependency that is down. The job cannot die of it.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the attempt was given back")

    def __reduce__(self) -> tuple[type[PreserveAttempt], tuple[str]]:
        return type(self), (self.reason,)


class CancelJob(Signal):
    """The job has lost its point: cancel it, whatever attempts remain."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "canceled by its handler")

    def __reduce__(self) -> tuple[type[CancelJob], tuple[str]]:
        return type(self), (self.reason,)
