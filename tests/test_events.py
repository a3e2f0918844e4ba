"""Typed facts, and who hears of them."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest

from apps.embedding import Heard, base_of, job_class, put, working
from brooq_sa import CancelJob, PreserveAttempt
from brooq_sa.events import Event, Events, JobCanceled, JobClaimed, JobDead, JobDone, JobFailed
from databases import Database

DONE = JobDone(uuid.uuid4(), "work", 1, "w", timedelta(seconds=1))


def test_subscribers_hear_each_event_in_order() -> None:
    """Everybody who has subscribed is told, in the order of publishing."""
    events, one, other = Events(), Heard(), Heard()
    events.subscribe(one)
    events.subscribe(other)
    second = dataclasses.replace(DONE, attempt=2)
    events.publish(DONE)
    events.publish(second)
    assert one.all(Event) == other.all(Event) == [DONE, second]


def test_unsubscribing() -> None:
    """The answer of `subscribe` ends it, and may be called twice."""
    events, heard = Events(), Heard()
    unsubscribe = events.subscribe(heard)
    events.publish(DONE)
    unsubscribe()
    unsubscribe()
    events.publish(DONE)
    assert heard.all(Event) == [DONE]


def test_subscribing_while_it_publishes() -> None:
    """A subscriber may subscribe others and unsubscribe itself."""
    events, late = Events(), Heard()

    def once(event: Event) -> None:
        events.subscribe(late)
        unsubscribe()

    unsubscribe = events.subscribe(once)
    events.publish(DONE)
    events.publish(DONE)
    assert late.all(Event) == [DONE]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), GeneratorExit()])
def test_what_a_subscriber_raises_goes_no_further(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, the other subscribers are told, and the publisher goes on."""
    events, heard = Events(), Heard()

    def trouble(event: Event) -> None:
        raise error

    events.subscribe(trouble)
    events.subscribe(heard)
    events.publish(DONE)
    assert heard.all(Event) == [DONE]
    [record] = caplog.records
    assert "subscriber_failed" in record.getMessage()
    assert "JobDone" in record.getMessage()


def test_an_interrupt_goes_through() -> None:
    """In the pull style a subscriber runs on the user's own thread: their Ctrl-C stays theirs."""
    events = Events()

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    events.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        events.publish(DONE)


def test_events_are_values() -> None:
    """An event is compared by what it says, and cannot be changed."""
    assert dataclasses.replace(DONE) == DONE
    with pytest.raises(dataclasses.FrozenInstanceError):
        DONE.topic = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "error, names",
    [
        (None, ["JobClaimed", "JobDone"]),
        (ValueError("no"), ["JobClaimed", "JobFailed", "JobClaimed", "JobDead"]),
        (CancelJob("no use"), ["JobClaimed", "JobCanceled"]),
        (PreserveAttempt("later"), ["JobClaimed", "JobFailed"]),
    ],
    ids=["done", "dead", "canceled", "preserved"],
)
def test_a_worker_tells_what_happened(db: Database, error: Exception | None, names: list[str]) -> None:
    """Each fact comes once, after the database has it, with job, topic, attempt and worker (W3)."""
    in_row: list[tuple[Event, Any]] = []

    def handler(job: object, claim: object) -> None:
        if error is not None:
            raise error

    longest = "1h" if isinstance(error, PreserveAttempt) else "0s"
    job = job_class(handler, max_attempts=2, backoff_base=longest, backoff_max=longest)
    with working(db, base_of(job)) as worker:
        worker.events.subscribe(lambda event: in_row.append((event, db.row(event.id))))
        heard = Heard(worker.events)
        job_id = put(db, job())
        for kind in (JobClaimed, JobDone, JobFailed, JobDead, JobCanceled):
            heard.wait_for(kind, names.count(kind.__name__))
    assert heard.names() == names
    assert {(event.id, event.topic, event.worker) for event in heard.all(Event)} == {(job_id, "work", worker.id)}
    assert [event.attempt for event in heard.all(Event)] == ([1, 1, 2, 2] if len(names) == 4 else [1, 1])
    states = {"JobClaimed": "processing", "JobDone": "done", "JobDead": "dead", "JobCanceled": "canceled"}
    for event, row in in_row:
        # A failed job that is due at once may have been taken again by then, and that alone.
        is_taken_again = isinstance(event, JobFailed) and row["attempts"] == event.attempt + 1
        assert is_taken_again or row["state"] == states.get(type(event).__name__, "failed")


def test_events_say_how_long_it_took(db: Database) -> None:
    """Outcomes carry the duration of the handler, failures their delay and text (W3)."""
    release = threading.Event()

    def handler(job: object, claim: object) -> None:
        release.wait(0.05)
        raise ValueError("no")

    job = job_class(handler, max_attempts=2, backoff_base="1s", backoff_max="1s")
    with working(db, base_of(job)) as worker:
        heard = Heard(worker.events)
        put(db, job())
        [failed] = heard.wait_for(JobFailed)
    assert timedelta(milliseconds=50) <= failed.duration < timedelta(seconds=10)
    assert timedelta(milliseconds=500) <= failed.delay <= timedelta(seconds=1)
    assert failed.error.startswith("ValueError: no")
