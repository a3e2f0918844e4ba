"""Whether a SQLite file, and the engine on it, are set up for jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from .. import sqlite
from .finding import Finding, fault, note, warning
from .look import Look

LEAST_BUSY_TIMEOUT = 1_000
"""Milliseconds."""


LOCK_PATIENCE = 1.0
"""Seconds within which the file's write lock is to be had; a worker holds it for milliseconds."""


def locks(look: Look) -> Iterator[Finding]:
    """Whether somebody keeps all others from writing."""
    file = look.value("SELECT file FROM pragma_database_list WHERE name = 'main'")
    if not file or look.connection.get_execution_options().get(sqlite.BEGIN_OPTION) != "DEFERRED":
        return  # in memory; or this very transaction has the lock
    with closing(sqlite3.connect(f"{Path(file).as_uri()}?mode=rw", LOCK_PATIENCE, uri=True)) as probe:
        probe.isolation_level = None
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                yield note(f"This could not be seen: {error}.", "Who may not write runs no jobs.", error=str(error))
                return
            yield fault(
                f"Somebody has held the file's lock to write for {LOCK_PATIENCE:g} s and more.",
                "Nobody else can write meanwhile: no job is enqueued, taken or ended.",
                f"Find the process (fuser {file}) and end its transaction.",
                file=file,
            )


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
