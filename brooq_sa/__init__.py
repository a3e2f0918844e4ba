"""Your jobs commit with your data: a job queue in the database that SQLAlchemy already talks to."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .exc import (
    BrooqError,
    CancelJob,
    DeclarationError,
    EnqueueError,
    LeaseLost,
    OptionError,
    PayloadError,
    PreserveAttempt,
    RetryAfter,
    SchemaError,
    SettingsError,
    Signal,
    SqliteSetupError,
    SqliteSetupWarning,
    UsageError,
)
from .jobs import JobBase, NewJob, RawJob
from .kinds import Kind
from .session import EnqueueMixin, Session, cancel, enqueue, enqueue_many, retry
from .states import CancelResult, Enqueued, RetryResult, State, StopCause

if TYPE_CHECKING:
    from .asyncio import AsyncEnqueueMixin, AsyncSession
    from .claims import AsyncClaim, Claim
    from .consume import consume
    from .settings import WorkerSettings
    from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncClaim",
    "AsyncEnqueueMixin",
    "AsyncSession",
    "BrooqError",
    "CancelJob",
    "CancelResult",
    "Claim",
    "DeclarationError",
    "EnqueueError",
    "EnqueueMixin",
    "Enqueued",
    "JobBase",
    "Kind",
    "LeaseLost",
    "NewJob",
    "OptionError",
    "PayloadError",
    "PreserveAttempt",
    "RawJob",
    "RetryAfter",
    "RetryResult",
    "SchemaError",
    "Session",
    "SettingsError",
    "Signal",
    "SqliteSetupError",
    "SqliteSetupWarning",
    "State",
    "StopCause",
    "UsageError",
    "Worker",
    "WorkerSettings",
    "cancel",
    "consume",
    "enqueue",
    "enqueue_many",
    "retry",
]

# What a process that only enqueues does not need is imported when it is first asked for.
_LAZY = {
    "AsyncClaim": "claims",
    "AsyncEnqueueMixin": "asyncio",
    "AsyncSession": "asyncio",
    "Claim": "claims",
    "Worker": "worker",
    "WorkerSettings": "settings",
    "consume": "consume",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
