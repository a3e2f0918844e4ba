"""The table changes under running workers and producers, which know explicit columns alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from apps.embedding import FAST, Heard, base_of, job_class
from brooq_sa import Worker, enqueue
from brooq_sa.events import JobDone
from databases import Database
from waiting import wait_until

OFTEN = 15
"""More claims than after which psycopg prepares a statement on the server, and that plans it for good."""


@pytest.fixture
def own(make_pg_database: Callable[..., str], pg_template: str) -> Iterator[Database]:
    """A migrated database whose table may be changed."""
    database = Database(make_pg_database(pg_template))
    yield database
    database.dispose()


class Producer:
    """Enqueues one job after the other in a session, until it is stopped; what it met on the way is kept."""

    def __init__(self, db: Database, job: type[Any]) -> None:
        self._db = db
        self._job = job
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.count = 0
        self.errors: list[Exception] = []

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _produce(self) -> None:
        while not self._is_over.wait(0.01):
            try:
                with Session(self._db.engine) as session, session.begin():
                    enqueue(session, self._job(), key=str(self.count))
            except Exception as error:
                self.errors.append(error)
            else:
                self.count += 1


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE job ADD COLUMN note text",
        "ALTER TABLE job ADD COLUMN note text NOT NULL DEFAULT 'none'",
        "ALTER TABLE job ALTER COLUMN attempts TYPE bigint",
        "ALTER TABLE job ALTER COLUMN priority TYPE integer",
    ],
)
def test_a_change_under_a_running_worker(own: Database, change: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is added or widened, workers and producers go on without a restart, with one error at the most (R4)."""
    job = job_class(lambda job, claim: None)
    caplog.set_level(logging.INFO, "brooq_sa")
    worker = Worker(own.engine, base_of(job), **FAST)
    heard = Heard(worker.events)
    with worker, Producer(own, job) as producer:
        heard.wait_for(JobDone, OFTEN)
        own.execute(change)
        before = len(heard.all(JobDone))
        heard.wait_for(JobDone, before + OFTEN)
    with Worker(own.engine, base_of(job), **FAST):
        wait_until(lambda: set(own.states()) == {"done"}, what="every job being done")
    assert producer.errors == []
    assert len(own.states()) == producer.count
    assert {row["attempts"] for row in own.execute("SELECT attempts FROM job")} == {1}
    failures = [record.getMessage().split()[0] for record in caplog.records if "_failed" in record.getMessage()]
    assert all(failures.count(each) == 1 for each in failures), failures
