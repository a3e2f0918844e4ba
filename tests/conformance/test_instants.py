"""Instants mean the same on both databases, in any time zone, from any hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from brooq_sa import NewJob, OptionError, State, enqueue, enqueue_many
from conformance.samples import (
    LEASE,
    STORE,
    Email,
    claim,
    claim_one,
    finish,
    purge,
    put,
    put_one,
    reap,
)
from databases import JOB, Database
from processes import Processes

NEW_YORK = ZoneInfo("America/New_York")

INSTANTS = {
    "utc": datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
    "kolkata": datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "first 01:30": datetime(2025, 11, 2, 1, 30, tzinfo=NEW_YORK, fold=0),
    "second 01:30": datetime(2025, 11, 2, 1, 30, tzinfo=NEW_YORK, fold=1),
    "no microseconds": datetime(2031, 1, 1, tzinfo=UTC),
    "odd offset": datetime(2031, 1, 1, tzinfo=timezone(-timedelta(hours=3, minutes=17, seconds=5))),
    "earliest": datetime(1970, 1, 1, tzinfo=UTC),
    "latest": datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
}


@pytest.mark.parametrize("instant", INSTANTS.values(), ids=INSTANTS)
def test_an_instant_is_kept_to_the_microsecond(db: Database, instant: datetime) -> None:
    """What is stored is the very instant, whichever zone it was given in and whichever way it was sent."""
    with db.engine.begin() as connection:
        enqueue(connection, Email(), available_at=instant)
        enqueue(connection, Email(), available_at=instant, key="key")
        enqueue_many(connection, [Email(), NewJob(Email(), "other")], available_at=instant)
    stored = {row["available_at"] for row in db.rows()}
    assert stored == {instant.astimezone(UTC)}
    assert {each.tzinfo for each in stored} == {UTC}


def test_an_hour_that_happens_twice_is_two_instants() -> None:
    """The two 01:30 of the night when clocks go back are an hour apart."""
    assert INSTANTS["second 01:30"].astimezone(UTC) - INSTANTS["first 01:30"].astimezone(UTC) == timedelta(hours=1)


OUT_OF_RANGE = {
    "naive": datetime(2031, 1, 1),  # noqa: DTZ001 - naive on purpose
    "naive year 1": datetime(1, 1, 1),  # noqa: DTZ001 - the same
    "year 1": datetime.min.replace(tzinfo=UTC),
    "year 1 east": datetime.min.replace(tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "1969": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    "9999": datetime(9999, 12, 31, tzinfo=UTC),
    "9999 west": datetime.max.replace(tzinfo=timezone(-timedelta(hours=8))),
}


@pytest.mark.parametrize("instant", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_what_the_databases_do_not_share_is_refused(db: Database, instant: datetime) -> None:
    """Naive datetimes, and instants that one of the databases or Python cannot hold, are refused at the enqueue."""
    with db.engine.begin() as connection:
        with pytest.raises(OptionError, match="available_at is"):
            enqueue(connection, Email(), available_at=instant)
        with pytest.raises(OptionError, match="available_at is"):
            enqueue_many(connection, [NewJob(Email(), available_at=instant)])
    assert db.rows() == []


CHILD = """
    import json, sys
    from datetime import UTC, datetime, timedelta, timezone
    from sqlalchemy import create_engine, select
    from brooq_sa import JobBase, enqueue
    from brooq_sa.sqlite import configure
    from brooq_sa.store import JobStore

    class Base(JobBase): ...
    class Job(Base, topic="email.send"):
        number: int

    engine = create_engine(sys.argv[1])
    if engine.dialect.name == "sqlite":
        configure(engine)
    now = datetime.now(UTC)
    east = now.astimezone(timezone(timedelta(hours=5, minutes=30)))
    with engine.begin() as connection:
        enqueue(connection, Job(number=1))
        enqueue(connection, Job(number=2), available_at=east - timedelta(seconds=1))
        enqueue(connection, Job(number=3), available_at=east + timedelta(hours=1))
        enqueue(connection, Job(number=4), delay="1h")
    with engine.begin() as connection:
        taken = JobStore(Base.__table__).claim(
            connection, {"email.send": 10}, room=10, worker="child", lease=timedelta(minutes=1)
        )
    with engine.connect() as connection:
        rows = connection.execute(select(Base.__table__)).mappings().all()
    print("TAKEN", json.dumps([json.loads(job.payload)["number"] for job in taken]))
    print("OFFSETS", json.dumps([
        round((row["available_at"] - now).total_seconds() / 60) for row in sorted(rows, key=lambda row: row["id"])
    ]))
"""


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_the_hosts_time_zone_does_not_matter(db: Database, processes: Processes, zone: str) -> None:
    """A process in any zone enqueues and claims by the same instants (I13)."""
    child = processes.script(CHILD, db.url, env={"TZ": zone})
    assert child.wait() == 0, child.output()
    assert "TAKEN [2, 1]" in child.output()
    assert "OFFSETS [0, 0, 60, 60]" in child.output()


def test_the_database_roles_time_zone_does_not_matter(pg: Database) -> None:
    """A role whose time zone is Tokyo's enqueues, claims and reads the same instants (I13)."""
    engine = create_engine(pg.url, connect_args={"options": "-c timezone=Asia/Tokyo"})
    instant = INSTANTS["kolkata"]
    with engine.begin() as connection:
        assert connection.execute(text("SHOW timezone")).scalar() == "Asia/Tokyo"
        enqueue_many(connection, [NewJob(Email(number=1), available_at=instant), Email(number=2)])
        assert len(STORE.claim(connection, {"email.send": 9}, room=9, worker="me", lease=LEASE)) == 1
        [stored] = connection.execute(JOB.select().where(JOB.c.state == "pending")).mappings()
    engine.dispose()
    assert stored["available_at"] == instant
    assert stored["available_at"].tzinfo is UTC
    taken = pg.rows(state="processing")[0]
    assert abs(taken["locked_until"] - taken["updated_at"] - LEASE) < timedelta(seconds=1)


HANDS: dict[str, tuple[str, int]] = {
    "current_timestamp": ("CURRENT_TIMESTAMP", 0),
    "datetime": ("datetime('now')", 0),
    "datetime shifted": ("datetime('now', '-10 minutes')", -600),
    "strftime T Z": ("strftime('%Y-%m-%dT%H:%M:%SZ', 'now')", 0),
    "strftime millis": ("strftime('%Y-%m-%d %H:%M:%f', 'now', '+10 minutes')", 600),
    "east": ("strftime('%Y-%m-%d %H:%M:%S+05:30', 'now', '+330 minutes')", 0),
    "west": ("strftime('%Y-%m-%dT%H:%M:%f-08:00', 'now', '-480 minutes')", 0),
    "date": ("strftime('%Y-%m-%d', 'now', '+2 days')", 0),
    "julian": ("julianday('now')", 0),
}


@pytest.mark.parametrize("expression, seconds", HANDS.values(), ids=HANDS)
def test_hand_written_instants_get_the_one_shape(sqlite: Database, expression: str, seconds: int) -> None:
    """On SQLite an instant in any spelling that SQLite knows is stored in one text shape, and compares as time."""
    insert = "INSERT INTO job (topic, payload, available_at) VALUES ('email.send', '{}'"
    sqlite.execute(f"{insert}, {expression})")
    put_one(sqlite)
    sqlite.execute(f"UPDATE job SET updated_at = {expression}, created_at = {expression}")
    columns = "available_at, created_at, updated_at"
    texts = [value for row in sqlite.execute(f"SELECT {columns} FROM job") for value in row.values()]
    assert {len(value) for value in texts} == {len("2026-01-31 09:30:00.000000")}
    assert all(datetime.strptime(value, "%Y-%m-%d %H:%M:%S.%f") for value in texts)  # noqa: DTZ007 - the shape alone
    if expression != HANDS["date"][0]:
        [by_hand] = [row for row in sqlite.rows() if row["payload"] == {}]
        assert abs((by_hand["available_at"] - datetime.now(UTC)).total_seconds() - seconds) < 60


@pytest.mark.parametrize("value", ["'soon'", "''", "'2026-13-45 00:00:00'", "'2026-01-31 25:00:00'"])
def test_what_is_no_instant_is_refused(db: Database, value: str) -> None:
    """Text that is no instant cannot be written into a job, by hand either."""
    put_one(db)
    with pytest.raises(SQLAlchemyError):
        db.execute(f"UPDATE job SET available_at = {value}")
    assert db.row()["available_at"] is not None
    if db.name == "sqlite":
        with pytest.raises(IntegrityError):
            db.execute(f"INSERT INTO job (topic, payload, available_at) VALUES ('a', '{{}}', {value})")


def make_rows(db: Database, moment: str) -> None:
    """Five jobs due at a moment: from our enqueue, from the table's default, from hands of three habits."""
    shapes = {
        "postgresql": [moment, f"{moment} AT TIME ZONE 'UTC' AT TIME ZONE 'UTC'", f"date_trunc('second', {moment})"],
        "sqlite": [
            moment,
            f"replace({moment}, ' ', 'T') || 'Z'",
            f"strftime('%Y-%m-%d %H:%M:%S+05:30', {moment}, '+330 minutes')",
        ],
    }[db.name]
    put_one(db)
    db.execute("INSERT INTO job (topic, payload) VALUES ('email.send', '{}')")
    for shape in shapes:
        db.execute(f"INSERT INTO job (topic, payload, available_at) VALUES ('email.send', '{{}}', {shape})")


def in_seconds(db: Database, seconds: int) -> str:
    """SQL for now and some seconds."""
    if db.name == "postgresql":
        return f"(statement_timestamp() + interval '{seconds} s')"
    return f"datetime('now', '{seconds:+} seconds')"


def test_due_times_are_exact_whoever_wrote_them(db: Database) -> None:
    """Rows of every origin are due at their instant to the second, later the same day included."""
    make_rows(db, in_seconds(db, 3600))
    assert len(claim(db)) == 2  # those due at once
    db.shift_clock(timedelta(seconds=3590))
    assert claim(db) == []
    db.shift_clock(timedelta(seconds=12))
    assert len(claim(db)) == 3


def test_expiry_and_retention_are_exact_whoever_wrote_them(db: Database) -> None:
    """Leases end and finished jobs grow old at their instant to the second, whichever shape a hand gave it."""
    make_rows(db, in_seconds(db, -1))
    assert len(claim(db)) == 5
    db.execute(f"UPDATE job SET locked_until = {in_seconds(db, 300)}")
    db.shift_clock(timedelta(seconds=290))
    assert reap(db) == []
    db.shift_clock(timedelta(seconds=12))
    assert len(reap(db)) == 5
    for _ in range(5):
        finish(db)
    db.execute(f"UPDATE job SET updated_at = {in_seconds(db, 0)}")
    db.shift_clock(timedelta(seconds=290))
    assert purge(db, ttl=timedelta(seconds=300)) == []
    db.shift_clock(timedelta(seconds=12))
    assert len(purge(db, ttl=timedelta(seconds=300))) == 5


def test_an_operators_sql_is_enough_to_put_a_job(db: Database) -> None:
    """A topic and a payload are all that an INSERT by hand needs; the rest has defaults of the database."""
    db.execute("""INSERT INTO job (topic, payload) VALUES ('email.send', '{"number": 5}')""")
    job = claim_one(db)
    assert (job.attempt, json.loads(job.payload), job.key) == (1, {"number": 5}, None)
    assert db.row()["state"] == State.PROCESSING


def test_the_clock_is_the_statements_not_the_transactions(db: Database) -> None:
    """A job enqueued late in a long transaction is due from then, and a claim in one sees what is due now (I13)."""
    with db.engine.begin() as connection:
        read_clock = (
            "SELECT clock_timestamp()" if db.name == "postgresql" else "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')"
        )
        begun = _instant(connection.execute(text(read_clock)).scalar())
        while (now := _instant(connection.execute(text(read_clock)).scalar())) - begun < timedelta(milliseconds=5):
            pass
        enqueue(connection, Email())
    assert db.row()["available_at"] >= now - timedelta(milliseconds=1)


def _instant(value: Any) -> datetime:
    parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(parsed, datetime)
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


@pytest.fixture
def own_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process in another time zone, as far as the C library goes."""
    import time

    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_this_process_in_another_zone(db: Database, own_zone: None) -> None:
    """A zone that is changed while the process runs changes nothing (I13)."""
    assert os.environ["TZ"] == "Pacific/Kiritimati"
    put(db, NewJob(Email(number=1), delay="1m"), Email(number=2))
    assert len(claim(db)) == 1
    db.shift_clock(timedelta(seconds=61))
    assert len(claim(db)) == 1
