"""Whether a SQLite file, and the engine on it, are set up for jobs."""

from __future__ import annotations

from collections.abc import Iterator

from .. import sqlite
from .finding import Finding, fault, warning
from .look import Look

LEAST_BUSY_TIMEOUT = 1_000
"""Milliseconds."""


def journal(look: Look) -> Iterator[Finding]:
    """Whether readers and the writer wait for each other."""
    mode = str(look.value("PRAGMA journal_mode"))
    if mode != "wal":
        yield warning(
            f"The file's journal mode is {mode}, not wal.",
            "Whoever reads keeps workers from writing, and the other way round.",
            "brooq_sa.sqlite.configure(engine) sets it, and so does a worker; or PRAGMA journal_mode = WAL. It needs a"
            " file system of this host.",
            journal_mode=mode,
        )


def setup(look: Look) -> Iterator[Finding]:
    """Whether this engine begins transactions as jobs need them, and waits for locks."""
    cure = "Call brooq_sa.sqlite.configure(engine) once, before the engine connects."
    if not sqlite.is_configured(look.connection.engine):
        yield fault(
            "The engine is not set up for jobs.",
            "A savepoint may commit by itself, and a job outlive your rollback.",
            cure,
        )
    timeout = int(look.value("PRAGMA busy_timeout"))
    if timeout < LEAST_BUSY_TIMEOUT:
        yield warning(
            f"The engine waits {timeout} ms for a lock.",
            'While somebody else writes, "database is locked" comes at once.',
            cure,
            busy_timeout=timeout,
        )
