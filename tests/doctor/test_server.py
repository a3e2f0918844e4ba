"""The doctor's checks of a PostgreSQL server: each finds its condition on a real one."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from brooq_sa.doctor import Level
from brooq_sa.statements import presence
from databases import JOB, Database
from waiting import wait_until

AT_ONCE = timedelta(0)


def levels(findings: Any) -> list[Level]:
    return [each.level for each in findings]


def options(url: str, **settings: str) -> Engine:
    """An engine whose sessions begin with these settings."""
    given = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return create_engine(make_url(url).update_query_dict({"options": given}))


def test_a_locked_table(check: Any, pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps claims out is named; the checks that must read the rows say that they could not, and soon."""
    monkeypatch.setattr("brooq_sa.doctor.server.MOMENT", 0.0)
    with pg.engine.connect() as connection:
        connection.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        [found] = check(pg.engine, "locks")
        [unseen] = check(pg.engine, "unserved")
        assert (found.level, unseen.level) == (Level.FAULT, Level.NOTE)
        assert f"process {pid} of postgres" in found.what
        assert found.cure.endswith(f"SELECT pg_terminate_backend({pid}).")
        assert "lock timeout" in unseen.what
        monkeypatch.setattr("brooq_sa.doctor.server.MOMENT", 3600.0)
        assert levels(check(pg.engine, "locks")) == [Level.OK]
        connection.rollback()
    monkeypatch.undo()
    assert levels(check(pg.engine, "locks")) == [Level.OK]


def test_a_long_vacuum_is_in_no_way(check: Any, own: Database) -> None:
    """A vacuum may take its time: it is no transaction that holds back anything."""
    own.execute("INSERT INTO job (topic, payload) SELECT 'x', '1' FROM generate_series(1, 5000)")
    slow = options(own.url, vacuum_cost_delay="50", vacuum_cost_limit="1")
    connection = slow.connect().execution_options(isolation_level="AUTOCOMMIT")
    vacuum = threading.Thread(target=_vacuum, args=(connection,))
    vacuum.start()
    try:
        running = "SELECT pid FROM pg_stat_progress_vacuum WHERE datname = current_database()"
        [row] = wait_until(lambda: own.execute(running))
        assert levels(check(own.engine, "transactions", long_transaction=AT_ONCE)) == [Level.OK]
    finally:
        own.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum")
        vacuum.join()
        slow.dispose()
    assert row["pid"]


def _vacuum(connection: Any) -> None:
    with contextlib.suppress(DBAPIError), connection:  # it is canceled
        connection.execute(text("VACUUM job"))


def test_bloat_and_a_vacuum_that_is_behind(check: Any, own: Database) -> None:
    """A table that is mostly dead rows is found, and that autovacuum should have come long ago."""
    assert levels(check(own.engine, "bloat")) == [Level.OK]
    with own.engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic, payload) SELECT 'x', '1' FROM generate_series(1, 12000)"))
        connection.execute(text("DELETE FROM job"))
    own.execute("SELECT pg_stat_force_next_flush()")
    [found] = check(own.engine, "bloat")
    assert (found.level, found.facts["dead"]) == (Level.WARNING, 12_000)
    behind = [each for each in check(own.engine, "autovacuum") if "is behind" in each.what]
    assert [each.facts["dead"] for each in behind] == [12_000]
    with own.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM job"))
    assert levels(check(own.engine, "bloat")) == [Level.OK]


def test_autovacuum_switched_off(check: Any, own: Database) -> None:
    """Autovacuum that is off, for the server or for the table, is found."""
    own.execute("ALTER TABLE job SET (autovacuum_enabled = false)")
    [server, table] = check(own.engine, "autovacuum")
    assert "on this server" in server.what
    assert "for the job table" in table.what
    assert "RESET (autovacuum_enabled)" in table.cure


def test_long_transactions(check: Any, pg: Database) -> None:
    """A transaction that holds a snapshot or has written is named by its process; one that is short is not told."""
    with pg.engine.connect() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid(), pg_current_xact_id()")).scalar_one()
        assert levels(check(pg.engine, "transactions")) == [Level.OK]
        [found] = check(pg.engine, "transactions", long_transaction=AT_ONCE)
    assert found.level is Level.WARNING
    assert f"process {pid} of" in found.what


def test_prepared_transactions(check: Any, own: Database) -> None:
    """A transaction that was prepared and forgotten is named."""
    assert levels(check(own.engine, "prepared", long_transaction=AT_ONCE)) == [Level.OK]
    with own.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ("BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'forgotten'"):
            connection.exec_driver_sql(statement)
        try:
            [found] = check(own.engine, "prepared", long_transaction=AT_ONCE)
        finally:
            connection.exec_driver_sql("ROLLBACK PREPARED 'forgotten'")
    assert (found.level, "'forgotten'" in found.what) == (Level.WARNING, True)


def test_replication_slots(check: Any, pg: Database) -> None:
    """A replication slot that nobody reads from is named, with what it holds back."""
    assert levels(check(pg.engine, "slots")) == [Level.OK]
    pg.execute("SELECT pg_create_physical_replication_slot('doctor_slot', true)")
    try:
        [found] = check(pg.engine, "slots")
    finally:
        pg.execute("SELECT pg_drop_replication_slot('doctor_slot')")
    assert found.level is Level.WARNING
    assert "doctor_slot is used by nobody, and holds back the write-ahead log" in found.what


def test_isolation(check: Any, pg: Database) -> None:
    """Another default isolation is a note, and transactions that only read are a fault."""
    assert levels(check(pg.engine, "isolation")) == [Level.OK]
    engine = options(pg.url, default_transaction_isolation="serializable", default_transaction_read_only="on")
    only_reads, level = check(engine, "isolation")
    engine.dispose()
    assert (only_reads.level, level.level) == (Level.FAULT, Level.NOTE)
    assert "SERIALIZABLE" in level.what


def test_generic_plans(check: Any, pg: Database) -> None:
    """A plan_cache_mode that is not the default is noted."""
    engine = options(pg.url, plan_cache_mode="force_generic_plan")
    [found] = check(engine, "prepared statements")
    engine.dispose()
    assert (found.level, found.facts) == (Level.NOTE, {"plan_cache_mode": "force_generic_plan"})


def test_connections(check: Any, pg: Database) -> None:
    """Live workers that may want more connections than the server has are found."""
    assert levels(check(pg.engine, "connections")) == [Level.OK]
    constant = {"its_id": "w", "its_host": "h", "its_pid": 1, "its_version": "1", "its_slots": 5_000}
    current = {"topics": [], "running": 0, "believed": 60.0, "reaps_in": 5.0}
    with pg.engine.begin() as connection:
        connection.execute(presence.announce(JOB, "postgresql"), constant | current)
    [found] = check(pg.engine, "connections")
    assert (found.level, found.facts["wanted"]) == (Level.WARNING, 5_005)


def test_a_limit_that_is_nearly_reached(check: Any, own: Database) -> None:
    """A database that allows a single connection is full as soon as we are there."""
    own.execute(f"ALTER DATABASE {make_url(own.url).database} CONNECTION LIMIT 1")
    assert check(own.engine, "connections")[0].what == "1 of the 1 connections of this database are in use."


def test_a_role_with_few_rights(check: Any, own: Database) -> None:
    """A role that sees little is told what it could not see, and no check fails for it."""
    own.execute("CREATE ROLE doctor_stranger LOGIN")
    stranger = create_engine(make_url(own.url).set(username="doctor_stranger"))
    try:
        [found] = check(stranger, "visibility")
        assert (found.level, "pg_monitor" in found.cure) == (Level.NOTE, True)
        [found] = check(stranger, "unserved")
        assert (found.level, "permission denied" in found.what) == (Level.NOTE, True)
    finally:
        stranger.dispose()
        own.execute("DROP ROLE doctor_stranger")


@pytest.mark.parametrize("threshold", [5, None])
def test_a_pooler(check: Any, pg: Database, monkeypatch: pytest.MonkeyPatch, threshold: int | None) -> None:
    """A session that is served by another process than it was told is pooled; prepared statements are then a risk."""
    engine = create_engine(pg.url, connect_args={"prepare_threshold": threshold})
    assert levels(check(engine, "pooler")) == [Level.OK]
    monkeypatch.setattr("psycopg.ConnectionInfo.backend_pid", 1)
    assert levels(check(engine, "pooler")) == [Level.NOTE]
    assert levels(check(engine, "prepared statements")) == [Level.WARNING if threshold else Level.OK]
    engine.dispose()
