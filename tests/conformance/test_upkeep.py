"""The reaper returns what crashed and retention deletes what is old; neither touches anything else."""

from __future__ import annotations

import re
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from brooq_sa.states import State
from conformance.samples import (
    ERA,
    LEASE,
    STORE,
    Email,
    claim,
    claim_one,
    ended,
    finish,
    purge,
    put,
    put_one,
    reap,
    settle,
)
from databases import Database
from waiting import wait_until

LATE = LEASE + timedelta(seconds=1)
TERMINAL = [State.DONE, State.DEAD, State.CANCELED]


def test_a_lapsed_lease_is_returned(db: Database) -> None:
    """A job whose lease ran out is pending again, due now, with attempts and error as they were (I7, U1)."""
    job_id = put_one(db)
    claim_one(db)
    db.execute("UPDATE job SET last_error = 'from before'")
    db.shift_clock(LATE)
    with db.engine.begin() as connection:
        [reaped] = STORE.reap(connection, limit=10)
    assert (reaped.id, reaped.topic, reaped.attempts) == (job_id, "email.send", 1)
    row = db.row()
    assert (row["state"], row["locked_by"], row["locked_until"]) == ("pending", None, None)
    assert (row["attempts"], row["last_error"]) == (1, "from before")
    assert row["available_at"] == row["updated_at"]
    assert reap(db) == []


def test_a_crash_alone_never_kills(db: Database) -> None:
    """However often its worker crashes, a job is returned and not dead (I7)."""
    put_one(db)
    for attempt in range(1, 30):
        assert claim_one(db).attempt == attempt
        db.shift_clock(LATE)
        assert len(reap(db)) == 1
        assert db.states() == ["pending"]


def test_a_lease_that_holds_is_left_alone(db: Database) -> None:
    """Before its end, to the second, a lease is not touched, by the database's clock (I13, U1)."""
    put_one(db)
    claim_one(db)
    db.shift_clock(LEASE - timedelta(seconds=5))
    before = db.row()
    assert reap(db) == []
    assert db.row() == before


def test_a_renewed_lease_is_left_alone(db: Database) -> None:
    """A heartbeat keeps a job from the reaper (T4)."""
    put_one(db)
    job = claim_one(db)
    for _ in range(4):
        db.shift_clock(LEASE / 2)
        with db.engine.begin() as connection:
            assert STORE.renew(connection, "worker-1", [job.holding], LEASE).renewed
        assert reap(db) == []
    assert settle(db, job, ended(job, State.DONE))


@pytest.mark.parametrize("state", [State.PENDING, State.FAILED, *TERMINAL])
def test_the_reaper_takes_processing_jobs_alone(db: Database, state: State) -> None:
    """A lapsed lease that plain SQL left in a row of another state is not acted on (I3)."""
    put_one(db)
    claim_one(db)
    db.shift_clock(LATE)
    db.execute(f"UPDATE job SET state = '{state}'")
    before = db.row()
    assert before["locked_by"] == "worker-1"
    assert reap(db) == []
    assert db.row() == before


def test_the_reaper_works_in_batches(db: Database) -> None:
    """Each run returns at most its limit, and the runs together everything, once (U1)."""
    put(db, *[Email() for _ in range(7)])
    claim(db)
    db.shift_clock(LATE)
    assert [len(reap(db, limit=3)) for _ in range(4)] == [3, 3, 1, 0]


def test_many_reapers_at_once_are_safe(db: Database) -> None:
    """Reapers that run at the same time return each job once between them (U1)."""
    put(db, *[Email() for _ in range(60)])
    claim(db)
    db.shift_clock(LATE)
    start = threading.Barrier(4)
    returned: list[list[uuid.UUID]] = [[] for _ in range(4)]

    def run(place: int) -> None:
        start.wait(timeout=30)
        while ids := reap(db, limit=4):
            returned[place] += ids

    threads = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    everyone = [job_id for each in returned for job_id in each]
    assert len(everyone) == len(set(everyone)) == 60 - len(db.rows(state="processing"))
    # With SKIP LOCKED a reaper may have found only what others were at; the next run takes the rest.
    assert len(everyone) + len(reap(db)) == 60


def test_a_job_that_finishes_under_the_reapers_hands_stays_finished(pg: Database) -> None:
    """A lapsed job that somebody is just finishing is not returned, neither while it is locked nor after (I3, U1)."""
    job_id = put_one(pg)
    job = claim_one(pg)
    pg.shift_clock(LATE)
    with pg.engine.begin() as other, pg.engine.begin() as connection:
        assert STORE.settle(other, "worker-1", [ended(job, State.DONE)])
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert STORE.reap(connection, limit=10) == []
    assert reap(pg) == []
    assert pg.row(job_id)["state"] == "done"


def test_the_reaper_looks_again_at_a_row_that_changed(pg: Database) -> None:
    """A reaper whose snapshot shows a lapsed lease, on a row that was finished since, leaves it finished (I3).

    The reaper's own statement is held up by an advisory lock after its snapshot was taken, and let go when the job has
    finished.
    """
    put_one(pg)
    job = claim_one(pg)
    pg.shift_clock(LATE)
    pg.execute(
        "CREATE FUNCTION hold_up() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS"
        " $$ BEGIN PERFORM pg_advisory_lock(1); PERFORM pg_advisory_unlock(1); RETURN now(); END $$"
    )
    try:
        returned: list[uuid.UUID] = []

        def slow_reaper() -> None:
            with pg.engine.begin() as connection:
                slow = _with_a_stop_in_it(connection)
                returned.extend(connection.execute(text(slow), {"limit": 10, "reason": ""}).scalars())

        with pg.engine.begin() as keeper:
            keeper.execute(text("SELECT pg_advisory_xact_lock(1)"))
            thread = threading.Thread(target=slow_reaper)
            thread.start()
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until(lambda: pg.execute(waiting), what="the reaper at the stop")
            assert settle(pg, job, ended(job, State.DONE))
        thread.join(timeout=30)
        assert returned == []
        assert pg.states() == ["done"]
    finally:
        pg.execute("DROP FUNCTION hold_up")


def _with_a_stop_in_it(connection: Connection) -> str:
    """The reaper's statement, which waits once for the lock before it looks at any row."""
    from brooq_sa.statements import upkeep
    from databases import JOB

    statement: Any = upkeep.reap(JOB)
    compiled = str(statement.compile(dialect=connection.dialect))
    sql = re.sub(r"%\((\w+)\)s(?:::\w+)?", r":\1", compiled).replace(":ceilings", "CAST('{}' AS jsonb)")
    guard = "job.locked_until < statement_timestamp()"
    assert sql.count(guard) == 2
    # In the sub-select: the row's version that the snapshot shows is tested, then the stop, then the row is locked.
    return sql.replace(guard, "job.locked_until < hold_up()", 1)


@pytest.mark.parametrize("state", TERMINAL)
def test_retention_deletes_what_is_old(db: Database, state: State) -> None:
    """A terminal job goes when its last change is older than the time to live, to the second (U2)."""
    put_one(db)
    finish(db, state)
    db.shift_clock(timedelta(days=30) - timedelta(seconds=10))
    assert purge(db) == []
    db.shift_clock(timedelta(seconds=11))
    assert purge(db) == ["email.send"]
    assert db.rows() == []


@pytest.mark.parametrize("state", [State.PENDING, State.FAILED, State.PROCESSING])
def test_retention_never_touches_what_is_active(db: Database, state: State) -> None:
    """Pending, failed and processing jobs stay, however old (U2)."""
    put_one(db)
    if state is State.PROCESSING:
        claim_one(db)
    elif state is State.FAILED:
        finish(db, state)
    db.shift_clock(ERA)
    before = db.rows()
    assert purge(db, ttl=timedelta(0)) == []
    assert db.rows() == before


def test_retention_goes_from_the_oldest_in_batches(db: Database) -> None:
    """Each batch deletes at most its limit, the longest finished first (U2)."""
    ids = put(db, *[Email(number=number) for number in range(5)])
    for job in reversed(claim(db)):
        settle(db, job, ended(job, State.DONE))
        db.shift_clock(timedelta(hours=1))
    left = []
    for _ in range(3):
        purge(db, ttl=timedelta(minutes=1), limit=2)
        left.append([row["id"] for row in db.rows()])
    assert left == [ids[:3], ids[:1], []]


def test_retentions_order_does_not_come_from_the_index_alone(pg: Database) -> None:
    """A batch that is planned without the index deletes the oldest all the same (U2)."""
    ids = put(pg, *[Email(number=number) for number in range(6)])
    for job in reversed(claim(pg)):
        settle(pg, job, ended(job, State.DONE))
        pg.shift_clock(timedelta(hours=1))
    for oldest in ids[4:]:  # their rows now lie last in the table
        pg.execute("UPDATE job SET last_error = 'touched' WHERE id = :id", id=oldest)
    with pg.engine.connect() as connection:
        for switch in ("indexscan", "indexonlyscan", "bitmapscan"):
            connection.execute(text(f"SET enable_{switch} = off"))
        STORE.purge(connection, ttl=timedelta(minutes=1), limit=2)
        connection.commit()
        connection.invalidate()
    assert [row["id"] for row in pg.rows()] == ids[:4]


def test_retention_steps_over_locked_rows(pg: Database) -> None:
    """A finished job that somebody has locked is left for another time (U2)."""
    first, second = put(pg, Email(), Email())
    finish(pg)
    finish(pg)
    pg.shift_clock(ERA)
    with pg.engine.begin() as other, pg.engine.begin() as connection:
        other.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": first})
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert len(STORE.purge(connection, ttl=timedelta(days=30), limit=10)) == 1
    assert [row["id"] for row in pg.rows()] == [first]
    assert first != second


def test_a_job_sent_round_again_is_not_deleted(pg: Database) -> None:
    """A dead job that an operator is just sending round again is not deleted under their hands (I3, U2)."""
    job_id = put_one(pg)
    finish(pg, State.DEAD)
    pg.shift_clock(ERA)
    with pg.engine.begin() as operator, pg.engine.begin() as connection:
        STORE.retry(operator, job_id)
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert STORE.purge(connection, ttl=timedelta(0), limit=10) == []
    assert purge(pg) == []
    assert pg.states() == ["pending"]


def test_retention_frees_the_key(db: Database) -> None:
    """With the row goes its key: the next enqueue under it is a new job (I8, U2)."""
    first = put_one(db, key="key")
    finish(db)
    db.shift_clock(ERA)
    purge(db)
    assert put_one(db, key="key") != first
