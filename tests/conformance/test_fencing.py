"""Nobody's late write changes what is no longer theirs: each guard has a test that fails without it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from brooq_sa.states import State
from brooq_sa.store import Claimed, Outcome
from conformance.samples import (
    LEASE,
    STORE,
    Email,
    claim,
    claim_one,
    ended,
    put,
    put_one,
    reap,
    released,
    settle,
)
from databases import Database

LATE = timedelta(seconds=1) + LEASE

WAYS = ["done", "failed", "dead", "canceled", "released"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """A way in which an attempt may end."""
    return str(request.param)


def ending(job: Claimed, way: str) -> Outcome:
    """The outcome of an attempt that ends that way."""
    if way == "released":
        return released(job)
    return ended(job, State(way), error="it broke", delay=timedelta(hours=1) if way == "failed" else None)


def test_an_outcome_is_recorded_once(db: Database, way: str) -> None:
    """The holder's outcome is written, gives up the lease, and cannot be written again (I3, I11)."""
    put_one(db)
    job = claim_one(db)
    assert settle(db, job, ending(job, way))
    before = db.row()
    assert before["state"] == ("pending" if way == "released" else way)
    assert (before["locked_by"], before["locked_until"]) == (None, None)
    for again in WAYS:
        assert not settle(db, job, ending(job, again))
    assert db.row() == before


def test_success_is_done_whatever_the_attempt(db: Database) -> None:
    """A success writes done on any attempt, and leaves what earlier failures said (I7)."""
    put_one(db)
    job = claim_one(db)
    settle(db, job, ended(job, State.FAILED, error="the first", delay=timedelta(0)))
    job = claim_one(db)
    assert settle(db, job, ended(job, State.DONE))
    assert (db.row()["state"], db.row()["attempts"], db.row()["last_error"]) == ("done", 2, "the first")


def test_a_failure_waits_and_says_why(db: Database) -> None:
    """A failed job is due after its delay, with the error beside it (R3)."""
    put_one(db)
    job = claim_one(db)
    settle(db, job, ended(job, State.FAILED, error="it broke", delay=timedelta(minutes=10)))
    row = db.row()
    assert (row["state"], row["last_error"], row["attempts"]) == ("failed", "it broke", 1)
    assert abs(row["available_at"] - row["updated_at"] - timedelta(minutes=10)) < timedelta(milliseconds=2)
    assert claim(db) == []


def test_a_preserved_attempt_is_given_back(db: Database) -> None:
    """A failure that preserves its attempt takes the count back, and not below zero (R2)."""
    put_one(db)
    for _ in range(2):
        job = claim_one(db)
        assert settle(db, job, Outcome(job.id, job.attempt, State.FAILED, timedelta(0), "down", give_back=True))
        assert (db.row()["state"], db.row()["attempts"]) == ("failed", 0)


def test_a_canceled_outcome_is_terminal(db: Database) -> None:
    """A handler that cancels its job ends it, whatever attempts remain (R2, I3)."""
    put_one(db)
    job = claim_one(db)
    assert settle(db, job, ended(job, State.CANCELED, error="lost its point"))
    assert db.row()["state"] == "canceled"
    assert claim(db) == []


def test_another_worker_cannot_settle(db: Database, way: str) -> None:
    """An outcome from any worker but the holder is refused, even for the right attempt (I12)."""
    put_one(db)
    job = claim_one(db, worker="worker-1")
    before = db.row()
    assert not settle(db, job, ending(job, way), worker="worker-2")
    assert db.row() == before


def test_an_earlier_attempt_cannot_settle(db: Database, way: str) -> None:
    """A worker that slept through its lease and took the job again cannot end the new run with the old one (I12)."""
    put_one(db)
    slept = claim_one(db)
    db.shift_clock(LATE)
    assert len(reap(db)) == 1
    current = claim_one(db)
    before = db.row()
    assert not settle(db, slept, ending(slept, way))
    assert db.row() == before
    assert settle(db, current, ended(current, State.DONE))


def test_a_reaped_job_cannot_be_settled(db: Database, way: str) -> None:
    """Once the reaper gave a job back, its former holder's outcome is refused (I12)."""
    put_one(db)
    job = claim_one(db)
    db.shift_clock(LATE)
    reap(db)
    before = db.row()
    assert not settle(db, job, ending(job, way))
    assert db.row() == before


def test_the_next_holder_is_not_disturbed(db: Database, way: str) -> None:
    """The late write of a worker that overran leaves the lease, attempt and error of the next one as they are (I12)."""
    put_one(db)
    late = claim_one(db, worker="worker-1")
    db.shift_clock(LATE)
    reap(db)
    current = claim_one(db, worker="worker-2")
    before = db.row()
    assert not settle(db, late, ending(late, way), worker="worker-1")
    assert db.row() == before
    assert settle(db, current, ended(current, State.DONE), worker="worker-2")


def test_an_operators_plain_sql_stands(db: Database, way: str) -> None:
    """A cancel in plain SQL that leaves the lease in the row is not overwritten by the holder (I3, T5)."""
    put_one(db)
    job = claim_one(db)
    db.execute("UPDATE job SET state = 'canceled'")
    before = db.row()
    assert before["locked_by"] == "worker-1"
    assert not settle(db, job, ending(job, way))
    assert db.row() == before


def test_a_job_that_is_gone_is_a_normal_answer(db: Database, way: str) -> None:
    """Outcomes of deleted jobs write nothing and raise nothing (I3)."""
    put_one(db)
    job = claim_one(db)
    db.execute("DELETE FROM job")
    assert not settle(db, job, ending(job, way))


def test_a_lapsed_lease_that_nobody_took_still_settles(db: Database, way: str) -> None:
    """Until it is reaped, a job belongs to its holder, however late (I12)."""
    put_one(db)
    job = claim_one(db)
    db.shift_clock(LATE)
    assert settle(db, job, ending(job, way))


def test_a_batch_settles_what_is_held_and_names_it(db: Database) -> None:
    """Of many outcomes of different attempts and kinds, those still held are written and named, no others (I12)."""
    put(db, *[Email(number=number) for number in range(10)])
    earlier = claim(db)
    with db.engine.begin() as connection:
        STORE.settle(connection, "worker-1", [released(job) for job in earlier[5:]])
    for job in (first := claim(db, room=2)):
        settle(db, job, ended(job, State.FAILED, delay=timedelta(0)))
    again = claim(db)
    lost, kept = earlier[0], earlier[1:5]
    db.execute(f"UPDATE job SET locked_by = 'thief' WHERE id = '{lost.id if db.name == 'postgresql' else lost.id.hex}'")
    held = [*kept, *again]
    ways = ["done", "dead", "canceled", "failed", "released"]
    outcomes = [ending(job, ways[place % len(ways)]) for place, job in enumerate([lost, *held])]
    with db.engine.begin() as connection:
        assert STORE.settle(connection, "worker-1", outcomes) == {job.holding for job in held}
    assert {job.attempt for job in again} == {1, 2}
    assert len(first) == 2
    assert [row["id"] for row in db.rows(state="processing")] == [lost.id]


def test_nothing_to_settle_is_a_normal_call(db: Database) -> None:
    """Empty batches are answered, and cost no statement that fails."""
    with db.engine.begin() as connection:
        assert STORE.settle(connection, "worker-1", []) == set()
        renewal = STORE.renew(connection, "worker-1", [], LEASE)
    assert (renewal.renewed, renewal.kept, renewal.canceled) == (set(), set(), set())


def test_a_renewal_moves_the_end_of_the_lease(db: Database) -> None:
    """A heartbeat puts the end of each held lease a lease from now, and nothing else (T4)."""
    put(db, Email(), Email())
    jobs = claim(db, lease=timedelta(seconds=5))
    db.shift_clock(timedelta(seconds=4))
    before = db.rows()
    with db.engine.begin() as connection:
        renewal = STORE.renew(connection, "worker-1", [job.holding for job in jobs], LEASE)
    assert renewal.renewed == {job.holding for job in jobs}
    assert (renewal.kept, renewal.canceled) == (set(), set())
    for old, new in zip(before, db.rows(), strict=True):
        changed = {name for name in old if old[name] != new[name]}
        assert changed == {"locked_until"}
        left = new["locked_until"] - datetime.now(UTC)
        assert LEASE - timedelta(seconds=10) < left <= LEASE


@pytest.mark.parametrize(
    "change", ["locked_by = 'thief'", "attempts = attempts + 1", "state = 'canceled'", "state = 'done'"]
)
def test_a_lost_lease_is_not_renewed(db: Database, change: str) -> None:
    """A renewal is refused once worker, attempt or state is not the claim's (I12)."""
    put_one(db)
    job = claim_one(db)
    db.execute(f"UPDATE job SET {change}")
    before = db.row()
    with db.engine.begin() as connection:
        renewal = STORE.renew(connection, "worker-1", [job.holding], LEASE)
    assert (renewal.renewed, renewal.kept) == (set(), set())
    assert renewal.canceled == ({job.holding} if "canceled" in change else set())
    assert db.row() == before


def test_a_renewal_names_each_of_many(db: Database) -> None:
    """Of many leases, the lost and the canceled are told from those renewed (T5, I12)."""
    mine, taken, stopped = put(db, Email(), Email(), Email())
    held = {job.id: job.holding for job in claim(db)}
    with db.engine.begin() as connection:
        STORE.cancel(connection, stopped)
        place = "id = :id" if db.name == "postgresql" else "id = replace(:id, '-', '')"
        connection.execute(text(f"UPDATE job SET locked_by = 'thief' WHERE {place}"), {"id": str(taken)})
        renewal = STORE.renew(connection, "worker-1", [*held.values(), (uuid.uuid4(), 1)], LEASE)
    assert (renewal.renewed, renewal.kept, renewal.canceled) == ({held[mine]}, set(), {held[stopped]})


def test_a_locked_row_is_not_a_lost_lease(pg: Database) -> None:
    """A row that somebody has locked neither stalls the heartbeat of the others nor counts as lost (T4)."""
    locked, free = put(pg, Email(), Email())
    held = {job.id: job.holding for job in claim(pg)}
    with pg.engine.begin() as other:
        other.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": locked})
        with pg.engine.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            renewal = STORE.renew(connection, "worker-1", list(held.values()), LEASE)
    assert (renewal.renewed, renewal.kept, renewal.canceled) == ({held[free]}, {held[locked]}, set())


def test_a_locked_row_of_another_holder_is_lost(pg: Database) -> None:
    """The look at a locked row knows a thief from the holder (I12)."""
    job_id = put_one(pg)
    job = claim_one(pg)
    pg.execute("UPDATE job SET locked_by = 'thief'")
    with pg.engine.begin() as other:
        other.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": job_id})
        with pg.engine.begin() as connection:
            renewal = STORE.renew(connection, "worker-1", [job.holding], LEASE)
    assert (renewal.renewed, renewal.kept) == (set(), set())


def test_leases_belong_to_processing_jobs_alone(db: Database, way: str) -> None:
    """After any outcome no half of a lease is left, so the reaper's index holds work in flight alone (I1)."""
    put_one(db)
    job = claim_one(db)
    settle(db, job, ending(job, way))
    assert db.rows(locked_by=None, locked_until=None) == db.rows()


@pytest.mark.parametrize("order", [1, -1], ids=["live first", "stale first"])
def test_a_stale_outcome_does_not_replace_the_live_one_of_its_batch(db: Database, order: int) -> None:
    """Of two attempts of one job in a batch, the one that holds the job is written (I12)."""
    job_id = put_one(db)
    claim_one(db)
    db.execute("UPDATE job SET attempts = 2")
    outcomes = [Outcome(job_id, 2, State.DEAD, error="live"), Outcome(job_id, 1, State.FAILED, LEASE, "stale")]
    with db.engine.begin() as connection:
        assert STORE.settle(connection, "worker-1", outcomes[::order]) == {(job_id, 2)}
    assert (db.row()["state"], db.row()["last_error"]) == ("dead", "live")
