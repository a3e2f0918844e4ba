"""Wake-ups: who is told of what, and when."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Iterator

import pytest
from psycopg import Notify
from sqlalchemy import Connection, create_engine, event

from brooq_sa import Claim, JobBase, RawJob, StopCause, Worker, cancel, enqueue, wake
from brooq_sa.jobs import default_table
from databases import Database
from waiting import wait_until

TABLE = default_table()


class Waking(JobBase): ...


CAUSES: list[StopCause | None] = []
STARTED = threading.Event()


class Waiting(Waking, topic="waiting"):
    def run(self, claim: Claim) -> None:
        STARTED.set()
        claim.should_stop.wait(30)
        CAUSES.append(claim.cause)


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.jobs = 0
        self.canceled: list[uuid.UUID] = []

    def jobs_enqueued(self) -> None:
        self.jobs += 1

    def job_canceled(self, job_id: uuid.UUID) -> None:
        self.canceled.append(job_id)


@pytest.fixture
def ear() -> Iterator[Ear]:
    """A worker of this process, as far as wake-ups go."""
    listening = Ear()
    wake.listen(TABLE, listening)
    yield listening
    wake.unlisten(TABLE, listening)


@pytest.fixture
def topic() -> str:
    """A topic that nobody has notified of."""
    return f"topic-{uuid.uuid4().hex}"


@pytest.fixture
def notified(pg: Database) -> Iterator[list[str]]:
    """The hints that other processes get; look with `heard`."""
    hints: list[str] = []
    engine = create_engine(pg.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f'LISTEN "{wake.channel(TABLE)}"')
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.add_notify_handler(lambda hint: hints.append(_payload(hint)))
        hints_and_connection.append((hints, connection))
        yield hints
        hints_and_connection.pop()
    engine.dispose()


hints_and_connection: list[tuple[list[str], Connection]] = []


def _payload(hint: Notify) -> str:
    return hint.payload


def heard() -> list[str]:
    """What has been notified by now: a round trip brings it."""
    hints, connection = hints_and_connection[-1]
    connection.exec_driver_sql("SELECT 1")
    return hints


def test_nobody_is_told_before_the_commit_nor_of_a_rollback(db: Database, ear: Ear, topic: str) -> None:
    """Savepoints and rollbacks tell nobody; the transaction's end tells once, whatever the number of jobs (I9)."""
    with db.engine.connect() as connection:
        with connection.begin() as transaction:
            enqueue(connection, RawJob(topic, 1))
            transaction.rollback()
        with connection.begin():
            with connection.begin_nested():
                enqueue(connection, RawJob(topic, 2))
            enqueue(connection, RawJob(topic, 3))
            assert ear.jobs == 0
        assert ear.jobs == 1


def test_one_connection_keeps_one_listener(db: Database, ear: Ear, topic: str) -> None:
    """A connection that enqueues many times tells once a commit, and what it keeps goes with it."""
    connection = db.engine.connect()
    for count in range(1, 51):
        with connection.begin():
            enqueue(connection, RawJob(topic, count))
        assert ear.jobs == count
    assert len(list(connection.dispatch.commit)) <= 2
    pending = weakref.ref(wake._pending[connection])
    connection.close()
    del connection
    gc.collect()
    assert pending() is None


def test_a_transaction_that_is_open_or_rolled_back_silences_nobody(
    pg: Database, notified: list[str], topic: str
) -> None:
    """Only what was committed spares a later notification (I9)."""
    with pg.engine.connect() as first, pg.engine.connect() as second:
        first.begin()
        enqueue(first, RawJob(topic, 1))
        with second.begin():
            enqueue(second, RawJob(topic, 2))
        wait_until(lambda: heard() == [wake.JOBS + topic], what="the second's notification")
        first.rollback()


def test_a_savepoint_that_is_rolled_back_silences_nobody(pg: Database, notified: list[str], topic: str) -> None:
    """A notification that went with its savepoint is sent again for the next job."""
    with pg.engine.begin() as connection:
        with connection.begin_nested() as savepoint:
            enqueue(connection, RawJob(topic, 1))
            savepoint.rollback()
        enqueue(connection, RawJob(topic, 2))
    wait_until(lambda: heard() == [wake.JOBS + topic], what="the notification")


def test_a_two_phase_transaction_sends_nothing(pg: Database, topic: str) -> None:
    """PostgreSQL prepares no transaction that has notified, so one to be prepared does not."""
    sent: list[str] = []
    event.listen(pg.engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    with pg.engine.connect() as connection:
        transaction = connection.begin_twophase()
        enqueue(connection, RawJob(topic, 1))
        transaction.rollback()
    assert any("INSERT" in statement for statement in sent)
    assert not any("pg_notify" in statement for statement in sent)


def test_a_cancel_in_the_same_process_is_heard_at_once(db: Database) -> None:
    """A running handler is told within moments, without any channel between processes (T5)."""
    CAUSES.clear()
    STARTED.clear()
    with Worker(db.engine, Waking, wake=False, lease="60s", poll_interval="50ms"):
        with db.engine.begin() as connection:
            job_id = enqueue(connection, Waiting()).id
        assert STARTED.wait(20)
        with db.engine.begin() as connection:
            cancel(connection, Waking, job_id)
        wait_until(lambda: CAUSES == [StopCause.CANCELED], timeout=10, what="the handler being told")


class SomeConnection: ...


class Pacing:
    """A limiter, and a clock that the test moves; every notification that may be sent is, and commits."""

    TOPIC = ("channel", "topic")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.limiter = wake._Limiter()

    def enqueue(self) -> bool:
        """Commit a job; whether its own notification is sent."""
        if not self.limiter.allows(*self.TOPIC, SomeConnection()):
            return False
        self.limiter.count(*self.TOPIC)
        return True

    def sent(self, seconds: float, every: float) -> list[float]:
        """When notifications were sent, from now on for so long, while jobs come at that interval."""
        began, sent = self.now, []
        while self.now < began + seconds:
            if self.enqueue():
                sent.append(self.now - began)
            self.now += every
        return sent


@pytest.fixture
def pacing(monkeypatch: pytest.MonkeyPatch) -> Pacing:
    return Pacing(monkeypatch)


def test_each_job_of_a_trickle_sends_its_own(pacing: Pacing) -> None:
    """One that comes SPACING after the last, or later, waits for nobody's look."""
    assert len(pacing.sent(1.0, every=wake.SPACING + 1e-6)) == 50


def test_many_jobs_of_one_transaction_are_no_flood(pacing: Pacing) -> None:
    """They become visible together; what one asks for counts once."""
    pacing.enqueue()
    connection = SomeConnection()
    assert not any(pacing.limiter.allows(*pacing.TOPIC, connection) for _ in range(100))
    pacing.now += wake.SPACING + 1e-6
    assert pacing.limiter.allows(*pacing.TOPIC, connection)


def test_few_jobs_at_once_are_no_flood(pacing: Pacing) -> None:
    """The next that comes once SPACING has passed sends again."""
    assert [pacing.enqueue() for _ in range(wake.FLOOD)] == [True] + [False] * (wake.FLOOD - 1)
    pacing.now += wake.SPACING + 1e-6
    assert pacing.enqueue()


def test_a_flood_sends_few(pacing: Pacing) -> None:
    """No more than one every FLOOD_SPACING."""
    sent = pacing.sent(2.0, every=0.002)
    assert len(sent) == 2.0 / wake.FLOOD_SPACING
    assert all(after - before < wake.FLOOD_SPACING + 0.004 for before, after in itertools.pairwise(sent))


def test_after_a_flood(pacing: Pacing) -> None:
    """The first job after a gap in which a look may have found nothing sends its own."""
    pacing.sent(0.1, every=0.002)
    assert not pacing.enqueue()
    pacing.now += wake.SPACING + 1e-6
    assert pacing.enqueue()


def test_a_look_falls_into_every_gap_of_a_flood() -> None:
    """Jobs without a notification are less than SPACING apart, and looks that find jobs go on every LOOK_AGAIN."""
    assert wake.LOOK_AGAIN > wake.SPACING


class Flood(JobBase): ...


RAN: list[int] = []


class OneOfMany(Flood, topic="one-of-many"):
    number: int

    def run(self, claim: Claim) -> None:
        RAN.append(self.number)


def test_the_last_of_a_flood_is_not_left_to_the_poll_interval(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another process runs all soon, though the last sent no notification."""
    monkeypatch.setattr(wake, "tell_of_jobs", lambda *_: None)  # or this process's worker would hear directly
    RAN.clear()
    with Worker(pg.engine, Flood, workers=4, poll_interval="60s"):
        for number in range(400):
            with pg.engine.begin() as connection:
                enqueue(connection, OneOfMany(number=number))
            if number % 100 == 99:
                wait_until(lambda number=number: len(RAN) > number, timeout=30, what="all that were enqueued done")  # type: ignore[misc]
    assert sorted(RAN) == list(range(400))
