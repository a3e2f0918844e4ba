"""Terminal jobs that are older than their time are deleted."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from apps.embedding import job_class, put, put_many, working
from brooq_sa import RawJob
from brooq_sa.engines import Reserved
from brooq_sa.settings import WorkerSettings
from brooq_sa.store import JobStore
from brooq_sa.upkeep import Retention
from databases import JOB, Database
from waiting import wait_until

DAY = timedelta(days=1)


@pytest.fixture
def retain(db: Database) -> Iterator[Callable[..., int]]:
    """Runs retention once with these settings, by default a TTL of a day; how many jobs went."""
    reserved = Reserved(db.engine)

    def run(**changes: Any) -> int:
        settings = WorkerSettings.create(**{"retention_ttl": "24h"} | changes)
        return Retention(JobStore(JOB), reserved, settings, worker="w").run()

    yield run
    reserved.close()


def jobs_in(db: Database, state: str, count: int = 1, topic: str = "work") -> list[uuid.UUID]:
    """Jobs that are in this state now."""
    ids = put_many(db, [RawJob(topic, number) for number in range(count)])
    lease = ", locked_by = 'w', locked_until = available_at" if state == "processing" else ""
    for each in ids:
        db.execute(f"UPDATE job SET state = '{state}'{lease} WHERE id = :id", id=sql_id(db, each))
    return ids


def sql_id(db: Database, job_id: uuid.UUID) -> object:
    return job_id.hex if db.name == "sqlite" else job_id


def test_old_terminal_jobs_go(db: Database, retain: Callable[..., int]) -> None:
    """What has been terminal for longer than the TTL is deleted; the rest is never touched, however old (U2)."""
    kept = [each for state in ("pending", "failed", "processing") for each in jobs_in(db, state)]
    for state in ("done", "dead", "canceled"):
        jobs_in(db, state)
    db.shift_clock(2 * DAY)
    kept += jobs_in(db, "done")
    assert retain() == 3
    assert {row["id"] for row in db.rows()} == set(kept)


@pytest.mark.parametrize("ttl", ["0s", "0h"])
def test_zero_is_never(db: Database, retain: Callable[..., int], ttl: str) -> None:
    """A TTL of zero keeps everything for ever (U2)."""
    jobs_in(db, "done", 3)
    db.shift_clock(timedelta(days=3000))
    assert retain(retention_ttl=ttl) == 0
    assert len(db.rows()) == 3


def test_zero_is_never_in_a_worker(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a worker with such a setting ever ask for a deletion (U2)."""
    called: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(JobStore, name)

        def count(*arguments: Any, **options: Any) -> Any:
            called.append(name)
            return method(*arguments, **options)

        return count

    for name in ("purge", "reap"):
        monkeypatch.setattr(JobStore, name, counted(name))
    job = job_class(lambda job, claim: None)
    [old] = jobs_in(db, "done")
    db.shift_clock(timedelta(days=3000))
    put(db, job())
    with working(db, job.__bases__[0], retention_ttl="0s", retention_period="10ms", reaper_period="10ms"):
        wait_until(lambda: called.count("reap") > 5, what="the other chore having been done many times")
    assert (db.row(old)["state"], called.count("purge")) == ("done", 0)


def test_a_worker_retains(db: Database) -> None:
    """A running worker deletes what is old (U2)."""
    job = job_class(lambda job, claim: None)
    jobs_in(db, "done", 5)
    db.shift_clock(2 * DAY)
    with working(db, job.__bases__[0], retention_ttl="24h", retention_period="20ms"):
        wait_until(lambda: not db.rows(), what="the old jobs being deleted")


def test_the_age_counts_from_the_last_change(db: Database, retain: Callable[..., int]) -> None:
    """A job that was enqueued long ago and finished just now is kept (U2)."""
    [job_id] = put_many(db, [RawJob("work", 1)])
    db.shift_clock(30 * DAY)
    with db.engine.begin() as connection:
        JobStore(JOB).cancel(connection, job_id)
    assert (retain(), db.states()) == (0, ["canceled"])


def test_batch_by_batch(db: Database, retain: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is a transaction of its own, oldest first (U2)."""
    purge, deleted = JobStore.purge, []

    def watched(self: JobStore, connection: Any, **options: Any) -> list[str]:
        before = {row[0] for row in connection.execute(text("SELECT payload FROM job")).all()}
        topics = purge(self, connection, **options)
        after = {row[0] for row in connection.execute(text("SELECT payload FROM job")).all()}
        deleted.append(sorted(int(each) for each in before - after))
        return topics

    for number in range(5):
        put(db, RawJob("work", number))
        db.execute("UPDATE job SET state = 'done' WHERE state = 'pending'")
        db.shift_clock(DAY)
    db.shift_clock(DAY)
    monkeypatch.setattr(JobStore, "purge", watched)
    assert retain(retention_batch=2) == 5
    assert deleted == [[0, 1], [2, 3], [4]]


def test_a_backlog_waits_for_the_next_time(
    db: Database, retain: Callable[..., int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One run deletes no more than so many batches, and warns that more remain (U2)."""
    monkeypatch.setattr("brooq_sa.upkeep.retention.MOST_BATCHES", 3)
    jobs_in(db, "done", 10)
    db.shift_clock(2 * DAY)
    assert (retain(retention_batch=2), len(db.rows())) == (6, 4)
    assert any("retention_behind" in record.getMessage() for record in caplog.records)
    assert (retain(retention_batch=2), len(db.rows())) == (4, 0)


def test_a_locked_row_is_passed_over(pg: Database) -> None:
    """A row that somebody has locked keeps no other from going (U2)."""
    ids = jobs_in(pg, "done", 3)
    pg.shift_clock(2 * DAY)
    reserved = Reserved(pg.engine)
    retention = Retention(JobStore(JOB), reserved, WorkerSettings(retention_ttl=DAY), worker="w")
    with pg.engine.begin() as holder:
        holder.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": ids[0]})
        assert retention.run() == 2
    assert retention.run() == 1
    reserved.close()


def test_a_key_is_free_again(db: Database, retain: Callable[..., int]) -> None:
    """With its row a key goes too, and can be taken again (I8)."""
    first = put(db, RawJob("work", 1), key="k")
    db.execute("UPDATE job SET state = 'done'")
    assert put(db, RawJob("work", 2), key="k") == first
    db.shift_clock(2 * DAY)
    assert retain() == 1
    assert put(db, RawJob("work", 3), key="k") != first


def test_the_whole_is_told(db: Database, retain: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    """The log says how many jobs of which topics went (W3)."""
    jobs_in(db, "done", 2, topic="a")
    jobs_in(db, "dead", 1, topic="b")
    db.shift_clock(2 * DAY)
    with caplog.at_level("INFO", logger="brooq_sa"):
        retain()
    [line] = [record.getMessage() for record in caplog.records if "jobs_purged" in record.getMessage()]
    assert "count=3" in line
    assert "'a': 2" in line
