"""The words for where a job stands and why an attempt was told to stop."""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple


class State(enum.StrEnum):
    """Where a job stands. `failed` waits for another attempt; it is not a verdict."""

    PENDING = "pending"
    PROCESSING = "processing"
    FAILED = "failed"
    DONE = "done"
    DEAD = "dead"
    CANCELED = "canceled"


READY = (State.PENDING, State.FAILED)
"""States that a claim takes from, once the job is due."""

ACTIVE = (State.PENDING, State.FAILED, State.PROCESSING)
"""States that a job leaves again."""

TERMINAL = (State.DONE, State.DEAD, State.CANCELED)
"""States that are never overwritten; retention deletes from these alone."""


class StopCause(enum.StrEnum):
    """Why an attempt was told to stop."""

    ATTEMPT_TIMEOUT = "attempt timed out"
    MAX_EXECUTION = "max execution exceeded"
    LEASE_LOST = "lease lost"
    CANCELED = "canceled"
    SHUTDOWN = "shutdown"


class Enqueued(NamedTuple):
    """What an enqueue did.

    Attributes:
        id: of the job that is now in the table, whoever put it there.
        created: whether this call put it there; False if one with the same topic and key was there already.
    """

    id: uuid.UUID
    created: bool


class CancelResult(enum.StrEnum):
    """What a cancel did."""

    CANCELED = "canceled"
    TOLD_TO_STOP = "told to stop"
    TOO_LATE = "too late"
    NOT_FOUND = "not found"


class RetryResult(enum.StrEnum):
    """What an operator's retry did."""

    RETRIED = "retried"
    NOT_NEEDED = "not needed"
    REFUSED = "refused"
    NOT_FOUND = "not found"
