"""A connection that falls silent: the network, or what is between, passes nothing on and says nothing.

Every packet is still acknowledged, so that no setting of TCP tells. The worker measures time itself.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from apps.embedding import base_of, is_idle, job_class, put, working
from brooq_sa import StopCause
from outages.place import CLAIMS, RENEWALS, Place, write
from processes import Processes
from waiting import wait_until

LEASE = 3.0

SILENT: dict[str, Any] = {"lease": f"{LEASE:g}s", "poll_interval": "100ms"}

CLAIMING = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'UPDATE job%'"

SOON = 8.0
"""Seconds: the longest pause after an error, the poll interval, and what a busy machine adds."""


def test_while_idle(place: Place) -> None:
    """A worker whose connections fall silent says so within two leases, and works again once they pass (T4)."""
    ran = threading.Event()
    job = job_class(lambda job, claim: ran.set())
    line = place.line()
    with working(place.via(line), base_of(job), **SILENT) as worker:
        wait_until(lambda: place.servers.execute(CLAIMING), what="the worker having asked for jobs")
        line.cut("delay")
        cut_at = time.monotonic()
        wait_until(lambda: "claiming" in worker.troubles, timeout=2 * LEASE, what="trouble being told")
        job_id = put(place.db, job())
        while time.monotonic() - cut_at < 3 * LEASE:  # the trouble lasts as long as the silence does
            assert worker.troubles
            time.sleep(0.1)
        line.heal()
        wait_until(ran.is_set, timeout=SOON, what="a job being run")
        wait_until(lambda: worker.troubles == {}, timeout=SOON, what="the worker being well again")
        wait_until(lambda: place.db.row(job_id)["state"] == "done", what="the job being done")


@pytest.mark.parametrize("cut", ["delay", "silence"])
def test_in_mid_claim(place: Place, cut: str) -> None:
    """A claim whose answer never comes takes its job for good from nobody, whether it arrives late or not (I2, I11)."""
    runs: list[int] = []

    def handler(job: Any, claim: Any) -> None:
        runs.append(claim.attempt)
        write(claim)

    job = job_class(handler)
    place.slow_down(CLAIMS, 0.3)
    line = place.line()
    with working(place.via(line), base_of(job), **SILENT):
        job_id = put(place.db, job())
        wait_until(place.is_in_slow_update, what="the claim being under way")
        line.cut(cut)
        wait_until(lambda: place.db.row(job_id)["state"] == "processing", what="the claim having been made")
        line.heal()
        wait_until(lambda: place.db.row(job_id)["state"] == "done", timeout=LEASE + SOON, what="the job being done")
    # Given back uncharged by the worker itself, unless the answer came after all or the lease ran out first.
    assert place.effects(job_id) == [place.db.row(job_id)["attempts"]] == runs


def test_in_mid_heartbeat(place: Place) -> None:
    """A running job hears at the end of its lease that it is lost; a late commit is refused (I12, I13, T2)."""
    told: list[tuple[StopCause | None, float]] = []
    started, go_on = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        if claim.attempt > 1:
            write(claim)
            return
        write(claim)
        started.set()
        claim.should_stop.wait(30)
        told.append((claim.cause, time.monotonic()))
        go_on.wait(30)

    job = job_class(handler)
    place.slow_down(RENEWALS, 0.3)
    line = place.line()
    job_id = put(place.db, job())
    other = job_class(lambda job, claim: write(claim))
    with working(place.via(line), base_of(job), **SILENT) as worker:
        assert started.wait(10)
        wait_until(place.is_in_slow_update, what="a renewal being under way")
        line.cut("delay")
        cut_at = time.monotonic()
        wait_until(lambda: worker.troubles, timeout=2 * LEASE, what="trouble being told")
        wait_until(lambda: told, what="the handler hearing of it")
        # Meanwhile a worker with a line of its own takes the job over.
        with working(place.app, base_of(other), **SILENT):
            wait_until(lambda: place.db.row(job_id)["state"] == "done", timeout=SOON, what="the job being done")
        go_on.set()
        line.heal()
        wait_until(lambda: worker.troubles == {}, timeout=SOON, what="the worker being well again")
    [(cause, told_at)] = told
    assert cause is StopCause.LEASE_LOST
    assert told_at - cut_at < LEASE + 1
    row = place.db.row(job_id)
    assert (row["state"], row["attempts"], place.effects(job_id)) == ("done", 2, [2])


JOBS = """
from brooq_sa import JobBase

class AppJob(JobBase):
    pass

class Waits(AppJob, topic="work"):
    def run(self, claim):
        print("began", flush=True)
        claim.should_stop.wait(60)
        print(f"told: {claim.cause}", flush=True)
        raise RuntimeError("stopped")
"""


def test_a_signal_while_silent(place: Place, processes: Processes) -> None:
    """SIGTERM ends a worker whose connections are silent within a bounded time, with an exit code that says so (T6)."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")
    line = place.line()
    url = place.via(line).url
    worker = processes.module(
        "brooq_sa", "worker", "own_jobs:AppJob", "--lease", "3s", "--poll-interval", "100ms", "--grace", "1s",
        "--no-wake", env={"DATABASE_URL": url},
    )  # fmt: skip
    place.servers.execute("INSERT INTO job (topic, payload) VALUES ('work', '{}')")
    worker.wait_for_output("began")
    line.cut("delay")
    worker.wait_for_output("claiming_failed")
    worker.send(signal.SIGTERM)
    sent_at = time.monotonic()
    assert worker.wait() == 1, worker.output()
    # The grace, the notice to handlers, the last outcomes, the last turns, the last try to connect; and what a busy
    # machine adds.
    assert time.monotonic() - sent_at < 1 + 2 + 5 + 5 + 5 + 4
    assert "told: shutdown" in worker.output() or "told: lease lost" in worker.output()
    line.heal()
    assert [row["state"] for row in place.db.rows()] == ["processing"]


def test_silence_does_not_end_a_job_that_needs_no_database(place: Place) -> None:
    """A silence shorter than the lease costs nothing: the job goes on and is done at its first attempt (T4)."""
    started, go_on = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        started.set()
        go_on.wait(30)

    job = job_class(handler)
    line = place.line()
    job_id = put(place.db, job())
    with working(place.via(line), base_of(job), lease="20s", poll_interval="100ms"):
        assert started.wait(10)
        line.cut("delay")
        go_on.set()
        time.sleep(1.5)
        line.heal()
        wait_until(lambda: is_idle(place.db), timeout=2 * SOON, what="the job having ended")
    assert (place.db.row(job_id)["state"], place.db.row(job_id)["attempts"]) == ("done", 1)
