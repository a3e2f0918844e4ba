"""The rules that the model takes from the worker, shown on the worker itself.

That the statements write what the model says is shown row by row in ``test_statements.py``; that a failure kills on the
last attempt alone, in ``test_outcomes.py``.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from apps.embedding import base_of, is_idle, job_class, put, working
from brooq_sa import PreserveAttempt, Worker
from brooq_sa.store import JobStore
from databases import Database
from waiting import wait_until


def test_give_backs_are_answered_before_the_next_claim(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose give-back was not answered sends it again before it claims anything (I12)."""
    said: list[str] = []
    settle, claim = JobStore.settle, JobStore.claim

    def lose_the_first_answers(self: JobStore, connection: Connection, worker: str, outcomes: Any) -> Any:
        said.append("settle")
        written = settle(self, connection, worker, outcomes)
        if said.count("settle") < 4:
            connection.commit()
            raise DBAPIError("UPDATE", {}, Exception("gone"), connection_invalidated=True)
        return written

    def note(self: JobStore, *args: Any, **options: Any) -> Any:
        claimed = claim(self, *args, **options)
        if said or claimed:
            said.append("claim")
        return claimed

    monkeypatch.setattr(JobStore, "settle", lose_the_first_answers)
    monkeypatch.setattr(JobStore, "claim", note)
    runs: list[int] = []

    def handler(job: Any, claim: Any) -> None:
        runs.append(claim.attempt)
        if len(runs) == 1:
            raise PreserveAttempt

    job = job_class(handler)
    put(db, job())
    with working(db, base_of(job), workers=1):
        wait_until(lambda: is_idle(db), what="the job having ended")
    first = said.index("settle")
    assert said[first : first + 5] == ["settle", "settle", "settle", "settle", "claim"]
    assert (runs, db.states()) == ([1, 1], ["done"])


def server_process(worker: Worker) -> int:
    """The PostgreSQL process that a worker claims and settles by."""
    connection: Any = worker._claiming._reserved._connection
    pid: int = connection.connection.driver_connection.info.backend_pid
    return pid


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot make a process stand still")
def test_what_gives_an_attempt_back_never_arrives_late(pg: Database) -> None:
    """A give-back whose connection broke does not end a later run of the same worker at the same number (I12)."""
    workers: list[Worker] = []
    pids: list[int] = []
    attempts: list[int] = []
    settled_again, may_go_on = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        attempts.append(claim.attempt)
        if len(attempts) == 1:
            pids.append(server_process(workers[0]))
            os.kill(pids[0], signal.SIGSTOP)
            raise PreserveAttempt
        settled_again.set()
        may_go_on.wait(20)

    job = job_class(handler)
    with working(pg, base_of(job), workers=1, lease="3s") as worker:
        workers.append(worker)
        put(pg, job())
        try:
            assert settled_again.wait(20), "20 seconds passed without a second run"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        # The server process of the broken connection does what it was sent, if it was, and ends.
        wait_until(lambda: not pg.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pids[0]}"))
        state = pg.row()["state"]
        may_go_on.set()
        wait_until(lambda: is_idle(pg), what="the job having ended")
    assert (state, attempts) == ("processing", [1, 1])
    assert (pg.states(), pg.row()["attempts"]) == (["done"], 1)
