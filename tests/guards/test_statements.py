"""What jobs cost the database, in numbers that do not hang on how fast the machine is."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from apps.embedding import base_of, put_many
from brooq_sa import Worker
from brooq_sa.statements.claim import Place
from brooq_sa.store import JobStore
from databases import JOB, Database
from guards.watching import Done, noop_class, put_batches, sent, writing_transactions
from plans.explaining import explained

STORE = JobStore(JOB)
LEASE = timedelta(minutes=1)
WINDOW = 3.0


def test_statements_and_commits_a_job(pg: Database) -> None:
    """A drain of 1,000 jobs takes a tenth of a statement and of a writing transaction for each, at the most."""
    job = noop_class(is_async=True)
    put_batches(pg, job, 1000)
    worker = Worker(pg.engine, base_of(job), workers=10, wake=False, poll_interval="20ms")
    done = Done(worker)
    before = writing_transactions(pg)
    with sent() as statements, worker:
        done.wait_for(1000)
    transactions = writing_transactions(pg) - before - 1
    assert statements.total() <= 100, statements
    assert 0 < transactions <= 100
    assert pg.states() == ["done"] * 1000


def test_def_handlers_share_commits_too(pg: Database) -> None:
    """So does one whose handlers run in threads."""
    job = noop_class(is_async=False)
    put_batches(pg, job, 1000)
    worker = Worker(pg.engine, base_of(job), workers=10, wake=False, poll_interval="20ms")
    done = Done(worker)
    with sent() as statements, worker:
        done.wait_for(1000)
    assert statements.total() <= 150, statements


def test_an_idle_worker_is_quiet(db: Database) -> None:
    """With the default settings, a worker without jobs sends two statements a second at the most, all its parts.

    On SQLite the BEGIN around each goes to no server, and is not counted.
    """
    job = noop_class(is_async=True)
    with Worker(db.engine, base_of(job)) as worker, sent() as statements:
        deadline = time.monotonic() + 10
        while sum(loop.has_turned for loop in worker._loops) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # what it does once, at its start, is over
        statements.clear()
        time.sleep(WINDOW)
        count = statements.total() - statements["BEGIN"]
    assert 0 < count <= 2 * WINDOW, statements


def test_a_claim_locks_what_it_takes(pg: Database) -> None:
    """While a claim is not committed, all other rows can be locked by others."""
    put_many(pg, [noop_class(is_async=True)(number=number) for number in range(100)])
    with pg.engine.connect() as claiming, pg.engine.connect() as other:
        claimed = STORE.claim(claiming, {"work": 10}, room=10, worker="me", lease=LEASE)
        free = other.execute(text("SELECT id FROM job FOR UPDATE SKIP LOCKED")).scalars().all()
        assert len(claimed) == 10
        assert {job.id for job in claimed}.isdisjoint(free)
        assert len(free) == 90


def test_renewals_are_hot(pg: Database) -> None:
    """A heartbeat is one statement, and touches no index once its jobs lie where there is room beside them."""
    put_batches(pg, noop_class(is_async=True), 1000)
    with pg.engine.begin() as connection:
        claimed = STORE.claim(connection, {"work": 1000}, room=1000, worker="me", lease=LEASE)
    holdings = [job.holding for job in claimed]
    shares = []
    for _ in range(7):
        with pg.engine.begin() as connection:
            before = _changes(connection)  # the server may not have put aside yet what earlier transactions did
            with sent() as statements:
                renewal = STORE.renew(connection, "me", holdings, LEASE)
            after = _changes(connection)
        assert renewal.renewed == set(holdings)
        assert statements.total() == 1
        assert after["n_tup_upd"] - before["n_tup_upd"] == 1000
        shares.append((after["n_tup_hot_upd"] - before["n_tup_hot_upd"]) / 1000)
    assert shares[-1] >= 0.95, shares
    assert sum(shares) / len(shares) >= 0.75, shares


def _changes(connection: Any) -> dict[str, int]:
    """What the session has updated of late."""
    asked = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'job'"
    return dict(connection.execute(text(asked)).mappings().one())


@pytest.mark.parametrize("is_async", [True, False])
def test_connections(pg: Database, is_async: bool) -> None:
    """A worker has five connections, whatever the number of its slots and of the jobs."""
    name = f"guard-{uuid.uuid4().hex[:12]}"
    named = Database(f"{pg.url}?application_name={name}")
    job = noop_class(is_async=is_async)
    put_batches(pg, job, 500)
    worker = Worker(named.engine, base_of(job), workers=20)
    done = Done(worker)
    counts = []
    with worker:
        for total in (100, 500):
            done.wait_for(total)
            asked = "SELECT count(*) AS open FROM pg_stat_activity WHERE application_name = :name"
            counts.append(pg.execute(asked, name=name)[0]["open"])
    named.dispose()
    assert 2 <= counts[0] <= 5
    assert counts[1] <= 5


def test_places_spare_dead_entries(pg: Database) -> None:
    """While an old snapshot is held, a claim from a place reads as much at the end of a long drain as at its start."""
    put_batches(pg, noop_class(is_async=True), 4000)
    # Out of the order in which they lie in the table, as jobs of many hours do; else all dead entries are on few pages.
    pg.execute("UPDATE job SET available_at = available_at - random() * interval '1 hour'")
    with pg.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
    with pg.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.execute(text("SELECT count(*) FROM job"))
        place = _taken(pg, None)[1]
        early, place = _taken(pg, place)
        for _ in range(33):
            late, place = _taken(pg, place)
        from_start, _ = _taken(pg, None)
    assert late <= 1.5 * early, (early, late)
    assert from_start >= 2 * late, (early, late, from_start)  # or the old snapshot has kept nothing


def _taken(pg: Database, place: Place | None) -> tuple[int, Place]:
    """How many pages a claim of 100 jobs looked at, and the place where it ended."""
    places = {} if place is None else {"work": place}
    with pg.engine.begin() as connection, explained(connection) as plans:
        claimed = STORE.claim(connection, {"work": 100}, room=100, worker="me", lease=LEASE, places=places)
    assert len(claimed) == 100
    return plans[0].buffers, max(Place(job.priority, job.instant or 0, job.id) for job in claimed)
