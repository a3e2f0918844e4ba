"""What an administrator has set for the role or the database: timeouts and isolation levels."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import text

from apps.embedding import base_of, is_idle, job_class, put, put_many, working
from brooq_sa import RawJob
from outages.place import Place, write
from waiting import wait_until


def ended(place: Place) -> bool:
    return is_idle(place.db)


@pytest.fixture
def strict(place: Place) -> Place:
    """A database whose role has short timeouts of every kind."""
    for name, value in {
        "statement_timeout": "1s",
        "lock_timeout": "300ms",
        "idle_in_transaction_session_timeout": "700ms",
        "idle_session_timeout": "700ms",
    }.items():
        place.servers.execute(f"ALTER ROLE postgres SET {name} = '{value}'")
    return place


def test_short_timeouts(strict: Place) -> None:
    """Under the shortest timeouts that are of any use, jobs run as elsewhere, and the worker is well between (T4)."""
    job = job_class(lambda job, claim: write(claim))
    with working(strict.app, base_of(job), poll_interval="200ms", wake=True) as worker:
        for _ in range(4):
            put(strict.db, job())
            wait_until(lambda: set(strict.db.states()) == {"done"}, what="the job being done")
            threading.Event().wait(0.5)
        wait_until(lambda: worker.troubles == {}, what="the worker being well")
    assert len(strict.effects()) == 4


def test_a_statement_of_a_handler_that_takes_too_long(strict: Place) -> None:
    """A handler whose own statement takes longer than allowed has failed of that; others go on (R3)."""
    job = job_class(lambda job, claim: claim.session.execute(text("SELECT pg_sleep(5)")), max_attempts=2)
    job_id = put(strict.db, job())
    with working(strict.app, base_of(job)):
        wait_until(lambda: ended(strict), timeout=20, what="the job having ended")
    row = strict.db.row(job_id)
    assert (row["state"], row["attempts"]) == ("dead", 2)
    assert "statement timeout" in row["last_error"]


def test_a_transaction_left_idle_by_a_handler(strict: Place) -> None:
    """A handler that holds its session idle for too long has failed, and its job dies of it, with the reason (I7)."""

    def handler(job: Any, claim: Any) -> None:
        write(claim)
        claim.should_stop.wait(1.5)
        write(claim)

    job = job_class(handler, max_attempts=2)
    job_id = put(strict.db, job())
    with working(strict.app, base_of(job)):
        wait_until(lambda: ended(strict), timeout=20, what="the job having ended")
    row = strict.db.row(job_id)
    assert (row["state"], row["attempts"], strict.effects()) == ("dead", 2, [])
    assert "idle-in-transaction timeout" in row["last_error"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_default_isolation(place: Place, level: str) -> None:
    """In a stricter database two workers share the jobs, each runs once, and conflicts cost nothing (I2, I6)."""
    place.servers.execute(f"ALTER DATABASE postgres SET default_transaction_isolation = '{level}'")
    place.servers.execute("CREATE TABLE counter (n int)")
    place.servers.execute("INSERT INTO counter VALUES (0)")

    def handler(job: Any, claim: Any) -> None:
        write(claim)
        if job.number % 10 == 0:  # all of these write one row
            claim.session.execute(text("UPDATE counter SET n = n + 1"))
        claim.chain(RawJob("next", job.number))

    job = job_class(handler, max_attempts=1, conflict_reruns=50)
    ids = put_many(place.db, [job(number=number) for number in range(60)])
    with working(place.app, base_of(job)), working(place.via(place.url), base_of(job)):
        done = {"state": "done", "topic": "work"}
        wait_until(lambda: len(place.db.rows(**done)) == len(ids), timeout=40, what="every job being done")
    assert place.effects() == [1] * len(ids)
    assert place.servers.execute("SELECT n FROM counter") == [(6,)]
    assert len(place.db.rows(topic="next")) == len(ids)
