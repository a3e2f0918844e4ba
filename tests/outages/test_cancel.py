"""A cancel at every moment of a job's life: what it answers is what has happened, and nothing is left in between."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Uuid

from apps.embedding import base_of, is_idle, job_class, put, working
from brooq_sa import CancelResult, JobBase, cancel
from databases import Database
from waiting import wait_until

WRITTEN = Table("written", MetaData(), Column("job", Uuid), Column("attempt", Integer))

LEASE = 1.5
HEARTBEAT = LEASE / 3
SEVERAL = [pytest.param(60, id="60 rounds"), pytest.param(500, id="500 rounds", marks=pytest.mark.slow)]


@dataclass
class Story:
    """What one round saw, by the monotonic clock."""

    job_id: uuid.UUID
    answer: CancelResult
    canceled_at: float
    starts: list[float] = field(default_factory=list)


class Rounds:
    """Runs a job a round, and cancels it at a random moment."""

    def __init__(self, db: Database, seconds: float, *, fails: bool = False, wake: bool = True) -> None:
        self._db = db
        self._seconds = seconds
        self._fails = fails
        self._wake = wake
        self._starts: dict[uuid.UUID, list[float]] = {}
        self._lock = threading.Lock()
        WRITTEN.metadata.create_all(db.engine)

    def _handle(self, job: Any, claim: Any) -> None:
        with self._lock:
            self._starts.setdefault(claim.id, []).append(time.monotonic())
        if claim.should_stop.wait(self._seconds):
            raise RuntimeError(f"stopped: {claim.cause}")
        if self._fails:
            raise RuntimeError("it fails")
        claim.session.execute(WRITTEN.insert().values(job=claim.id, attempt=claim.attempt))

    def run(self, rounds: int, latest: float) -> list[Story]:
        """Cancel each job up to `latest` seconds after it was enqueued, and wait until nothing waits or runs."""
        job = job_class(self._handle, max_attempts=3)
        base = base_of(job)
        chance = random.Random(11)  # the moments are the same in every run
        options = {"lease": f"{LEASE}s", "backoff_base": "40ms", "backoff_max": "40ms", "wake": self._wake}
        stories = []
        with working(self._db, base, workers=8, **options):
            for _ in range(rounds):
                job_id = put(self._db, job())
                time.sleep(chance.uniform(0, latest))
                stories.append(self._cancel(base, job_id))
            wait_until(lambda: is_idle(self._db), what="every job having ended")
        for story in stories:
            story.starts = self._starts.get(story.job_id, [])
        return stories

    def _cancel(self, base: type[JobBase], job_id: uuid.UUID) -> Story:
        with self._db.engine.begin() as connection:
            answer = cancel(connection, base, job_id)
        return Story(job_id, answer, time.monotonic())


@pytest.mark.parametrize("rounds", SEVERAL)
@pytest.mark.parametrize("wake", [True, False], ids=["woken", "polling"])
def test_around_start_and_end(pg: Database, rounds: int, wake: bool) -> None:
    """Whenever a cancel comes, its answer holds: no effect after "canceled", one after "too late" (T5, I3)."""
    stories = Rounds(pg, 0.02, wake=wake).run(rounds, latest=0.06)
    written = Counter(row["job"] for row in pg.execute("SELECT job FROM written"))
    for story in stories:
        state = pg.row(story.job_id)["state"]
        match story.answer:
            case CancelResult.CANCELED:
                assert (state, story.starts, written[story.job_id]) == ("canceled", [], 0)
            case CancelResult.TOLD_TO_STOP:
                assert (state, written[story.job_id]) == ("canceled", 0)
                assert all(start < story.canceled_at + HEARTBEAT for start in story.starts)
            case CancelResult.TOO_LATE:
                assert (state, len(story.starts), written[story.job_id]) == ("done", 1, 1)
            case other:
                pytest.fail(f"a cancel answered {other}")
    assert {CancelResult.TOLD_TO_STOP, CancelResult.TOO_LATE} <= {story.answer for story in stories}


@pytest.mark.parametrize("rounds", SEVERAL)
def test_around_failures(pg: Database, rounds: int) -> None:
    """A cancel before, in or between attempts that fail leaves the job canceled, or dead if too late (T5, I7)."""
    stories = Rounds(pg, 0.01, fails=True).run(rounds, latest=0.15)
    for story in stories:
        row = pg.row(story.job_id)
        assert row["locked_by"] is None
        assert len(story.starts) <= row["attempts"] <= 3
        match story.answer:
            case CancelResult.CANCELED | CancelResult.TOLD_TO_STOP:
                assert row["state"] == "canceled"
                assert all(start < story.canceled_at + HEARTBEAT for start in story.starts)
            case CancelResult.TOO_LATE:
                assert (row["state"], row["attempts"]) == ("dead", 3)
            case other:
                pytest.fail(f"a cancel answered {other}")
    assert {CancelResult.CANCELED, CancelResult.TOO_LATE} <= {story.answer for story in stories}
