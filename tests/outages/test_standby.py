"""The primary goes, and its standby is promoted in its place."""

from __future__ import annotations

import threading
from typing import Any

from apps.embedding import base_of, job_class, put, working
from outages.place import Place, write
from waiting import wait_until


def test_a_promoted_standby(place: Place) -> None:
    """With all hosts in its URL a worker finds the new primary; a job that ran meanwhile is done once (I11)."""
    started, go_on = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        write(claim)
        if job.number == 1 and not started.is_set():
            started.set()
            go_on.wait(60)

    first, second = place.servers.ports
    url = (
        f"postgresql+psycopg://postgres@/postgres?host=127.0.0.1:{first}&host=127.0.0.1:{second}"
        "&target_session_attrs=read-write&connect_timeout=5"
    )
    job = job_class(handler, max_attempts=1)
    ran_on = put(place.db, job(number=1))
    with working(place.via(url), base_of(job), lease="60s") as worker:
        assert started.wait(10)
        place.servers.promote("immediate")
        place.refresh()
        go_on.set()
        new = put(place.db, job(number=2))
        wait_until(lambda: place.db.row(new)["state"] == "done", timeout=20, what="a new job being done")
        wait_until(lambda: place.db.row(ran_on)["state"] == "done", timeout=20, what="the job that ran being done")
        wait_until(lambda: worker.troubles == {}, what="the worker being well again")
    assert (place.effects(ran_on), place.db.row(ran_on)["attempts"]) == ([1], 1)
