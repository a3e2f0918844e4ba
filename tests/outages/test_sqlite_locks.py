"""One SQLite file, many who write: nobody sees "database is locked"."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from apps.embedding import base_of, job_class, working
from brooq_sa import enqueue
from databases import Database
from waiting import wait_until

HOLD = 3.0
"""Seconds for which somebody holds the write lock: nobody can claim, settle or renew meanwhile."""


@pytest.mark.parametrize("seconds", [9, pytest.param(60, marks=pytest.mark.slow)])
def test_lock_upgrades(sqlite: Database, seconds: float) -> None:
    """Readers that turn into writers, workers and a long writer share a file; each job runs once (S2, I2)."""
    over = threading.Event()
    errors: list[BaseException] = []
    runs: Counter[Any] = Counter()
    job = job_class(lambda job, claim: runs.update([claim.id]))

    def produce() -> None:
        while not over.is_set():
            with Session(sqlite.engine) as session, session.begin():
                session.execute(text("SELECT count(*) FROM job")).scalar()
                over.wait(0.3)
                enqueue(session, job())

    def hold() -> None:
        with closing(sqlite3.connect(sqlite.engine.url.database or "", isolation_level=None, timeout=60)) as writer:
            while not over.wait(random.Random(3).uniform(1, 2)):
                writer.execute("BEGIN IMMEDIATE")
                time.sleep(HOLD)
                writer.execute("COMMIT")

    def noting(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        return run

    threads = [threading.Thread(target=noting(work)) for work in (*[produce] * 4, hold)]
    options = {"lease": "6s", "workers": 2}
    with working(sqlite, base_of(job), **options) as first, working(sqlite, base_of(job), **options) as second:
        for thread in threads:
            thread.start()
        over.wait(seconds)
        over.set()
        for thread in threads:
            thread.join()
        wait_until(lambda: set(sqlite.states()) == {"done"}, timeout=30, what="every job being done")
        assert (first.troubles, second.troubles) == ({}, {})
    assert errors == []
    assert len(runs) == len(sqlite.rows()) > 8
    assert set(runs.values()) == {1}
