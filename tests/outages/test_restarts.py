"""The server stops, crashes, ends connections, or lets nobody write, while a worker runs.

A worker recovers by itself, says meanwhile that it is unwell, and no job pays for it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from apps.embedding import Heard, base_of, job_class, put, working
from brooq_sa import StopCause
from brooq_sa.events import JobDead, JobFailed
from outages.place import SUCCESSES, Place, write
from waiting import wait_until

MODES = pytest.mark.parametrize("mode", ["fast", "immediate"])

LONG: dict[str, Any] = {"lease": "30s"}
"""A lease that outlasts the outage: the job stays with its worker."""

SOON = 8.0
"""Seconds: the longest pause after an error, the poll interval, and what a busy machine adds."""


@MODES
def test_while_idle(place: Place, mode: str) -> None:
    """A worker that was idle while the server was down takes jobs again by itself, and says what fails (R4)."""
    ran = threading.Event()
    job = job_class(lambda job, claim: ran.set())
    with working(place.app, base_of(job)) as worker:
        wait_until(lambda: worker.troubles == {}, what="a good start")
        place.restart(mode, lambda: wait_until(lambda: "claiming" in worker.troubles, what="trouble being told"))
        job_id = put(place.db, job())
        wait_until(ran.is_set, timeout=SOON, what="a job being run")
        wait_until(lambda: worker.troubles == {}, timeout=SOON, what="the worker being well again")
        wait_until(lambda: place.db.row(job_id)["state"] == "done", what="the job being done")


@MODES
def test_in_mid_job(place: Place, mode: str) -> None:
    """Jobs that run while the server goes down do not fail: one goes on, one that lost its session runs again (I11)."""
    go_on = threading.Event()
    started = threading.Semaphore(0)

    def handler(job: Any, claim: Any) -> None:
        if job.number:
            write(claim)
        started.release()
        go_on.wait(30)
        if job.number:
            write(claim)

    job = job_class(handler, max_attempts=1)
    without, within = put(place.db, job(number=0)), put(place.db, job(number=1))
    with working(place.app, base_of(job), **LONG) as worker:
        heard = Heard(worker.events)
        assert started.acquire(timeout=10)
        assert started.acquire(timeout=10)
        place.restart(mode)
        go_on.set()
        wait_until(lambda: place.db.states() == ["done", "done"], timeout=2 * SOON, what="both jobs being done")
    assert heard.all(JobDead) == []
    assert [failed.id for failed in heard.all(JobFailed)] == [within]
    assert "the database was lost while the handler ran" in heard.all(JobFailed)[0].error
    assert (place.db.row(without)["attempts"], place.db.row(within)["attempts"]) == (1, 1)
    assert place.effects(within) == [1, 1]  # both writes of the one attempt that was committed


@MODES
@pytest.mark.parametrize("in_session", [False, True], ids=["in a batch", "in its session"])
def test_in_the_completion(place: Place, mode: str, in_session: bool) -> None:
    """A success that is being written while the server goes down is written after, once (I11)."""
    runs: list[int] = []

    def handler(job: Any, claim: Any) -> None:
        runs.append(claim.attempt)
        if in_session:
            write(claim)

    job = job_class(handler, max_attempts=1)
    place.slow_down(SUCCESSES, 1)
    job_id = put(place.db, job())
    with working(place.app, base_of(job), **LONG):
        wait_until(place.is_in_slow_update, what="the success being written")
        place.restart(mode)
        wait_until(lambda: place.db.row(job_id)["state"] == "done", timeout=2 * SOON, what="the job being done")
    assert place.db.row(job_id)["attempts"] == 1
    # Without a session the work stands, and only the success is written again.
    assert (len(runs), place.effects(job_id)) == ((2, [1]) if in_session else (1, []))


def test_read_only_for_a_while(place: Place) -> None:
    """While the server lets nobody write, as after a failover, no job is failed; the rest comes by itself (I11)."""
    go_on, started, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        started.set()
        go_on.wait(30)
        try:
            write(claim)
        finally:
            ended.set()

    job = job_class(handler, max_attempts=1)
    job_id = put(place.db, job())
    with working(place.app, base_of(job), **LONG) as worker:
        heard = Heard(worker.events)
        assert started.wait(10)
        place.servers.lets_nobody_write(True)
        wait_until(lambda: "claiming" in worker.troubles, what="trouble being told")
        go_on.set()
        wait_until(ended.is_set, what="the handler being refused its write")
        place.servers.lets_nobody_write(False)
        wait_until(lambda: place.db.row(job_id)["state"] == "done", timeout=2 * SOON, what="the job being done")
        wait_until(lambda: worker.troubles == {}, timeout=SOON, what="the worker being well again")
    assert (place.db.row(job_id)["attempts"], place.effects(job_id)) == (1, [1])
    assert heard.all(JobDead) == []


def test_an_outage_longer_than_the_lease(place: Place) -> None:
    """While the server is down a handler hears at the lease that it is gone; its job runs again after (I13, T2)."""
    told: list[tuple[StopCause | None, float]] = []
    started = threading.Event()

    def handler(job: Any, claim: Any) -> None:
        write(claim)
        if not told:
            started.set()
            claim.should_stop.wait(30)
            told.append((claim.cause, time.monotonic()))

    job = job_class(handler, max_attempts=1)
    job_id = put(place.db, job())
    with working(place.app, base_of(job), lease="2s"):
        assert started.wait(10)
        place.servers.stop("immediate")
        down_at = time.monotonic()
        wait_until(lambda: told, what="the handler hearing of it")
        place.servers.start()
        wait_until(lambda: place.db.row(job_id)["state"] == "done", timeout=2 * SOON, what="the job being done")
    [(cause, told_at)] = told
    assert cause is StopCause.LEASE_LOST
    assert told_at - down_at < 2 + 1
    assert place.effects(job_id) == [place.db.row(job_id)["attempts"]]


def test_a_stop_while_the_server_is_down(place: Place) -> None:
    """Stopped while the server is down, a worker ends soon, and says that not all is written (T6)."""
    started, ended = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        started.set()
        ended.wait(30)

    job = job_class(handler)
    put(place.db, job())
    with working(place.app, base_of(job), **LONG) as worker:
        assert started.wait(10)
        place.servers.stop("immediate")
        ended.set()
        began = time.monotonic()
        assert worker.stop(grace="1s") is False
        assert time.monotonic() - began < 15


def test_waking_after_a_restart(place: Place) -> None:
    """Once the server is back the worker listens again: a job does not wait for the poll interval (T5)."""
    ran: list[float] = []
    job = job_class(lambda job, claim: ran.append(time.monotonic()))
    listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with working(place.app, base_of(job), wake=True, poll_interval="1h", lease="1h") as worker:
        wait_until(lambda: place.servers.execute(listening), what="the worker listening")
        place.restart("fast")
        wait_until(lambda: place.servers.execute(listening), timeout=2 * SOON, what="the worker listening again")
        wait_until(lambda: worker.troubles == {}, timeout=2 * SOON, what="the worker being well again")
        place.servers.execute("INSERT INTO job (topic, payload) VALUES ('work', '{}')")
        place.servers.execute("SELECT pg_notify('brooq.job', 'jobs:work')")
        wait_until(lambda: ran, timeout=SOON, what="the job being run")
