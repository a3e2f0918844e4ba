"""Jobs that nobody here knows how to run are named in the log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brooq_sa import JobBase, NewJob, RawJob, enqueue_many
from brooq_sa.engines import Reserved
from brooq_sa.store import JobStore
from brooq_sa.upkeep import UnknownTopics
from databases import JOB, Database


class Known(JobBase): ...


class Handled(Known, topic="handled"):
    def run(self, claim: object) -> None: ...


class Unhandled(Known, topic="unhandled"): ...


@pytest.fixture
def unknown(db: Database) -> Iterator[UnknownTopics]:
    reserved = Reserved(db.engine)
    yield UnknownTopics(JobStore(JOB), reserved, Known.registry, worker="w")
    reserved.close()


def test_unknown_topics_are_named_once(db: Database, unknown: UnknownTopics) -> None:
    """Topics without a class or a handler are named, each once while it waits, and their jobs left as they are."""
    assert unknown.run() == 0
    with db.engine.begin() as connection:
        enqueue_many(connection, [Handled(), Unhandled(), RawJob("a", 1), NewJob(RawJob("a", 2), delay="1h")])
        enqueue_many(connection, [RawJob("z.z", 1)], priority=-5)
    before = db.rows()
    assert unknown.run() == 3
    assert unknown.run() == 0
    assert db.rows() == before
    db.execute("UPDATE job SET state = 'canceled' WHERE topic = 'a'")
    assert unknown.run() == 0
    db.execute("UPDATE job SET state = 'pending' WHERE topic = 'a'")
    assert unknown.run() == 1


def test_the_log_names_them(db: Database, unknown: UnknownTopics, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the topics and the worker (W3)."""
    with db.engine.begin() as connection:
        enqueue_many(connection, [RawJob("nobody.knows", 1)])
    unknown.run()
    assert "unknown_topics" in caplog.text
    assert "nobody.knows" in caplog.text
