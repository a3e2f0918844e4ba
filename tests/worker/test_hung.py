"""Handlers that do not end when they are told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from brooq_sa import AsyncClaim, Claim, JobBase, Worker, enqueue
from brooq_sa.events import Event, HandlerHung, LateOutcomeRefused
from databases import Database
from waiting import wait_until

GO_ON = threading.Event()


class Hanging(JobBase): ...


class Stuck(Hanging, topic="stuck", attempt_timeout="200ms", max_attempts=1):
    def run(self, claim: Claim) -> None:
        GO_ON.wait(60)
        claim.session.connection()


class Deaf(Hanging, topic="deaf", attempt_timeout="200ms", max_attempts=1):
    async def run(self, claim: AsyncClaim) -> None:
        while not GO_ON.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


class Blocking(Hanging, topic="blocking", attempt_timeout="200ms", max_attempts=1):
    async def run(self, claim: AsyncClaim) -> None:
        GO_ON.wait(60)


class Quick(Hanging, topic="quick"):
    def run(self, claim: Claim) -> None: ...


class QuickAsync(Hanging, topic="quick.async"):
    async def run(self, claim: AsyncClaim) -> None:
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def go_on_at_the_end() -> Iterator[None]:
    GO_ON.clear()
    yield
    GO_ON.set()


@pytest.mark.parametrize("job_class", [Stuck, Deaf, Blocking])
def test_a_hung_handler_costs_no_slot(db: Database, job_class: type[Stuck | Deaf | Blocking]) -> None:
    """Handlers that never end fail, and as many others run in their place; what they do late is refused (T1, T3)."""
    events: list[Event] = []

    def all_of(kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in events)

    with Worker(db.engine, Hanging, workers=2, watchdog_grace="300ms", poll_interval="50ms") as worker:
        worker.events.subscribe(events.append)
        with db.engine.begin() as connection:
            stuck = [enqueue(connection, job_class()).id for _ in range(2)]
        wait_until(lambda: all_of(HandlerHung) == 2, timeout=30, what="both being given up")
        wait_until(lambda: [db.row(each)["state"] for each in stuck] == ["dead"] * 2, what="both having failed")
        assert "attempt timed out, and the handler did not stop within 300ms" in db.row(stuck[0])["last_error"]
        with db.engine.begin() as connection:
            others = [enqueue(connection, job()).id for job in (Quick, QuickAsync, Quick, QuickAsync)]
        wait_until(lambda: {db.row(each)["state"] for each in others} == {"done"}, timeout=30, what="others being run")
        GO_ON.set()
        wait_until(lambda: all_of(LateOutcomeRefused) == 2, what="the late ones being refused")
    assert [db.row(each)["state"] for each in stuck] == ["dead"] * 2


def test_one_that_ends_in_time_is_not_hung(db: Database) -> None:
    """A handler that is told to stop and does has failed, and is not counted as hung (T1, T3)."""
    events: list[Event] = []
    with Worker(db.engine, Hanging, workers=1, watchdog_grace="60s", poll_interval="50ms") as worker:
        worker.events.subscribe(events.append)
        with db.engine.begin() as connection:
            job_id = enqueue(connection, Stuck()).id
        [claim] = wait_until(lambda: list(worker._held.snapshot().values()), what="the job being taken")
        wait_until(lambda: claim.should_stop, what="the handler being told")
        GO_ON.set()
        # What it does after it was told counts all the same, if it succeeds.
        wait_until(lambda: db.row(job_id)["state"] == "done", what="its success")
    assert not any(isinstance(event, HandlerHung) for event in events)
