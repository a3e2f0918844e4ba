"""Whether a worker is alive and ready, as its own threads show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from apps.embedding import FAST, base_of, job_class, put, working
from brooq_sa import OptionError, SettingsError, Worker
from brooq_sa.observer import Observer
from brooq_sa.worker import health
from brooq_sa.worker.health import Beat, Health
from brooq_sa.worker.loop import Loop
from databases import Database
from waiting import wait_until

LEASE = timedelta(seconds=30)
PERIOD = LEASE / 3


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: self.now))


class Late(Observer):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def beaten(self, late: float) -> None:
        self.seconds.append(late)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class TestBeat:
    def test_lateness(self, clock: Clock) -> None:
        """A beat is late by what has passed since it was due; an early one, after a cancel, is not."""
        observer = Late()
        beat = Beat(lambda: 10.0, PERIOD, observer)
        for passed in (0.0, 10.0, 12.5, 1.0):
            clock.now += passed
            assert beat() == 10.0
        assert observer.seconds == pytest.approx([0.0, 2.5, 0.0])

    def test_a_beat_that_fails_is_late_in_the_end(self, clock: Clock) -> None:
        """What counts is when a renewal has succeeded: those that fail in between are none."""
        observer, fails = Late(), [False]

        def turn() -> float:
            if fails[0]:
                raise OSError("no route")
            return 10.0

        beat = Beat(turn, PERIOD, observer)
        beat()
        fails[0] = True
        for _ in range(3):
            clock.now += 5
            with pytest.raises(OSError, match="no route"):
                beat()
        fails[0] = False
        beat()
        assert observer.seconds[-1] == pytest.approx(5)

    def test_on_time(self, clock: Clock) -> None:
        """It is on time until more than one renewal has been missed, and not before the first."""
        beat = Beat(lambda: 10.0, PERIOD, Observer())
        found = [beat.is_on_time]
        beat()
        for passed in (19, 2):
            clock.now += passed
            found.append(beat.is_on_time)
        assert found == [False, True, False]


def loop(name: str, *, has_turned: bool = True, trouble: str | None = None, turned_at: float = 1_000.0) -> Any:
    """What a loop shows of itself."""
    return SimpleNamespace(name=name, has_turned=has_turned, trouble=trouble, turned_at=turned_at, has_ended=False)


def healthy(clock: Clock, *loops: Any, busy_since: float | None = None) -> Health:
    beat = Beat(lambda: 10.0, PERIOD, Observer())
    beat()
    reserved: Any = SimpleNamespace(_busy_since=busy_since)
    return Health(loops, [reserved], beat, LEASE)


class TestHealth:
    def test_ready(self, clock: Clock) -> None:
        """With claims and heartbeats that succeed it is ready; trouble of what only supports does not matter (W2)."""
        supporting = [loop(name, trouble="E") for name in ("listener", "metrics", "upkeep")]
        assert healthy(clock, loop("claiming"), loop("heartbeat"), *supporting).unready() == []

    @pytest.mark.parametrize("name", ["claiming", "settling", "heartbeat"])
    def test_a_part_that_fails(self, clock: Clock, name: str) -> None:
        """The reason names the part and its trouble (W2)."""
        assert healthy(clock, loop("claiming"), loop(name, trouble="no route")).unready() == [f"{name} fails: no route"]

    def test_before_the_first_claim(self, clock: Clock) -> None:
        """It is not ready until the database has answered once (W2)."""
        found = healthy(clock, loop("claiming", has_turned=False))
        assert found.unready() == ["the database has not been asked for jobs yet"]

    def test_late_heartbeats(self, clock: Clock) -> None:
        """It is not ready while leases may run out (W2)."""
        found = healthy(clock, loop("claiming"))
        clock.now += 25
        assert found.unready() == ["heartbeats are late, and leases hold for 30s"]

    def test_a_silent_database(self, clock: Clock) -> None:
        """A statement that goes on for too long is a reason, before anything has failed (W2)."""
        assert healthy(clock, loop("claiming"), busy_since=995.0).unready() == []
        assert healthy(clock, loop("claiming"), busy_since=980.0).unready() == ["the database does not answer"]

    @pytest.mark.parametrize(
        "change, is_alive",
        [
            ({"trouble": "no route"}, True),
            ({"turned_at": 985.0}, False),
            ({"has_ended": True}, False),
        ],
    )
    def test_alive(self, clock: Clock, change: dict[str, Any], is_alive: bool) -> None:
        """Threads that turn, with or without success, are alive; one that has ended or stands still is not (W2)."""
        watchdog = loop("watchdog")
        vars(watchdog).update(change)
        assert healthy(clock, watchdog).is_alive() is is_alive

    def test_a_heartbeat_may_take_its_time(self, clock: Clock) -> None:
        """In an outage a heartbeat waits for the network: only far beyond that it stands still (W2)."""
        assert healthy(clock, loop("heartbeat", turned_at=950.0)).is_alive()
        assert not healthy(clock, loop("heartbeat", turned_at=850.0)).is_alive()


def test_a_worker_says_how_it_is(db: Database) -> None:
    """Before it starts, while it works and when it stops, a worker knows whether it is ready (W2)."""
    job = job_class(lambda job, claim: None)
    worker = Worker(db.engine, base_of(job), **FAST)
    assert (worker.unready, worker.is_alive) == (["the worker has not been started"], False)
    worker.start()
    wait_until(lambda: not worker.unready, what="readiness")
    assert worker.is_alive
    assert worker.http_address is None
    worker.stop()
    assert (worker.unready, worker.is_alive) == (["the worker is stopping"], False)


def test_busy_slots_are_no_fault(db: Database) -> None:
    """A worker whose slots are all taken for long claims nothing, and is ready all the same (W2)."""
    release = threading.Event()
    job = job_class(lambda job, claim: release.wait(20))
    with working(db, base_of(job), workers=1, lease="3s") as worker:
        put(db, job())
        wait_until(lambda: "processing" in db.states() and not worker.unready, what="the job being taken")
        began_at = time.monotonic()
        while time.monotonic() - began_at < 3.5:  # longer than a lease
            assert (worker.unready, worker.is_alive) == ([], True)
            time.sleep(0.05)
        release.set()


def test_an_address_that_is_none(sqlite: Database) -> None:
    """An address without a port is refused when the worker is made (U3)."""
    job = job_class(lambda job, claim: None)
    with pytest.raises(OptionError, match="is not host:port"):
        Worker(sqlite.engine, base_of(job), http_addr="nowhere")
    assert Worker(sqlite.engine, base_of(job), http_addr="off")._observation is None


def test_a_worker_that_gets_no_address_is_not_started(sqlite: Database) -> None:
    """A taken address is a SettingsError of `start`, after which nothing runs, and another start may succeed (W2)."""
    job = job_class(lambda job, claim: None)
    registry = CollectorRegistry()
    with Worker(sqlite.engine, base_of(job), http_addr="127.0.0.1:0", metrics=registry, **FAST) as first:
        address = first.http_address
        assert address is not None
        second = Worker(sqlite.engine, base_of(job), http_addr=address, metrics=registry, **FAST)
        before = threading.active_count()
        with pytest.raises(SettingsError, match=r"http_addr \(HTTP_ADDR\): .* cannot be had"):
            second.start()
        assert threading.active_count() == before
    with _stopping(second):
        second.start()
        assert second.http_address == address


@contextmanager
def _stopping(worker: Worker) -> Iterator[None]:
    try:
        yield
    finally:
        worker.stop()


class Errors(Observer):
    def __init__(self) -> None:
        self.parts: list[str] = []

    def failed(self, part: str) -> None:
        self.parts.append(part)


@pytest.mark.parametrize("table, is_counted", [("job", True), (None, False)])
def test_errors_of_the_database_are_told(
    sqlite: Database, table: str | None, is_counted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop tells of each error of the database, and of no other; its lines say whose it is (W2, W3)."""

    def turn() -> float:
        if table is None:
            raise ZeroDivisionError
        with sqlite.engine.connect() as connection:
            connection.exec_driver_sql("SELECT nothing FROM nowhere")
        return 0.0

    observer = Errors()
    made = _run(Loop("trying", turn, longest_pause=timedelta(milliseconds=10), worker="mill-1", observer=observer))
    assert (len(observer.parts) > 0) is is_counted
    assert not made.has_turned
    assert "event=trying_failed" in caplog.text
    assert "worker=mill-1" in caplog.text


def _run(made: Loop, until: Callable[[], bool] = lambda: True) -> Loop:
    began_at = made.turned_at
    made.start()
    wait_until(lambda: made.turned_at > began_at + 0.05 and until(), what="some turns")
    made.stop(5)
    return made
