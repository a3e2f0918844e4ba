"""Handlers that hold every connection of the application's pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from apps.embedding import Heard, base_of, job_class, put_many, working
from brooq_sa.events import JobClaimed, JobFailed, JobLeaseLost, JobRequeued
from databases import Database
from waiting import wait_until

LEASE = 1.0
COUNT = 8


@pytest.fixture
def small(pg: Database, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database whose application has two connections, for which handlers wait as long as the parameter says."""
    database = Database(pg.url)
    database.engine = create_engine(pg.url, pool_size=2, max_overflow=0, pool_timeout=request.param)
    yield database
    database.dispose()


@pytest.mark.parametrize("small", [60], indirect=True)
def test_handlers_queue_for_connections(pg: Database, small: Database) -> None:
    """Eight handlers share two connections, three leases each: eight executions, and nobody loses a lease (T4, I2)."""
    runs: list[Any] = []

    def handler(job: Any, claim: Any) -> None:
        claim.session.execute(text(f"SELECT pg_sleep({3 * LEASE})"))
        runs.append(claim.id)

    job = job_class(handler, max_attempts=1)
    ids = put_many(pg, [job() for _ in range(COUNT)])
    with working(small, base_of(job), workers=COUNT, lease=f"{LEASE}s") as worker:
        heard = Heard(worker.events)
        heard.wait_for(JobClaimed, COUNT)
        with working(pg, base_of(job)):  # which would take whatever lost its lease
            wait_until(lambda: set(pg.states()) == {"done"}, timeout=40, what="every job being done")
        assert worker.troubles == {}
    assert sorted(runs) == sorted(ids)
    assert (heard.all(JobLeaseLost), heard.all(JobRequeued), heard.all(JobFailed)) == ([], [], [])


@pytest.mark.parametrize("small", [0.2], indirect=True)
def test_handlers_that_wait_in_vain_have_not_failed(pg: Database, small: Database) -> None:
    """A handler that the pool keeps waiting too long runs again, at no cost to its job (I6)."""
    job = job_class(lambda job, claim: claim.session.execute(text("SELECT pg_sleep(0.5)")), max_attempts=1)
    put_many(pg, [job() for _ in range(COUNT)])
    with working(small, base_of(job), workers=COUNT, backoff_base="100ms", backoff_max="100ms") as worker:
        heard = Heard(worker.events)
        wait_until(lambda: set(pg.states()) == {"done"}, timeout=40, what="every job being done")
        assert worker.troubles == {}
    assert {row["attempts"] for row in pg.rows()} == {1}
    assert heard.all(JobFailed)
    assert all("QueuePool limit" in failed.error for failed in heard.all(JobFailed))
