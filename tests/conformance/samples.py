"""Jobs, and short ways to move them, for the tests that run on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Connection, MetaData

from brooq_sa import Enqueued, JobBase, NewJob, RawJob, enqueue_many
from brooq_sa.states import State
from brooq_sa.store import Claimed, JobStore, Outcome
from databases import JOB, Database

STORE = JobStore(JOB)
LEASE = timedelta(minutes=1)
ERA = timedelta(days=365)
TOPIC = "email.send"


class AppJob(JobBase):
    """The base of the jobs here, with the default table."""

    metadata = MetaData()


class Email(AppJob, topic=TOPIC):
    """A job with a number to tell it by."""

    number: int = 0


class Urgent(AppJob, topic="email.urgent", priority=-10):
    """A job of a kind that goes first."""

    number: int = 0


def put(db: Database, *jobs: JobBase | RawJob | NewJob) -> list[uuid.UUID]:
    """Enqueue jobs, commit, and give their ids."""
    with db.engine.begin() as connection:
        return [answer.id for answer in enqueue_many(connection, jobs)]


def put_one(db: Database, job: JobBase | RawJob | None = None, key: str | None = None) -> uuid.UUID:
    """Enqueue one job, commit, and give its id."""
    with db.engine.begin() as connection:
        [answer] = enqueue_many(connection, [NewJob(job or Email(), key)])
    assert answer.created
    return answer.id


def put_keyed(db: Database, key: str) -> Enqueued:
    """Enqueue a job with a key, commit, and give the answer."""
    with db.engine.begin() as connection:
        [answer] = enqueue_many(connection, [NewJob(Email(), key)])
    return answer


def claim(
    db: Database,
    want: Mapping[str, int] | None = None,
    *,
    room: int = 100,
    worker: str = "worker-1",
    lease: timedelta = LEASE,
) -> list[Claimed]:
    """Claim jobs, by default all that are due of the usual topic, and commit."""
    with db.engine.begin() as connection:
        return claim_in(connection, want, room=room, worker=worker, lease=lease)


def claim_in(
    connection: Connection,
    want: Mapping[str, int] | None = None,
    *,
    room: int = 100,
    worker: str = "worker-1",
    lease: timedelta = LEASE,
) -> list[Claimed]:
    """The same in a transaction of the caller's."""
    return STORE.claim(connection, want or {TOPIC: room}, room=room, worker=worker, lease=lease)


def claim_one(db: Database, *, worker: str = "worker-1", lease: timedelta = LEASE) -> Claimed:
    """Claim the one job that is next."""
    [claimed] = claim(db, room=1, worker=worker, lease=lease)
    return claimed


def settle(db: Database, job: Claimed, outcome: Outcome, *, worker: str = "worker-1") -> bool:
    """Write an outcome, commit, and say whether it was accepted."""
    with db.engine.begin() as connection:
        return STORE.settle(connection, worker, [outcome]) == {job.holding}


def ended(job: Claimed, state: State, *, error: str | None = None, delay: timedelta | None = None) -> Outcome:
    """An outcome of this very attempt."""
    return Outcome(job.id, job.attempt, state, delay, error)


def released(job: Claimed) -> Outcome:
    """The outcome that gives a job back as if it had not been taken."""
    return Outcome(job.id, job.attempt, State.PENDING, timedelta(0), give_back=True)


def finish(db: Database, state: State = State.DONE) -> uuid.UUID:
    """Take the next job and end it; its id."""
    job = claim_one(db)
    assert settle(db, job, ended(job, state, error="it broke"))
    return job.id


def reap(db: Database, limit: int = 100) -> list[uuid.UUID]:
    """Run the reaper once; the ids it returned."""
    with db.engine.begin() as connection:
        return [reaped.id for reaped in STORE.reap(connection, limit=limit)]


def purge(db: Database, ttl: timedelta = timedelta(days=30), limit: int = 100) -> list[str]:
    """Run retention once; the topics it deleted."""
    with db.engine.begin() as connection:
        return STORE.purge(connection, ttl=ttl, limit=limit)
