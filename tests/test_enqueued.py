"""Telling of jobs that were enqueued, once that is so for good."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from brooq_sa import enqueued
from brooq_sa.events import JobEnqueued, enqueues
from databases import Database


@pytest.fixture
def heard() -> Iterator[list[JobEnqueued]]:
    """The facts that were published during the test."""
    facts: list[JobEnqueued] = []
    unsubscribe = enqueues.subscribe(facts.append)
    yield facts
    unsubscribe()


def fact(topic: str = "work") -> JobEnqueued:
    return JobEnqueued(uuid.uuid4(), topic)


def test_it_is_told_at_the_commit(db: Database, heard: list[JobEnqueued]) -> None:
    """Nothing is told before the commit, and everything once, in order, at it."""
    first, second, third = fact(), fact(), fact()
    with db.engine.connect() as connection:
        with connection.begin():
            enqueued.tell(connection, [first, second])
            assert heard == []
        assert heard == [first, second]
        with connection.begin():
            enqueued.tell(connection, [third])
    assert heard == [first, second, third]


def test_nothing_is_told_of_what_was_rolled_back(db: Database, heard: list[JobEnqueued]) -> None:
    """A transaction that rolls back enqueued nothing, and leaves nothing for the next one to tell."""
    kept = fact()
    with db.engine.connect() as connection:
        transaction = connection.begin()
        enqueued.tell(connection, [fact()])
        transaction.rollback()
        with connection.begin():
            enqueued.tell(connection, [kept])
    assert heard == [kept]


def test_savepoints(db: Database, heard: list[JobEnqueued]) -> None:
    """A savepoint that rolls back takes its own facts along, and those of the savepoints within it."""
    before, within, after = fact(), fact(), fact()
    with db.engine.begin() as connection:
        enqueued.tell(connection, [before])
        outer = connection.begin_nested()
        enqueued.tell(connection, [fact()])
        with connection.begin_nested():
            enqueued.tell(connection, [fact()])
        outer.rollback()
        with connection.begin_nested():
            enqueued.tell(connection, [within])
        enqueued.tell(connection, [after])
    assert heard == [before, within, after]


def test_the_first_fact_within_a_savepoint(db: Database, heard: list[JobEnqueued]) -> None:
    """A connection whose first fact came within a savepoint tells nothing of it if that rolls back."""
    kept = fact()
    with db.engine.begin() as connection:
        savepoint = connection.begin_nested()
        enqueued.tell(connection, [fact()])
        savepoint.rollback()
        enqueued.tell(connection, [kept])
    assert heard == [kept]


def test_nobody_hears(db: Database) -> None:
    """While nobody has subscribed, nothing is kept."""
    with db.engine.begin() as connection:
        enqueued.tell(connection, [fact()])
        assert connection not in enqueued._pending
