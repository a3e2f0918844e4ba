"""Handlers whose session has to give way to another transaction are run again, within their attempt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from brooq_sa import AsyncClaim, Claim, JobBase, Session, Worker, enqueue_many
from databases import Database
from waiting import wait_until


class Counting(JobBase): ...


class Add(Counting, topic="add", max_attempts=1, conflict_reruns=100):
    number: int

    def run(self, claim: Claim) -> None:
        value = claim.session.execute(text("SELECT value FROM counter WHERE id = 1")).scalar_one()
        claim.session.execute(text("UPDATE counter SET value = :value WHERE id = 1"), {"value": value + 1})


class AddAsync(Counting, topic="add.async", max_attempts=1, conflict_reruns=100):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        value = (await claim.session.execute(text("SELECT value FROM counter WHERE id = 2"))).scalar_one()
        await claim.session.execute(text("UPDATE counter SET value = :value WHERE id = 2"), {"value": value + 1})


CROSSING = threading.Barrier(2)
RUNS: list[int] = []


class Cross(Counting, topic="cross", max_attempts=1):
    """Two of them lock two rows in opposite order, the first time each runs."""

    first: int

    def run(self, claim: Claim) -> None:
        RUNS.append(self.first)
        claim.chain(Follow(after=self.first))
        lock = text("UPDATE counter SET value = value + 1 WHERE id = :id")
        claim.session.execute(lock, {"id": self.first})
        if RUNS.count(self.first) == 1:
            CROSSING.wait(20)
        claim.session.execute(lock, {"id": 3 - self.first})


class Follow(Counting, topic="follow"):
    after: int


class Stubborn(Counting, topic="stubborn", max_attempts=1, conflict_reruns=2):
    def run(self, claim: Claim) -> None:
        RUNS.append(0)
        claim.session.execute(text("SELECT raise_conflict()"))


class Once(Counting, topic="once", max_attempts=1, conflict_reruns=0):
    def run(self, claim: Claim) -> None:
        RUNS.append(0)
        claim.session.execute(text("SELECT raise_conflict()"))


@pytest.fixture(autouse=True)
def counter(pg: Database) -> Iterator[None]:
    """A table of two rows, and a function that has lost to another transaction whenever it is called."""
    RUNS.clear()
    CROSSING.reset()
    pg.execute("CREATE TABLE counter (id int PRIMARY KEY, value int NOT NULL)")
    pg.execute("INSERT INTO counter VALUES (1, 0), (2, 0)")
    pg.execute(
        "CREATE FUNCTION raise_conflict() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$"
    )
    yield
    pg.execute("DROP FUNCTION raise_conflict")
    pg.execute("DROP TABLE counter")


def put(db: Database, *jobs: Any) -> None:
    with db.engine.begin() as connection:
        enqueue_many(connection, jobs)


def values(db: Database) -> list[int]:
    return [row["value"] for row in db.execute("SELECT value FROM counter ORDER BY id")]


def ended(db: Database, topic: str) -> list[tuple[str, int]]:
    """State and attempts of a topic's jobs, once none of them waits or runs."""
    found = [(row["state"], row["attempts"]) for row in db.rows(topic=topic)]
    return [] if any(state in ("pending", "processing") for state, _ in found) else found


@pytest.mark.parametrize("job_class,place", [(Add, 0), (AddAsync, 1)])
def test_serialization_failures(pg: Database, job_class: type[Add | AddAsync], place: int) -> None:
    """Handlers under SERIALIZABLE that get in each other's way all succeed, each counted once, at attempt 1 (I6)."""
    strict = create_engine(pg.url, isolation_level="SERIALIZABLE")
    strict_async = create_async_engine(pg.url, isolation_level="SERIALIZABLE", poolclass=NullPool)
    put(pg, *[job_class(number=number) for number in range(12)])
    with Worker(
        strict, Counting, workers=4, poll_interval="50ms", async_session_factory=lambda: AsyncSession(strict_async)
    ):
        topic = job_class.__kind__.topic
        wait_until(lambda: ended(pg, topic) == [("done", 1)] * 12, timeout=60, what="all being done at once")
    assert values(pg)[place] == 12
    strict.dispose()


def test_a_deadlock(pg: Database) -> None:
    """The handler that PostgreSQL picks as victim runs again; what it had chained is chained once (S1)."""
    put(pg, Cross(first=1), Cross(first=2))
    with Worker(pg.engine, Counting, topics=["cross"], workers=2, poll_interval="50ms"):
        wait_until(lambda: ended(pg, "cross") == [("done", 1)] * 2, timeout=60, what="both being done")
    assert len(RUNS) == 3
    assert values(pg) == [2, 2]
    assert len(pg.rows(topic="follow")) == 2


@pytest.mark.parametrize("job_class,runs", [(Stubborn, 3), (Once, 1)])
def test_there_is_an_end_to_it(pg: Database, job_class: type[Stubborn | Once], runs: int) -> None:
    """After its kind's number of reruns, which may be none, the attempt has failed."""
    put(pg, job_class())
    with Worker(pg.engine, Counting, workers=1, poll_interval="50ms"):
        topic = job_class.__kind__.topic
        wait_until(lambda: ended(pg, topic) == [("dead", 1)], timeout=30, what="its failure")
    assert len(RUNS) == runs
    with Session(pg.engine) as session:
        assert session.execute(text("SELECT count(*) FROM job")).scalar_one() == 1
