"""What happened, as typed facts; subscribe to them to log, to count, or to test.

A subscriber runs on the thread where the fact became known, after the database has accepted it. What it raises is
logged and goes no further: no subscriber changes a job's outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about one job."""

    id: uuid.UUID
    topic: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class JobClaimed(Event):
    """A worker has taken the job; `waited` is how long it had been ready."""

    waited: timedelta


@dataclass(frozen=True, slots=True)
class JobDone(Event):
    """The attempt succeeded."""

    duration: timedelta


@dataclass(frozen=True, slots=True)
class JobFailed(Event):
    """The attempt failed, and another one follows after `delay`."""

    duration: timedelta
    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class JobDead(Event):
    """The last attempt failed; or, if `reaped`, the job has crashed as often as its class allows."""

    duration: timedelta
    error: str
    reaped: bool = False


@dataclass(frozen=True, slots=True)
class JobCanceled(Event):
    """Its own handler canceled the job."""

    duration: timedelta
    reason: str


@dataclass(frozen=True, slots=True)
class JobRequeued(Event):
    """The job is pending again: `reaped` from a worker that let its lease run out, or released by its own worker."""

    reaped: bool


@dataclass(frozen=True, slots=True)
class JobLeaseLost(Event):
    """The worker no longer holds the job, and nothing of the attempt was written."""

    cause: str


@dataclass(frozen=True, slots=True)
class HandlerHung(Event):
    """The handler outlived being told to stop by the watchdog's grace; its slot was given to another."""

    cause: str


@dataclass(frozen=True, slots=True)
class LateOutcomeRefused(Event):
    """A handler that had been given up came to an end after all; nothing of it was written."""


@dataclass(frozen=True, slots=True)
class CrashSuspect(Event):
    """A job was reaped that had crashed a worker before; by now it may well be what kills them."""

    crashes: int


@dataclass(frozen=True, slots=True)
class JobEnqueued:
    """A job exists: the transaction that enqueued it has been committed. Nobody has taken it yet."""

    id: uuid.UUID
    topic: str


E = TypeVar("E")

Subscriber = Callable[[Event], None]
Wants = Callable[[type], bool]


class Hub(Generic[E]):
    """Where facts are published."""

    def __init__(self) -> None:
        self._subscribers: tuple[tuple[Callable[[E], None], Wants | None], ...] = ()

    @property
    def is_heard(self) -> bool:
        """Whether anybody has subscribed."""
        return bool(self._subscribers)

    def is_wanted(self, kind: type) -> bool:
        """Whether anybody cares for events of that class. To make one for each job costs, if nobody does."""
        return any(wants is None or wants(kind) for _, wants in self._subscribers)

    def subscribe(self, subscriber: Callable[[E], None], *, wants: Wants | None = None) -> Callable[[], None]:
        """Call `subscriber` with each event from now on; the answer ends that.

        Args:
            wants: false for classes of events that need not be made for this subscriber. It may be called with one all
                the same.
        """
        entry = (subscriber, wants)
        self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return unsubscribe

    def publish(self, event: E) -> None:
        for subscriber, _ in self._subscribers:
            try:
                subscriber(event)
            except KeyboardInterrupt:
                raise  # in the pull style, the user's own
            except BaseException:  # noqa: BLE001 - a subscriber is the user's, and may raise anything
                from .log import get_logger  # not before: it is costly to import, and enqueuing does without

                get_logger().exception(
                    "subscriber_failed",
                    subscriber=repr(subscriber),
                    fact=type(event).__name__,
                    worker=getattr(event, "worker", None),
                )


class Events(Hub[Event]):
    """Where a worker publishes its facts."""


enqueues: Hub[JobEnqueued] = Hub()
"""Where this process publishes what it has enqueued, by `brooq_sa.enqueued.tell`."""
