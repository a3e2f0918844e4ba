"""A drain that takes longer than the lease."""

from __future__ import annotations

import threading
import time
from typing import Any

from apps.embedding import FAST, Heard, base_of, is_idle, job_class, put
from brooq_sa import Worker
from brooq_sa.events import JobDone, JobRequeued
from databases import Database
from waiting import wait_until


def test_leases_are_renewed_to_the_end_of_a_drain(db: Database) -> None:
    """A job that a stopping worker lets end keeps its lease till then, though another worker reaps (T6, T4, I2)."""
    runs: list[int] = []
    entered = threading.Event()

    def handler(job: Any, claim: Any) -> None:
        runs.append(claim.attempt)
        entered.set()
        # Not until it is told to stop: one that heard that its lease is gone might end before anybody reaps.
        time.sleep(2.5)

    job = job_class(handler)
    put(db, job())
    settings: dict[str, Any] = FAST | {"lease": "1s"}
    first, second = (Worker(db.engine, base_of(job), **settings) for _ in range(2))
    heard = Heard(second.events)
    first.events.subscribe(heard)
    with first:
        assert entered.wait(10)
        with second:
            first.stop(grace="30s")
            wait_until(lambda: is_idle(db), what="the job having ended")
    assert (runs, db.row()["attempts"], db.states()) == ([1], 1, ["done"])
    assert (len(heard.all(JobDone)), heard.all(JobRequeued)) == (1, [])
