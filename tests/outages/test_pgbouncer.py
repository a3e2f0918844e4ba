"""Behind PgBouncer in transaction mode, where nothing of a session is one's own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from apps.embedding import Heard, base_of, job_class, put, put_many, working
from brooq_sa import RawJob, Worker
from brooq_sa.events import JobDone
from chaos.servers import free_port
from databases import Database
from outages.place import Place, write
from postgresql_server import USER_FOR_ROOT, _folder_open_to_all, is_refused_by_postgresql
from waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="this system has no pgbouncer")

CONFIGURATION = """
[databases]
postgres = host=127.0.0.1 port={server} user=postgres dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = 3
unix_socket_dir =
"""


@pytest.fixture
def pooled(place: Place) -> Iterator[Database]:
    """The database of `place` behind PgBouncer, as an application does it that has read our page about poolers."""
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="brooq-bouncer-", dir=_folder_open_to_all()))
    configuration = CONFIGURATION.format(server=place.servers.ports[place.servers.primary], port=port)
    (folder / "bouncer.ini").write_text(configuration, encoding="utf-8")
    folder.chmod(0o755)
    command = [shutil.which("pgbouncer") or "", "bouncer.ini"]
    if is_refused_by_postgresql():  # and by PgBouncer too
        command += ["-u", USER_FOR_ROOT]
    with (folder / "bouncer.log").open("wb") as log:
        bouncer = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        wait_until(lambda: answers(port) or bouncer.poll() is not None, what="PgBouncer answering")
        database = Database(url)
        database.engine.dispose()
        database.engine = create_engine(url, connect_args={"prepare_threshold": None})
        yield database
        database.dispose()
    finally:
        bouncer.kill()
        bouncer.wait()
        print((folder / "bouncer.log").read_text(encoding="utf-8", errors="replace"))
        shutil.rmtree(folder)


def answers(port: int) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_jobs_run(place: Place, pooled: Database) -> None:
    """Two workers behind the pooler share the jobs and are well, however many statements they send (I2, I11)."""

    def handler(job: Any, claim: Any) -> None:
        write(claim)
        claim.chain(RawJob("next", job.number))

    job = job_class(handler, max_attempts=1)
    put_many(place.db, [job(number=number) for number in range(60)])
    with working(pooled, base_of(job)) as first, working(pooled, base_of(job)) as second:
        done = {"state": "done", "topic": "work"}
        wait_until(lambda: len(place.db.rows(**done)) == 60, timeout=30, what="every job being done")
        assert (first.troubles, second.troubles) == ({}, {})
    assert place.effects() == [1] * 60


def test_nothing_is_left_in_the_session_of_others(place: Place, pooled: Database) -> None:
    """What a worker sets for itself never befalls another client of the pooler."""
    job = job_class(lambda job, claim: write(claim))
    with working(pooled, base_of(job)) as worker:
        heard = Heard(worker.events)
        put_many(place.db, [job() for _ in range(20)])
        heard.wait_for(JobDone, 20)
        seen = set()
        for _ in range(30):
            with pooled.engine.connect() as connection:
                asked = text("SELECT current_setting('lock_timeout'), current_setting('transaction_isolation')")
                seen.add(tuple(connection.execute(asked).one()))
    assert seen == {("0", "read committed")}


def test_locked_rows_are_not_waited_for_long(place: Place, pooled: Database) -> None:
    """Behind the pooler too, a row that somebody keeps locked holds up nobody but itself (I11)."""
    started, go_on = threading.Event(), threading.Event()

    def handler(job: Any, claim: Any) -> None:
        if job.number == 1:
            started.set()
            go_on.wait(20)

    job = job_class(handler)
    locked = put(place.db, job(number=1))
    with working(pooled, base_of(job)):
        assert started.wait(10)
        with place.db.engine.begin() as connection:
            connection.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": locked})
            go_on.set()
            others = put_many(place.app, [job(number=2) for _ in range(3)])
            began = time.monotonic()
            wait_until(
                lambda: all(place.db.row(each)["state"] == "done" for each in others), what="the others being done"
            )
            assert time.monotonic() - began < 5
        wait_until(lambda: place.db.row(locked)["state"] == "done", what="the locked one being done")


def test_waking_past_the_pooler(place: Place, pooled: Database) -> None:
    """With `wake_url`, the direct way, a worker behind a pooler hears of jobs at once, from clients of it too (T5)."""
    ran: list[float] = []
    job = job_class(lambda job, claim: ran.append(time.monotonic()))
    settings: dict[str, Any] = {"poll_interval": "1h", "wake": True, "wake_url": place.url}
    worker = Worker(pooled.engine, base_of(job), **settings)
    other = Database(pooled.url)
    with worker:
        wait_until(
            lambda: place.servers.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"), what="it"
        )
        wait_until(lambda: not ran and worker.troubles == {}, what="the worker being well")
        with psycopg.connect(other.url.replace("+psycopg", ""), prepare_threshold=None) as elsewhere:
            elsewhere.execute("INSERT INTO job (topic, payload) VALUES ('work', '{}')")
            elsewhere.execute("SELECT pg_notify('brooq.job', 'jobs:work')")
        wait_until(lambda: ran, timeout=5, what="the job being run")
    other.dispose()
