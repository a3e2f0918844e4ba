"""The doctor's checks of the tables: each finds its condition on a real database, and nothing before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from brooq_sa import sqlite as sqlite_setup
from brooq_sa.doctor import Level
from databases import Database

MANY = """
    INSERT INTO job (topic, payload) SELECT 'many', '1' FROM generate_series(1, 12000)"""


def levels(findings: Any) -> list[Level]:
    return [each.level for each in findings]


def test_a_missing_table(check: Any, make_pg_database: Any, tmp_path: Path) -> None:
    """No job table at all is a fault, on both databases."""
    file = tmp_path / "empty.sqlite"
    file.touch()
    for url in (make_pg_database(), f"sqlite:///{file}"):
        engine = create_engine(url)
        [found] = check(engine, "schema")
        engine.dispose()
        assert (found.level, found.what) == (Level.FAULT, "There is no table job.")


def test_drift(check: Any, own: Database) -> None:
    """An index more is a note; a constraint less is a fault, with the statement that brings it back."""
    assert levels(check(own.engine, "schema")) == [Level.OK]
    own.execute("CREATE INDEX mine ON job (created_at)")
    assert levels(check(own.engine, "schema")) == [Level.NOTE]
    own.execute("ALTER TABLE job DROP CONSTRAINT job_topic_check")
    found = next(each for each in check(own.engine, "schema") if each.level is Level.FAULT)
    assert "job_topic_check" in found.what
    assert "ADD CONSTRAINT" in found.cure


def test_drift_on_sqlite(check: Any, sqlite: Database) -> None:
    """The same on SQLite."""
    assert levels(check(sqlite.engine, "schema")) == [Level.OK]
    sqlite.execute("DROP TRIGGER job_insert_instants")
    [found] = check(sqlite.engine, "schema")
    assert (found.level, "job_insert_instants" in found.what) == (Level.FAULT, True)


def test_another_revision(check: Any, own: Database) -> None:
    """Tables that are one revision ahead are noted, and those further off a fault."""
    own.execute("COMMENT ON TABLE job IS 'Jobs of brooq-sa, at revision brooq_0002'")
    assert levels(check(own.engine, "schema")) == [Level.NOTE]
    own.execute("COMMENT ON TABLE job IS 'Jobs of brooq-sa, at revision brooq_0009'")
    assert levels(check(own.engine, "schema")) == [Level.FAULT]


def test_a_missing_index(check: Any, db: Database, own: Database) -> None:
    """An index that is gone is a fault."""
    target = db if db.name == "sqlite" else own
    assert levels(check(target.engine, "indexes")) == [Level.OK]
    target.execute("DROP INDEX job_held_idx")
    [found] = check(target.engine, "indexes")
    assert (found.level, "job_held_idx" in found.what) == (Level.FAULT, True)


def test_grants(check: Any, own: Database) -> None:
    """A role that may only look is noted with what a worker needs; one that may not look is told what to have run."""
    assert levels(check(own.engine, "grants")) == [Level.OK]
    own.execute("CREATE ROLE doctor_viewer LOGIN")
    viewer = create_engine(make_url(own.url).set(username="doctor_viewer"))
    try:
        [found] = check(viewer, "grants")
        assert (found.level, "GRANT SELECT ON job TO doctor_viewer;" in found.cure) == (Level.WARNING, True)
        own.execute("GRANT SELECT ON job, job_worker, job_pause TO doctor_viewer")
        [found] = check(viewer, "grants")
        assert (found.level, "UPDATE on job" in found.what) == (Level.NOTE, True)
        own.execute("ALTER TABLE job ENABLE ROW LEVEL SECURITY")
        assert "Row security" in check(viewer, "grants")[0].what
    finally:
        viewer.dispose()
        own.execute("DROP OWNED BY doctor_viewer CASCADE")
        own.execute("DROP ROLE doctor_viewer")


def test_the_plan_of_a_claim(check: Any, own: Database) -> None:
    """A claim that would read the whole table is found, and nothing is claimed by looking."""
    own.execute(MANY)
    own.execute("ANALYZE job")
    assert levels(check(own.engine, "claim plan")) == [Level.OK]
    own.execute("DROP INDEX job_ready_idx")
    [found] = check(own.engine, "claim plan")
    assert (found.level, "Seq Scan" in found.facts["nodes"]) == (Level.WARNING, True)
    assert set(own.states()) == {"pending"}


def test_statistics(check: Any, own: Database) -> None:
    """A large table that was never analyzed, and one that has grown a hundredfold since, are found."""
    assert levels(check(own.engine, "statistics")) == [Level.OK]
    _insert_many(own)
    [found] = check(own.engine, "statistics")
    assert "never been analyzed" in found.what
    own.execute("ANALYZE job")
    assert levels(check(own.engine, "statistics")) == [Level.OK]
    own.execute("TRUNCATE job")
    own.execute("INSERT INTO job (topic, payload) VALUES ('few', '1')")
    own.execute("ANALYZE job")
    _insert_many(own)
    [found] = check(own.engine, "statistics")
    assert (found.level, found.what.startswith("The planner believes in 1 rows")) == (Level.WARNING, True)


def _insert_many(database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(MANY))
    with database.engine.connect() as connection:
        connection.execute(text("SELECT pg_stat_force_next_flush()"))


@pytest.mark.parametrize("wal", [True, False])
def test_the_journal(check: Any, tmp_path: Path, wal: bool) -> None:
    """A SQLite file that is not in WAL mode is found."""
    engine = sqlite_setup.configure(create_engine(f"sqlite:///{tmp_path / 'journal.sqlite'}"), wal=wal)
    assert levels(check(engine, "journal")) == [Level.OK if wal else Level.WARNING]
    engine.dispose()


def test_a_file_that_is_locked(check: Any, sqlite: Database) -> None:
    """Somebody who holds the lock to write is found, by whoever reads and waits for nobody; an own lock is none."""
    reading = sqlite.engine.execution_options(brooq_begin="DEFERRED")
    assert levels(check(reading, "locks")) == [Level.OK]
    assert levels(check(sqlite.engine, "locks")) == [Level.OK]
    with sqlite.engine.begin():
        [found] = check(reading, "locks")
        assert (found.level, str(sqlite.engine.url.database) in found.cure) == (Level.FAULT, True)
    assert levels(check(reading, "locks")) == [Level.OK]


def test_the_setup(check: Any, sqlite: Database) -> None:
    """An engine on SQLite that nobody configured is a fault, and one without patience a warning."""
    assert levels(check(sqlite.engine, "setup")) == [Level.OK]
    plain = create_engine(sqlite.url, connect_args={"timeout": 0})
    assert levels(check(plain, "setup")) == [Level.FAULT, Level.WARNING]
    plain.dispose()
