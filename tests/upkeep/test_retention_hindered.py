"""Retention where something is in its way: a foreign key, a timeout, a lock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, event

from brooq_sa.engines import Reserved
from brooq_sa.settings import WorkerSettings
from brooq_sa.store import JobStore
from brooq_sa.upkeep import Retention
from databases import JOB, Database

TTL = timedelta(days=30)
OLD = TTL + timedelta(days=1)


def run(db: Database, *, engine: Engine | None = None, batch: int = 100) -> int:
    """How many jobs one run of retention deletes."""
    settings = WorkerSettings(retention_ttl=TTL, retention_batch=batch)
    reserved = Reserved(engine or db.engine)
    try:
        return Retention(JobStore(JOB), reserved, settings, worker="test").run()
    finally:
        reserved.close()


def put_old(db: Database, count: int) -> None:
    for number in range(count):
        db.execute(
            "INSERT INTO job (topic, payload, state, idempotency_key) VALUES ('old', '{}', 'done', :key)",
            key=str(number),
        )
    db.shift_clock(OLD)


@pytest.fixture
def referring(db: Database) -> Iterator[None]:
    """A table of the user's whose foreign key refers to jobs 3 and 7."""
    put_old(db, 20)
    if db.name == "sqlite":

        def check_foreign_keys(connection: object, _record: object) -> None:
            connection.execute("PRAGMA foreign_keys = ON")  # type: ignore[attr-defined]

        event.listen(db.engine, "connect", check_foreign_keys)
        db.engine.dispose()
    kind = "CHAR(32)" if db.name == "sqlite" else "uuid"
    db.execute(f"CREATE TABLE outbox (job_id {kind} NOT NULL REFERENCES job (id))")
    db.execute("INSERT INTO outbox SELECT id FROM job WHERE idempotency_key IN ('3', '7')")
    yield
    db.execute("DROP TABLE outbox")


def test_a_referenced_job_stays_and_the_others_go(db: Database, referring: None) -> None:
    """A foreign key of the user's keeps its own jobs, and no others, from being deleted (U2)."""
    assert run(db) == 18
    assert {row["idempotency_key"] for row in db.rows()} == {"3", "7"}
    assert run(db) == 0


def test_referenced_jobs_do_not_use_up_the_batches(db: Database, referring: None) -> None:
    """Jobs that stay are passed over in the batches that follow (U2)."""
    assert run(db, batch=2) == 18


def test_a_timeout_halves_the_batch(pg: Database) -> None:
    """Batches too large for the server's statement_timeout get smaller until they fit (U2)."""
    put_old(pg, 40)
    pg.execute(
        "CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.02); RETURN OLD; END $$"
    )
    pg.execute("CREATE TRIGGER take_long BEFORE DELETE ON job FOR EACH ROW EXECUTE FUNCTION take_long()")
    try:
        limited = create_engine(pg.url, connect_args={"options": "-c statement_timeout=300"})
        assert run(pg, engine=limited, batch=40) == 40
        assert pg.rows() == []
    finally:
        pg.execute("DROP TRIGGER take_long ON job")
        pg.execute("DROP FUNCTION take_long")
