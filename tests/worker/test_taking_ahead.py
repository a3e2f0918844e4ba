"""Jobs taken ahead of free slots: never to the cost of other workers."""

from __future__ import annotations

import threading
import time
from typing import Any

from apps.embedding import FAST, Heard, base_of, job_class, put_many, working
from brooq_sa import JobBase, NewJob, Worker
from brooq_sa.events import JobClaimed, JobDone, JobRequeued
from databases import Database
from waiting import wait_until

SLOW = 1000
"""From this number on, jobs wait until they are let go."""


def test_stale_jobs_are_run_by_another_worker(db: Database) -> None:
    """What a worker took ahead goes back when its slots turn out to be slow, with its attempt, and others run it (I6).

    Fast jobs make the worker take many ahead; then each of its slots gets a job that takes long.
    """
    go_on, both = threading.Event(), threading.Barrier(3)

    def run(job: Any, claim: Any) -> None:
        if SLOW <= job.number < SLOW + 2:
            both.wait(10)
            go_on.wait(20)

    job = job_class(run)
    fast = put_many(db, [job(number=number) for number in range(300)])
    slow = put_many(db, [job(number=SLOW), job(number=SLOW + 1)])
    behind = put_many(db, [job(number=number) for number in range(300, 400)])
    first = Worker(db.engine, base_of(job), **FAST | {"workers": 2, "lease": "30s"})
    heard = Heard(first.events)
    first.start()
    try:
        both.wait(10)
        given_back = {event.id for event in heard.wait_for(JobRequeued)}
        assert given_back <= set(behind)
        with working(db, base_of(job)):
            wait_until(lambda: len(db.rows(state="done")) == 400, what="the others being done")
            assert [row["id"] for row in db.rows(state="processing")] == sorted(slow)
            assert {row["locked_by"] for row in db.rows(state="processing")} == {first.id}
            go_on.set()
            wait_until(lambda: len(db.rows(state="done")) == 402, what="all being done")
    finally:
        go_on.set()
        first.stop()
    assert {row["attempts"] for row in db.rows()} == {1}
    assert {event.id for event in heard.all(JobDone)} >= set(fast) | set(slow)


def test_workers_share_slow_jobs(db: Database) -> None:
    """Two workers with jobs that take a while run half of them each, and neither takes one that it cannot begin."""
    most = dict.fromkeys("ab", 0)
    running = dict.fromkeys("ab", 0)
    lock = threading.Lock()

    def run(job: Any, claim: Any) -> None:
        name = claim.worker[0]
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])
        time.sleep(0.4)  # the time that a job takes
        with lock:
            running[name] -= 1

    job = job_class(run)
    put_many(db, [job(number=number) for number in range(16)])
    workers = [Worker(db.engine, base_of(job), name=name, **FAST | {"lease": "30s"}) for name in "ab"]
    heard = [Heard(worker.events) for worker in workers]
    for worker in workers:
        worker.start()
    wait_until(lambda: len(db.rows(state="done")) == 16, timeout=30, what="all being done")
    for worker in workers:
        worker.stop()
    claimed = [len(each.all(JobClaimed)) for each in heard]
    assert sum(claimed) == 16
    assert min(claimed) >= 4, claimed
    assert most == {"a": 4, "b": 4}
    assert [each.all(JobRequeued) for each in heard] == [[], []]


def test_order_among_waiting_jobs(db: Database) -> None:
    """Among jobs that wait for a slot, those of smaller priority begin first; of the same, topics take turns."""
    order: list[tuple[str, int]] = []

    class Jobs(JobBase):
        pass

    class One(Jobs, topic="one"):
        level: int

        def run(self, claim: Any) -> None:
            order.append(("one", self.level))

    class Two(Jobs, topic="two"):
        level: int

        def run(self, claim: Any) -> None:
            order.append(("two", self.level))

    late = [NewJob(each(level=1), priority=1) for each in (One, Two) for _ in range(60)]
    put_many(db, [*late, *(NewJob(One(level=0), priority=0) for _ in range(60))])
    with working(db, Jobs, workers=1):
        wait_until(lambda: len(db.rows(state="done")) == 180, what="all being done")
    assert [level for topic, level in order if topic == "one"] == [0] * 60 + [1] * 60
    topics = [topic for topic, _ in order[:120]]
    assert min(topics.count("one"), topics.count("two")) >= 30, topics
