"""``brooq-sa worker``, as a real process."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from brooq_sa import RawJob, enqueue
from brooq_sa.cli.stopping import SIGNALS
from brooq_sa.settings import NAMES
from databases import Database
from processes import Child, Processes
from waiting import wait_until

JOBS = """
import time
from pathlib import Path
from brooq_sa import JobBase

class AppJob(JobBase):
    pass

class Quick(AppJob, topic="quick"):
    n: int
    def run(self, claim):
        print("ran", self.n, flush=True)

class Slow(AppJob, topic="slow"):
    def run(self, claim):
        print("slow has begun", flush=True)
        while not Path("go").exists():
            time.sleep(0.02)

class Patient(AppJob, topic="patient"):
    def run(self, claim):
        print("patient has begun", flush=True)
        claim.should_stop.wait(60)

class Look(AppJob, topic="look"):
    def run(self, claim):
        import gc, sys, threading
        print(f"switches every {sys.getswitchinterval():.3f}, keeps {gc.get_freeze_count() > 10_000}", flush=True)
        print(f"looks at {gc.get_threshold()[0]:,} young objects", flush=True)
        slack = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
        print(f"sleeps within {slack.read_text().strip() if slack.exists() else 'some'} ns", flush=True)

class Coroutine(AppJob, topic="coroutine"):
    async def run(self, claim):
        print("ran a coroutine", flush=True)
"""

QUICKLY = ("--poll-interval", "50ms")

on_sqlite_alone = pytest.mark.parametrize("db", ["sqlite"], indirect=True)
"""For what a process does that has nothing to do with which database it is."""


@pytest.fixture
def start(processes: Processes, db: Database) -> Any:
    """Starts a worker process on the database under test."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")

    def run(*arguments: str, **environment: str) -> Child:
        return processes.module(
            "brooq_sa", "worker", "own_jobs:AppJob", *QUICKLY, *arguments, env={"DATABASE_URL": db.url, **environment}
        )

    return run


def put(db: Database, topic: str, payload: Any = None) -> None:
    with db.engine.begin() as connection:
        enqueue(connection, RawJob(topic, payload or {}))


@on_sqlite_alone
def test_the_process_is_fit_for_short_jobs(start: Any, db: Database) -> None:
    """Threads take turns quickly and sleep exactly; the garbage collector leaves alone what was there at first."""
    put(db, "look")
    worker = start()
    worker.wait_for_output("switches every 0.001, keeps True")
    worker.wait_for_output("looks at 20,000 young objects")
    worker.wait_for_output("sleeps within 1000 ns" if Path("/proc/self/timerslack_ns").exists() else "within some")


def test_runs_jobs_and_drains(start: Any, db: Database) -> None:
    """It runs what is there and what comes; SIGTERM lets the running job end, leaves the rest, exit code 0 (T6)."""
    put(db, "quick", {"n": 1})
    worker = start("--workers", "1")
    worker.wait_for_output("ran 1")
    put(db, "slow")
    worker.wait_for_output("slow has begun")
    put(db, "quick", {"n": 2})
    worker.send(signal.SIGTERM)
    worker.wait_for_output("worker_stopping")
    (worker.log.parent / "go").touch()
    assert worker.wait() == 0, worker.output()
    assert [row["state"] for row in db.rows(topic="slow")] == ["done"]
    assert db.rows(state="processing") == []
    assert [row["attempts"] for row in db.rows(topic="quick")] == [1, 0]


@on_sqlite_alone
def test_grace(start: Any, db: Database) -> None:
    """A job that outlasts the grace is told to stop and given back, its attempt uncharged; exit code 0 (T6)."""
    put(db, "patient")
    worker = start("--grace", "0s")
    worker.wait_for_output("patient has begun")
    worker.send(signal.SIGINT)
    assert worker.wait() == 0, worker.output()
    row = db.row()
    assert (row["state"], row["attempts"], row["locked_by"]) in {("pending", 0, None), ("done", 1, None)}


def test_second_signal_ends_at_once(start: Any, db: Database) -> None:
    """A second signal ends the process at once; its job is left to its lease (T6)."""
    put(db, "slow")
    worker = start("--lease", "1s")
    worker.wait_for_output("slow has begun")
    worker.send(signal.SIGTERM)
    wait_until(lambda: not worker.is_running or _send(worker, signal.SIGTERM), what="an end", timeout=10)
    assert worker.wait() == 128 + signal.SIGTERM
    assert db.row()["state"] == "processing"
    db.shift_clock(timedelta(seconds=5))
    (worker.log.parent / "go").touch()
    again = start("--reaper-period", "100ms")
    wait_until(lambda: db.row()["state"] == "done", what="the job being done by another worker", timeout=20)
    again.send(signal.SIGTERM)
    assert again.wait() == 0


def _send(child: Child, number: signal.Signals) -> bool:
    child.send(number)
    return False


@on_sqlite_alone
def test_topics_name_and_coroutines(start: Any, db: Database) -> None:
    """--topic leaves the others alone; --name begins the name that holds the jobs; coroutines run."""
    put(db, "quick", {"n": 1})
    put(db, "coroutine")
    put(db, "patient")
    worker = start("--topic", "coroutine", "--topic", "patient", "--name", "tester", "--grace", "0s")
    worker.wait_for_output("ran a coroutine")
    worker.wait_for_output("patient has begun")
    assert db.rows(topic="patient")[0]["locked_by"].startswith("tester-")
    assert db.rows(topic="quick")[0]["attempts"] == 0
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@on_sqlite_alone
def test_log_lines(start: Any, db: Database) -> None:
    """In a pipe the log is a JSON object a line, with the job's id, topic, attempt and worker (W3)."""
    put(db, "quick", {"n": 1})
    worker = start()
    worker.wait_for_output("job_done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    [done] = [line for line in lines if line["event"] == "job_done"]
    assert (done["job_id"], done["topic"], done["attempt"]) == (str(db.row()["id"]), "quick", 1)
    assert {"worker_started", "worker_stopped"} <= {line["event"] for line in lines}
    assert len({line["worker"] for line in lines if "worker" in line}) == 1


@on_sqlite_alone
def test_settings_from_everywhere(start: Any, processes: Processes, db: Database) -> None:
    """All problems of all places are told at once, by name, exit code 2 (U3)."""
    (processes.folder / ".env").write_text("QUEUE_POLL_INTERVAL=-1s\nQUEUE_WORKERS=0\n", encoding="utf-8")
    worker = start("--lease", "5", "--poll-interval", "", QUEUE_BACKOFF_MAX="x")
    assert worker.wait() == 2
    output = worker.output()
    assert "lease: Duration '5' has no unit" in output
    assert "QUEUE_WORKERS (.env): 0 is out of range" in output
    assert "QUEUE_BACKOFF_MAX: Duration 'x'" in output
    assert "Traceback" not in output


@pytest.fixture
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def check(call: Any, _signals_as_before: None, monkeypatch: pytest.MonkeyPatch, pg_url: str) -> Any:
    """Calls ``worker --check`` with the database in the environment, on settings of this test alone."""
    for name in os.environ:
        if name.startswith("QUEUE_"):
            monkeypatch.delenv(name)
    Path("own_jobs.py").write_text(JOBS, encoding="utf-8")
    monkeypatch.setenv("DATABASE_URL", pg_url.replace("//postgres@", "//postgres:s3cret@"))
    monkeypatch.delitem(sys.modules, "own_jobs", raising=False)
    return lambda *arguments: call("worker", "own_jobs:AppJob", "--check", *arguments)


def test_check(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """--check prints each effective setting with its source, and what would run; nothing is run (U3)."""
    Path(".env").write_text("QUEUE_LEASE=40s\nQUEUE_WORKERS=5\n", encoding="utf-8")
    monkeypatch.setenv("QUEUE_POLL_INTERVAL", "1500ms")
    result = check("--workers", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found["settings"]) == [*NAMES, "http_addr"]
    assert {name: (found["settings"][name]["value"], found["settings"][name]["source"]) for name in CHECKED} == CHECKED
    assert found["topics"] == ["coroutine", "look", "patient", "quick", "slow"]
    assert found["database"]["source"] == "environment"
    assert "s3cret" not in result.output
    table = check("--topic", "quick").stdout.splitlines()
    assert table[0].split() == ["setting", "value", "source"]
    assert ["lease", "40s", ".env"] in [line.split() for line in table]
    assert table[-1] == "topics: quick"


CHECKED = {
    "workers": ("3", "argument"),
    "poll_interval": ("1s500ms", "environment"),
    "lease": ("40s", ".env"),
    "grace": ("30s", "default"),
    "reaper_period": ("10s", "computed"),
    "watchdog_grace": ("40s", "computed"),
    "http_addr": ("off", "environment"),
}


def test_check_refuses_what_the_worker_would(check: Any) -> None:
    """--check tells the problems of the settings, and a topic that nobody can run, and then fails (U3)."""
    result = check("--lease", "5")
    assert (result.exit_code, "lease: Duration '5' has no unit" in result.stderr) == (2, True)
    result = check("--topic", "nothing")
    assert (result.exit_code, "Topic 'nothing' has no handler" in result.stderr) == (1, True)


def test_passwords_of_the_wake_url_stay_hidden(check: Any) -> None:
    """The way on which to be woken is shown without its password (W3)."""
    result = check("--wake-url", "postgres://user:0ther@host/name")
    assert (result.exit_code, "postgresql+psycopg://user:***@host/name" in result.stdout) == (0, True)
    assert "0ther" not in result.output


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:{}@host/name",
        "postgresql://user@host/name?password={}",
        "postgresql://user@host/name?password=first&password={}",
        "postgresql://user:other@host/name?sslpassword={}",
        "postgresql://user@host/name?scram_client_key={}",
    ],
)
def test_secrets_of_a_url_stay_hidden(check: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Wherever a URL may have a secret, with whatever characters, it is not shown (W3)."""
    secret = "p @:/?&=+%$\u20ac"
    monkeypatch.setenv("DATABASE_URL", url.format(quote(secret, safe="")))
    result = check()
    assert result.exit_code == 0, result.output
    assert "***" in result.output
    assert not [form for form in (secret, quote(secret, safe=""), quote_plus(secret)) if form in result.output]


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize(
    "target,code,message",
    [
        ("own_nothing:AppJob", 2, "Module 'own_nothing' was not found"),
        ("own_broken:AppJob", 1, "Module 'own_broken' was found, but failed while it was imported: ZeroDivisionError"),
        ("own_jobs:Nothing", 2, "has no attribute 'Nothing'. Give own_jobs:AppJob."),
    ],
)
def test_base_that_cannot_be_loaded(call: Any, sqlite: Database, target: str, code: int, message: str) -> None:
    """A base that is not found and one that fails are told apart, and nothing starts."""
    Path("own_jobs.py").write_text(JOBS, encoding="utf-8")
    Path("own_broken.py").write_text("1 / 0", encoding="utf-8")
    result = call("worker", target, "--url", sqlite.url)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_base_without_handlers(processes: Processes, sqlite: Database) -> None:
    """A base that has nothing to run is refused at the start."""
    source = "from brooq_sa import JobBase\nclass AppJob(JobBase): pass\n"
    (processes.folder / "own_empty.py").write_text(source, encoding="utf-8")
    worker = processes.module("brooq_sa", "worker", "own_empty:AppJob", "--url", sqlite.url)
    assert worker.wait() == 1
    assert "has no job class with a handler" in worker.output()


def test_missing_table_at_start(processes: Processes, tmp_path: Any) -> None:
    """A worker on a database without the table ends at once, with the way to make it (M1)."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")
    (tmp_path / "empty.db").touch()
    worker = processes.module("brooq_sa", "worker", "own_jobs:AppJob", "--url", f"sqlite:///{tmp_path}/empty.db")
    assert worker.wait() == 1
    assert "brooq-sa migrate upgrade" in worker.output()


# Metrics and health.


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def address_of(worker: Child) -> str:
    worker.wait_for_output("endpoint_opened")
    [line] = [json.loads(line) for line in worker.output().splitlines() if "endpoint_opened" in line]
    address: str = line["address"]
    return address


def test_metrics_and_health(start: Any, db: Database) -> None:
    """It serves metrics and health, says where, and is ready once it claims and no more when it stops (W2, U3)."""
    put(db, "quick", {"n": 1})
    worker = start("--workers", "1", HTTP_ADDR="127.0.0.1:0")
    address = address_of(worker)
    assert fetch(address, "/healthz") == (200, "alive\n")
    wait_until(lambda: fetch(address, "/readyz") == (200, "ready\n"), what="readiness", timeout=20)
    worker.wait_for_output("job_done")
    text = fetch(address, "/metrics")[1]
    assert 'brooq_settle_total{outcome="done",topic="quick"} 1.0' in text
    assert "\nprocess_cpu_seconds_total " in text
    put(db, "slow")
    worker.wait_for_output("slow has begun")
    worker.send(signal.SIGTERM)
    wait_until(lambda: fetch(address, "/readyz") == (503, "the worker is stopping\n"), what="no readiness")
    assert fetch(address, "/healthz") == (200, "alive\n")
    (worker.log.parent / "go").touch()
    assert worker.wait() == 0, worker.output()


@on_sqlite_alone
def test_a_busy_port(start: Any, db: Database) -> None:
    """An address that is taken is told in a line, with the setting and the next step, and nothing starts (W2, U3)."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        worker = start("--http-addr", address)
        assert worker.wait() == 2
    output = worker.output()
    assert f"http_addr (HTTP_ADDR): {address} cannot be had: Address already in use. Give another" in output
    assert "'off' to do without" in output
    assert "Traceback" not in output
    assert "worker_started" not in output


@on_sqlite_alone
@pytest.mark.parametrize("address", ["off", "", "OFF"])
def test_no_endpoint(start: Any, db: Database, address: str) -> None:
    """'off', or nothing, as the address does without; an empty variable counts as unset (U3)."""
    put(db, "quick", {"n": 1})
    worker = start("--http-addr", address)
    worker.wait_for_output("job_done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert "endpoint_opened" not in worker.output()


@pytest.mark.parametrize("db", ["postgresql"], indirect=True)
def test_an_outage_and_health(start: Any, db: Database) -> None:
    """Without its table a worker is alive and not ready, and says of which part and why (W2)."""
    worker = start(HTTP_ADDR="127.0.0.1:0")
    address = address_of(worker)
    wait_until(lambda: fetch(address, "/readyz")[0] == 200, what="readiness", timeout=20)
    db.execute("ALTER TABLE job RENAME TO hidden")
    try:
        wait_until(lambda: fetch(address, "/readyz")[0] == 503, what="no readiness", timeout=20)
        assert "claiming fails: SchemaError: The database has no table 'job'" in fetch(address, "/readyz")[1]
        assert fetch(address, "/healthz") == (200, "alive\n")
        assert fetch(address, "/metrics")[0] == 200
    finally:
        db.execute("ALTER TABLE hidden RENAME TO job")
    wait_until(lambda: fetch(address, "/readyz")[0] == 200, what="readiness", timeout=20)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
