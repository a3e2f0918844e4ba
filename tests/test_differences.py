"""What docs/databases.md says of the differences between PostgreSQL and SQLite is so."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, NullPool, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

import brooq_sa
from brooq_sa import Claim, JobBase, NewJob, RawJob, StopCause, Worker, enqueue, enqueue_many, migrations
from brooq_sa.functions import now
from brooq_sa.store import JobStore
from databases import JOB, Database
from waiting import wait_until

STORE = JobStore(JOB)
LEASE = timedelta(minutes=1)


class AppJob(JobBase):
    metadata = MetaData()


class Untyped(AppJob, topic="untyped"):
    value: Any


class Typed(AppJob, topic="typed"):
    value: float


class Reading(AppJob, topic="reading"):
    """A job whose handler holds a transaction open, until it is told to stop or the test lets it go."""

    def run(self, claim: Claim) -> None:
        claim.session.execute(text("SELECT 1"))
        OPENED.set()
        while not claim.should_stop.wait(0.01) and not LET_GO.is_set():
            pass
        CAUSES.append(claim.cause)


OPENED, LET_GO = threading.Event(), threading.Event()
CAUSES: list[StopCause | None] = []


class QueueJob(JobBase):
    """A base whose table lies in a schema."""

    metadata = MetaData()
    schema = "queue"


class Ran(QueueJob, topic="ran"):
    def run(self, claim: Claim) -> None:
        claim.session.execute(text("SELECT 1"))


def carried(db: Database, job: Any) -> tuple[str, Any]:
    """The payload of a job as it was stored, and the job's value as a handler would get it."""
    with db.engine.begin() as connection:
        enqueue(connection, job)
        [claimed] = STORE.claim(connection, {job.__kind__.topic: 1}, room=1, worker="me", lease=LEASE)
    return claimed.payload, job.__kind__.codec.decode(claimed.payload).value


@contextmanager
def counted(connection: Connection) -> Iterator[list[str]]:
    """The statements that are sent on the connection inside the block."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        sent.append(sql)

    event.listen(connection, "before_cursor_execute", note)
    yield sent
    event.remove(connection, "before_cursor_execute", note)


def test_jsonb_orders_the_keys_of_an_object(db: Database) -> None:
    """PostgreSQL stores the keys of an object by length, SQLite as they came; the value is equal all the same."""
    stored, value = carried(db, Untyped(value={"bb": 1, "c": 2, "a": 3}))
    keys = sorted(["a", "bb", "c"], key=lambda key: stored.index(f'"{key}"'))
    assert keys == {"postgresql": ["a", "c", "bb"], "sqlite": ["bb", "c", "a"]}[db.name]
    assert value == {"a": 3, "bb": 1, "c": 2}


def test_jsonb_has_no_negative_zero(db: Database) -> None:
    """On PostgreSQL -0.0 comes back as 0.0."""
    _, value = carried(db, Typed(value=-0.0))
    assert str(value) == {"postgresql": "0.0", "sqlite": "-0.0"}[db.name]


def test_jsonb_keeps_the_last_of_two_equal_keys(db: Database) -> None:
    """Of a hand-written object with a key twice, PostgreSQL stores the last; both databases' readers get that."""
    db.execute(
        "INSERT INTO job (topic, payload) VALUES ('untyped', '{\"value\": 1, \"value\": 2}')".replace(":", "\\:")
    )
    with db.engine.begin() as connection:
        [claimed] = STORE.claim(connection, {"untyped": 1}, room=1, worker="me", lease=LEASE)
    assert claimed.payload.count("value") == {"postgresql": 1, "sqlite": 2}[db.name]
    assert Untyped.__kind__.codec.decode(claimed.payload) == Untyped(value=2)


def test_a_payload_written_by_hand_must_be_json(db: Database) -> None:
    """Both databases refuse a payload that is not JSON."""
    with pytest.raises(DBAPIError, match=r"json|job_payload_check"):
        db.execute("INSERT INTO job (topic, payload) VALUES ('by.hand', 'not JSON')")
    [row] = db.execute("INSERT INTO job (topic, payload) VALUES ('by.hand', '{}') RETURNING state")
    assert row["state"] == "pending"


def test_ids_are_hexadecimal_text_on_sqlite(db: Database) -> None:
    """On SQLite an id is 32 characters without dashes; on both databases it is found by those."""
    with db.engine.begin() as connection:
        job_id = enqueue(connection, Typed(value=1.0)).id
    [row] = db.execute(f"SELECT id FROM job WHERE id = '{job_id.hex}'")
    assert row["id"] == (job_id if db.name == "postgresql" else job_id.hex)
    assert len(db.execute(f"SELECT id FROM job WHERE id = '{job_id}'")) == (1 if db.name == "postgresql" else 0)


def test_the_clock_of_sqlite_ticks_in_milliseconds(db: Database) -> None:
    """SQLite's clock has milliseconds, PostgreSQL's microseconds."""
    with db.engine.connect() as connection:
        moments = [connection.execute(select(now())).scalar_one() for _ in range(20)]
    assert all(moment.microsecond % 1_000 == 0 for moment in moments) is (db.name == "sqlite")


def test_a_claim_is_one_statement_or_two_for_each_topic_and_priority(db: Database) -> None:
    """PostgreSQL claims from many topics and priorities at once; SQLite looks for each priority and takes from it."""
    with db.engine.begin() as connection:
        enqueue_many(connection, [NewJob(Typed(value=1.0), priority=1), NewJob(Typed(value=2.0), priority=2)])
        enqueue(connection, Untyped(value=3))
    with db.engine.begin() as connection, counted(connection) as sent:
        assert len(STORE.claim(connection, {"typed": 9, "untyped": 9}, room=9, worker="me", lease=LEASE)) == 3
    # On SQLite: two priorities and a look for a third, one priority and a look for a second.
    assert len(sent) == {"postgresql": 1, "sqlite": 5 + 3}[db.name]


def test_many_jobs_are_one_statement_on_postgresql(db: Database) -> None:
    """Jobs with keys go one by one on SQLite, all others together."""
    jobs = [NewJob(RawJob("a", number), key=f"key {number}" if number < 3 else None) for number in range(100)]
    with db.engine.begin() as connection:
        enqueue(connection, RawJob("a", None))  # takes the wake-up, which would be a statement more
        with counted(connection) as sent:
            enqueue_many(connection, jobs)
    assert len([sql for sql in sent if "INSERT" in sql]) == {"postgresql": 1, "sqlite": 1 + 3}[db.name]


@pytest.fixture
def reading(request: pytest.FixtureRequest, db: Database) -> Iterator[None]:
    """A handler that has its session open, under a lease that is the fixture's parameter."""
    OPENED.clear()
    LET_GO.clear()
    CAUSES.clear()
    with db.engine.begin() as connection:
        enqueue(connection, Reading())
    try:
        with Worker(db.engine, AppJob, topics=["reading"], poll_interval="20ms", lease=request.param):
            assert OPENED.wait(30)
            yield
            LET_GO.set()
            wait_until(lambda: CAUSES, what="the handler's end")
    finally:
        LET_GO.set()


@pytest.mark.parametrize("reading", ["1s"], indirect=True)
@pytest.mark.usefixtures("reading")
def test_a_long_transaction_keeps_its_job_on_both(db: Database) -> None:
    """A handler that holds claim.session open for longer than the lease keeps its job (T4).

    On PostgreSQL its lease is renewed. SQLite's heartbeat cannot write meanwhile, but nor can anybody take the job.
    """
    if db.name == "sqlite":  # whose writer lets nobody look
        runs_out = datetime.now(UTC) + timedelta(seconds=1)
        wait_until(lambda: datetime.now(UTC) > runs_out + timedelta(seconds=1), what="the lease running out")
    else:
        first = db.row()["locked_until"]
        wait_until(lambda: db.row()["locked_until"] > first + timedelta(seconds=1), what="the lease being renewed")
    assert CAUSES == []
    LET_GO.set()
    wait_until(lambda: db.row()["state"] == "done", what="the job being done")
    assert db.row()["attempts"] == 1


@pytest.mark.parametrize("reading", ["2m"], indirect=True)
@pytest.mark.usefixtures("reading")
def test_a_handlers_transaction_keeps_writers_out_on_sqlite(db: Database) -> None:
    """While claim.session is open, an enqueue elsewhere waits on SQLite, and does not on PostgreSQL."""
    impatient = create_engine(db.url, poolclass=NullPool)
    if db.name == "sqlite":
        brooq_sa.sqlite.configure(impatient, busy_timeout=timedelta(milliseconds=50))
    refused = pytest.raises(OperationalError, match="locked") if db.name == "sqlite" else nullcontext()
    with refused, impatient.begin() as connection:
        enqueue(connection, RawJob("other", None))
    assert CAUSES == []


def test_a_schema_is_an_attached_database_on_sqlite(db: Database, tmp_path: Path) -> None:
    """With schema= jobs lie in another schema on PostgreSQL, and in an attached file on SQLite."""
    if db.name == "sqlite":
        event.listen(
            db.engine, "connect", lambda driver, _: driver.execute(f"ATTACH '{tmp_path / 'queue.db'}' AS queue")
        )
        db.engine.dispose()
    migrations.upgrade(db.engine, schema="queue")
    with db.engine.begin() as connection:
        enqueue(connection, Ran(), key="key")
    with Worker(db.engine, QueueJob, poll_interval="20ms"):
        wait_until(lambda: states_in_queue(db) == ["done"], what="the job being done")
    if db.name == "postgresql":
        db.execute("DROP SCHEMA queue CASCADE")


def states_in_queue(db: Database) -> list[str]:
    return [row["state"] for row in db.execute("SELECT state FROM queue.job")]


def test_the_worker_is_read_committed_whatever_the_engine_is(pg: Database) -> None:
    """A worker on an engine at SERIALIZABLE claims and settles at READ COMMITTED."""
    engine = create_engine(pg.url, isolation_level="SERIALIZABLE")
    with engine.begin() as connection:
        job_id = enqueue(connection, RawJob("typed", {"value": 1.0})).id
    levels: list[str] = []

    def note(connection: Connection, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("UPDATE job"):
            levels.append(str(connection.get_isolation_level()))

    @Typed.handler
    def handle(job: Typed, claim: Claim) -> None:
        pass

    event.listen(type(engine), "before_cursor_execute", note)
    try:
        with Worker(engine, AppJob, poll_interval="20ms"):
            wait_until(lambda: pg.row(job_id)["state"] == "done", what="the job being done")
    finally:
        event.remove(type(engine), "before_cursor_execute", note)
        engine.dispose()
    assert levels
    assert set(levels) <= {"READ COMMITTED", "AUTOCOMMIT"}


def test_a_new_id_is_of_version_7(db: Database) -> None:
    """Enqueues bring ids of version 7; rows inserted by hand get random ones."""
    with db.engine.begin() as connection:
        enqueued = enqueue(connection, Typed(value=1.0)).id
    db.execute("INSERT INTO job (topic, payload) VALUES ('by.hand', '{}')")
    by_hand = db.rows(topic="by.hand")[0]["id"]
    assert (enqueued.version, type(by_hand)) == (7, uuid.UUID)
    assert by_hand.version == 4 or db.name == "sqlite"
