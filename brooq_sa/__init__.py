"""Your jobs commit with your data: a job queue in the database that SQLAlchemy already talks to."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import sqlite as sqlite
    from .asyncio import AsyncEnqueueMixin as AsyncEnqueueMixin
    from .asyncio import AsyncSession as AsyncSession
    from .claims import AsyncClaim, Claim
    from .consumer import consume
    from .exc import (
        AccessError,
        BrooqError,
        CancelJob,
        DeclarationError,
        EnqueueError,
        JobNotFound,
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
    from .session import EnqueueMixin, Session, cancel, enqueue, enqueue_many, pause, resume, retry
    from .settings import WorkerSettings
    from .standing import Reason, Why, why
    from .states import CancelResult, Enqueued, RetryResult, State, StopCause
    from .waiting import Fate, wait_for
    from .worker import Worker

__version__ = "0.1.0"

# Without the sessions of `brooq_sa.asyncio`, which need greenlet: `import *` imports every name here.
__all__ = [
    "AccessError",
    "AsyncClaim",
    "BrooqError",
    "CancelJob",
    "CancelResult",
    "Claim",
    "DeclarationError",
    "EnqueueError",
    "EnqueueMixin",
    "Enqueued",
    "Fate",
    "JobBase",
    "JobNotFound",
    "Kind",
    "LeaseLost",
    "NewJob",
    "OptionError",
    "PayloadError",
    "PreserveAttempt",
    "RawJob",
    "Reason",
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
    "Why",
    "Worker",
    "WorkerSettings",
    "cancel",
    "consume",
    "enqueue",
    "enqueue_many",
    "pause",
    "resume",
    "retry",
    "wait_for",
    "why",
]

# Everything is imported when it is first asked for: a process that only enqueues does not need the worker, nor
# `brooq-sa --help` SQLAlchemy.
_HOMES = {
    "asyncio": ("AsyncEnqueueMixin", "AsyncSession"),
    "claims": ("AsyncClaim", "Claim"),
    "consumer": ("consume",),
    "exc": (
        "AccessError",
        "BrooqError",
        "CancelJob",
        "DeclarationError",
        "EnqueueError",
        "JobNotFound",
        "LeaseLost",
        "OptionError",
        "PayloadError",
        "PreserveAttempt",
        "RetryAfter",
        "SchemaError",
        "SettingsError",
        "Signal",
        "SqliteSetupError",
        "SqliteSetupWarning",
        "UsageError",
    ),
    "jobs": ("JobBase", "NewJob", "RawJob"),
    "kinds": ("Kind",),
    "session": ("EnqueueMixin", "Session", "cancel", "enqueue", "enqueue_many", "pause", "resume", "retry"),
    "settings": ("WorkerSettings",),
    "standing": ("Reason", "Why", "why"),
    "states": ("CancelResult", "Enqueued", "RetryResult", "State", "StopCause"),
    "waiting": ("Fate", "wait_for"),
    "worker": ("Worker",),
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {"migrations", "sqlite"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
