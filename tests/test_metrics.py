"""Metrics for Prometheus: every name and label, bounded, and none of them stale."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from apps.embedding import FAST, base_of, job_class, put
from brooq_sa import CancelJob, JobBase, NewJob, RawJob, Worker, depths, enqueue, enqueue_many, enqueued, metrics
from brooq_sa.events import (
    CrashSuspect,
    Event,
    HandlerHung,
    JobCanceled,
    JobDead,
    JobDone,
    JobEnqueued,
    JobFailed,
    JobLeaseLost,
    JobRequeued,
    LateOutcomeRefused,
)
from brooq_sa.exc import SettingsError
from brooq_sa.metrics import UNKNOWN, Families, WorkerMetrics, count_enqueues
from databases import Database
from processes import Processes
from waiting import wait_until

SECOND = timedelta(seconds=1)

Labels = dict[str, str]


@contextmanager
def measured(db: Database, base: type[JobBase], **changes: Any) -> Iterator[tuple[Worker, CollectorRegistry]]:
    """A worker whose metrics are in a registry of its own."""
    registry = CollectorRegistry()
    worker = looking_often(Worker(db.engine, base, metrics=registry, **FAST | changes))
    worker.start()
    try:
        yield worker, registry
    finally:
        worker.stop(grace="5s")


def looking_often(worker: Worker) -> Worker:
    """The worker, whose table is looked at nearly each time that somebody asks."""
    assert worker._observation is not None
    worker._observation._depths._period = 0.05
    return worker


@pytest.fixture(autouse=True)
def _looks_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "LEAST_WORTH", 1)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def series(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name by their label values, in order of the labels' names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def wait_for(registry: CollectorRegistry, name: str, wanted: float, **labels: str) -> None:
    wait_until(lambda: value(registry, name, **labels) == wanted, what=f"{name}{labels} being {wanted}", timeout=20)


def wait_for_some(registry: CollectorRegistry, name: str, **labels: str) -> None:
    wait_until(lambda: value(registry, name, **labels), what=f"some {name}{labels}", timeout=20)


# Facts.

ABOUT = (uuid.uuid4(), "work", 1, "w")

COUNTED: list[tuple[Event, str, Labels]] = [
    (JobDone(*ABOUT, SECOND), "brooq_settle_total", {"topic": "work", "outcome": "done"}),
    (JobFailed(*ABOUT, SECOND, SECOND, "no"), "brooq_settle_total", {"topic": "work", "outcome": "failed"}),
    (JobDead(*ABOUT, SECOND, "no"), "brooq_settle_total", {"topic": "work", "outcome": "dead"}),
    (JobCanceled(*ABOUT, SECOND, "no"), "brooq_settle_total", {"topic": "work", "outcome": "canceled"}),
    (JobRequeued(*ABOUT, reaped=False), "brooq_settle_total", {"topic": "work", "outcome": "released"}),
    (JobRequeued(*ABOUT, reaped=True), "brooq_reaped_total", {"topic": "work"}),
    (JobDead(*ABOUT, SECOND, "crashed", reaped=True), "brooq_reaped_total", {"topic": "work"}),
    (CrashSuspect(*ABOUT, 3), "brooq_crash_suspects_total", {"topic": "work"}),
    (JobLeaseLost(*ABOUT, "lease lost"), "brooq_lease_lost_total", {"topic": "work"}),
    (HandlerHung(*ABOUT, "attempt timed out"), "brooq_hung_workers_total", {"topic": "work"}),
]


@pytest.mark.parametrize("event, name, labels", COUNTED, ids=[f"{type(each).__name__}" for each, *_ in COUNTED])
def test_each_fact_is_counted_once(event: Event, name: str, labels: Labels) -> None:
    """A fact raises one counter, by one; what was not caused by an attempt is no settling (W2, T3)."""
    registry = CollectorRegistry()
    counting = WorkerMetrics(Families.of(registry), ["work"], ["work"])
    assert value(registry, name, **labels) == 0
    counting.hear(event)
    counting.hear(LateOutcomeRefused(*ABOUT))
    rose = {
        (sample.name, *sorted(sample.labels.items()))
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }
    assert rose == {(name, *sorted(labels.items()))}
    assert value(registry, name, **labels) == 1


def test_topics_are_bounded() -> None:
    """Whatever topics a table holds, those that the base does not declare share one series (W2)."""
    registry = CollectorRegistry()
    counting = WorkerMetrics(Families.of(registry), ["work"], ["work"])
    for number in range(100):
        counting.hear(JobRequeued(uuid.uuid4(), f"made-up-{number}", 1, "w", reaped=True))
    counting.purged({"work": 3, "other": 4, "another": 5})
    assert series(registry, "brooq_reaped_total") == {("work",): 0, (UNKNOWN,): 100}
    assert series(registry, "brooq_retention_deleted_total") == {("work",): 3, (UNKNOWN,): 9}


def test_enqueues_are_counted(db: Database) -> None:
    """A process that only enqueues counts what it has committed (W2)."""
    registry = CollectorRegistry()
    stop = count_enqueues(["work"], registry)
    assert value(registry, "brooq_enqueued_total", topic="work") == 0
    facts = [JobEnqueued(uuid.uuid4(), topic) for topic in ("work", "work", "elsewhere")]
    try:
        with db.engine.begin() as connection:
            enqueued.tell(connection, facts)
            assert value(registry, "brooq_enqueued_total", topic="work") == 0
    finally:
        stop()
    assert series(registry, "brooq_enqueued_total") == {("work",): 2, (UNKNOWN,): 1}


def test_enqueues_are_counted_once(sqlite: Database) -> None:
    """However many ask for it, each job counts once, and for as long as one of them has not had enough (W2)."""
    registry = CollectorRegistry()
    stops = [count_enqueues(["work"], registry), count_enqueues(["work"], registry), count_enqueues(["mail"], registry)]

    def tell(topic: str) -> None:
        with sqlite.engine.begin() as connection:
            enqueued.tell(connection, [JobEnqueued(uuid.uuid4(), topic)])

    try:
        tell("work")
        tell("mail")
        stops[0]()
        stops[0]()
        tell("work")
        assert series(registry, "brooq_enqueued_total") == {("work",): 2, ("mail",): 1}
        stops[2]()
        tell("mail")
    finally:
        for stop in stops:
            stop()
    tell("work")
    assert series(registry, "brooq_enqueued_total") == {("work",): 2, ("mail",): 1, (UNKNOWN,): 1}


@pytest.mark.parametrize("keyed", [False, True])
def test_each_way_to_enqueue_counts(db: Database, keyed: bool) -> None:
    """One by one, in bulk, and by a chain: each committed job counts once, and a key that was taken does not (W2)."""
    job = job_class(lambda job, claim: claim.chain(RawJob("elsewhere", {})))

    def new(number: int) -> NewJob:
        return NewJob(job(number=number), key=f"k-{number}" if keyed else None)

    registry = CollectorRegistry()
    stop = count_enqueues(["work"], registry)
    try:
        with db.engine.begin() as connection:
            enqueue(connection, job(number=0), key="k-0" if keyed else None)
            enqueue_many(connection, [new(number) for number in range(5)])
            savepoint = connection.begin_nested()
            enqueue(connection, job(number=9))
            savepoint.rollback()
            assert series(registry, "brooq_enqueued_total") == {("work",): 0}
        own = 5 if keyed else 6
        assert series(registry, "brooq_enqueued_total") == {("work",): own}
        with Worker(db.engine, base_of(job), **FAST):
            wait_for(registry, "brooq_enqueued_total", own, topic=UNKNOWN)
    finally:
        stop()
    assert value(registry, "brooq_enqueued_total", topic="work") == own


# A worker.


def test_a_worker_is_measured(db: Database) -> None:
    """Jobs that are claimed, run and settled show in counters, histograms and gauges, with their topics (W2)."""
    release = threading.Event()

    def handler(job: Any, claim: Any) -> None:
        if job.number == 1:
            raise ValueError("no")
        if job.number == 2:
            raise CancelJob("no use")
        assert job.number == 0 or release.wait(20)

    job = job_class(handler, max_attempts=1)
    with measured(db, base_of(job)) as (_, registry):
        assert series(registry, "brooq_worker_slots") == {("free",): 4, ("busy",): 0, ("claimed",): 0, ("hung",): 0}
        for number in range(4):
            put(db, job(number=number))
        wait_for(registry, "brooq_worker_busy", 1, topic="work")
        wait_for(registry, "brooq_settle_total", 1, topic="work", outcome="canceled")
        wait_for(registry, "brooq_worker_slots", 3, state="free")
        assert value(registry, "brooq_worker_slots", state="busy") == 1
        wait_for(registry, "brooq_jobs", 1, topic="work", state="processing")
        release.set()
        wait_for(registry, "brooq_settle_total", 2, topic="work", outcome="done")
        assert series(registry, "brooq_settle_total") == {
            ("canceled", "work"): 1,
            ("dead", "work"): 1,
            ("done", "work"): 2,
            ("failed", "work"): 0,
            ("released", "work"): 0,
        }
        assert value(registry, "brooq_claimed_total", topic="work") == 4
        assert value(registry, "brooq_attempt_duration_seconds_count", topic="work") == 4
        assert value(registry, "brooq_ready_to_start_seconds_count", topic="work") == 4
        assert 0 < (value(registry, "brooq_ready_to_start_seconds_sum", topic="work") or 0) < 60
        assert value(registry, "brooq_batch_jobs_sum", move="claim") == 4
        assert value(registry, "brooq_batch_jobs_sum", move="settle") == 4
        assert (value(registry, "brooq_batch_duration_seconds_sum", move="claim") or 0) > 0
        wait_for(registry, "brooq_worker_busy", 0, topic="work")
        wait_for_some(registry, "brooq_heartbeat_late_seconds_count")
        assert set(series(registry, "brooq_worker_part_up").values()) == {1}
    assert value(registry, "brooq_worker_slots", state="free") == 0
    assert series(registry, "brooq_worker_part_up") == {}


def test_a_drained_queue_reads_zero(db: Database) -> None:
    """Depth and age of a topic that the base declares are 0 when it is empty; vanished topics have no series (W2)."""
    job = job_class(lambda job, claim: None)
    put(db, RawJob("nobody.knows", {}))
    put(db, RawJob("nobody.knows.either", {}))
    with measured(db, base_of(job)) as (_, registry):
        put(db, job())
        wait_for(registry, "brooq_jobs", 1, topic="work", state="done")
        assert value(registry, "brooq_jobs", topic="work", state="pending") == 0
        assert value(registry, "brooq_ready_oldest_age_seconds", topic="work") == 0
        assert value(registry, "brooq_jobs", topic=UNKNOWN, state="pending") == 2
        assert (value(registry, "brooq_ready_oldest_age_seconds", topic=UNKNOWN) or 0) > 0
        assert value(registry, "brooq_unknown_topics") == 2
        db.execute("DELETE FROM job")
        wait_for(registry, "brooq_unknown_topics", 0)
        assert {topic for _, topic in series(registry, "brooq_jobs")} == {"work"}
        assert set(series(registry, "brooq_jobs").values()) == {0}
        assert series(registry, "brooq_ready_oldest_age_seconds") == {("work",): 0}


def test_a_flood_of_unknown_topics_hides_nothing(db: Database) -> None:
    """Behind 2,500 topics that nobody declares, a declared one has its true depth and age, and they are one (W2)."""
    job = job_class(lambda job, claim: None, topic="work")
    with db.engine.begin() as connection:
        enqueue_many(connection, [RawJob(f"flood-{number:04}", {}) for number in range(2_500)])
        enqueue_many(connection, [NewJob(job(), delay="1h"), NewJob(job(), delay="1h", priority=9)])
    with measured(db, base_of(job)) as (_, registry):
        wait_for(registry, "brooq_jobs", 2, topic="work", state="pending")
        assert {topic for _, topic in series(registry, "brooq_jobs")} == {"work", UNKNOWN}
        assert (value(registry, "brooq_unknown_topics") or 0) >= depths.MOST_HEADS
        assert value(registry, "brooq_jobs_estimated", state="pending") == 1


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=new", "text/plain;version=1..2", "\xff;;,="])
def test_any_scraper_is_answered(sqlite: Database, accept: str) -> None:
    """Whatever a scraper says that it accepts, it gets the metrics (W2)."""
    registry = CollectorRegistry()
    content_type, text = Families.of(registry).exposition(accept)
    assert content_type.startswith("text/plain")
    assert b"brooq_worker_slots" in text


def test_tenants_are_told_apart(pg: Database) -> None:
    """Two workers whose tables differ by the schema that a name is translated to are two tables, and add up (W2)."""
    job = job_class(lambda job, claim: None)
    tenants = [pg.engine.execution_options(schema_translate_map={None: name}) for name in ("public", "tenant")]
    pg.execute("CREATE SCHEMA tenant")
    pg.execute("CREATE TABLE tenant.job (LIKE public.job INCLUDING ALL)")
    for engine in tenants:
        with engine.begin() as connection:
            enqueue(connection, job(), delay="1h")
    registry = CollectorRegistry()
    with ExitStack() as both:
        for engine in tenants:
            both.enter_context(looking_often(Worker(engine, base_of(job), metrics=registry, **FAST)))
        wait_for(registry, "brooq_jobs", 2, topic="work", state="pending")


def test_an_outage_shows(pg: Database) -> None:
    """Errors of the database are counted by the part that met them, which is down meanwhile; depth is not made up."""
    job = job_class(lambda job, claim: None)
    with measured(pg, base_of(job)) as (worker, registry):
        wait_until(lambda: not worker.unready, what="the worker being ready")
        pg.execute("ALTER TABLE job RENAME TO hidden")
        try:
            wait_for(registry, "brooq_worker_part_up", 0, part="claiming")
            for part in ("claiming", "metrics"):
                wait_for_some(registry, "brooq_database_errors_total", part=part)
        finally:
            pg.execute("ALTER TABLE hidden RENAME TO job")
        wait_for(registry, "brooq_worker_part_up", 1, part="claiming")


def test_hung_handlers_show_as_slots(sqlite: Database) -> None:
    """A handler that is given up is a hung slot until it ends after all (T3)."""
    release = threading.Event()
    job = job_class(lambda job, claim: release.wait(30), attempt_timeout="50ms", max_attempts=1)
    with measured(sqlite, base_of(job), watchdog_grace="50ms") as (_, registry):
        put(sqlite, job())
        wait_for(registry, "brooq_worker_slots", 1, state="hung")
        assert value(registry, "brooq_hung_workers_total", topic="work") == 1
        release.set()
        wait_for(registry, "brooq_worker_slots", 0, state="hung")
        assert value(registry, "brooq_settle_total", topic="work", outcome="dead") == 1
        ran = value(registry, "brooq_attempt_duration_seconds_sum", topic="work")
        assert ran is not None
        assert 0.1 <= ran < 30


def test_what_retention_deletes_is_counted(sqlite: Database) -> None:
    """Deleted jobs are counted by topic (U2)."""
    job = job_class(lambda job, claim: None)
    for _ in range(3):
        put(sqlite, job())
    sqlite.execute("UPDATE job SET state = 'done', updated_at = datetime('now', '-2 hours')")
    with measured(sqlite, base_of(job), retention_ttl="1h", retention_period="50ms") as (_, registry):
        wait_for(registry, "brooq_retention_deleted_total", 3, topic="work")


def test_workers_share_a_registry(sqlite: Database) -> None:
    """Two workers of one process count together, their slots add up, and their table is counted once (W2)."""
    one, other = job_class(lambda job, claim: None), job_class(lambda job, claim: None, topic="other")
    with measured(sqlite, base_of(one), workers=2) as (_, registry):
        with looking_often(Worker(sqlite.engine, base_of(other), metrics=registry, **FAST)):
            put(sqlite, one())
            put(sqlite, other())
            wait_for(registry, "brooq_jobs", 1, topic="work", state="done")
            wait_for(registry, "brooq_jobs", 1, topic="other", state="done")
            assert value(registry, "brooq_worker_slots", state="free") == 6
            assert value(registry, "brooq_unknown_topics") == 0
            assert series(registry, "brooq_enqueued_total") == {("work",): 1, ("other",): 1}
        wait_for(registry, "brooq_worker_slots", 2, state="free")
        put(sqlite, one())
        assert series(registry, "brooq_enqueued_total") == {("work",): 2, ("other",): 1}
        assert value(registry, "brooq_claimed_total", topic="other") == 1
        wait_for(registry, "brooq_jobs", 1, topic=UNKNOWN, state="done")


def test_a_registry_may_have_metrics_of_its_users(sqlite: Database) -> None:
    """What an application counts in the registry is beside ours."""
    job = job_class(lambda job, claim: sent.inc())
    with measured(sqlite, base_of(job)) as (_, registry):
        sent = Counter("app_mails_sent", "Mails.", registry=registry)
        put(sqlite, job())
        wait_for(registry, "app_mails_sent_total", 1)
        wait_for(registry, "brooq_settle_total", 1, topic="work", outcome="done")


def test_nothing_is_imported_that_nobody_asked_for(processes: Processes, sqlite: Database) -> None:
    """Neither importing everything nor a worker without metrics imports prometheus-client (I9)."""
    child = processes.script(
        f"""
        import sys
        import brooq_sa
        from brooq_sa import *
        from sqlalchemy import create_engine

        class Jobs(JobBase): ...
        class Job(Jobs, topic="work"):
            def run(self, claim): ...

        with Worker(brooq_sa.sqlite.configure(create_engine({sqlite.url!r})), Jobs):
            assert "prometheus_client" not in sys.modules
            assert not [name for name in sys.modules if name.startswith("http.server")]
        """
    )
    assert (child.wait(), child.output()) == (0, "")


# Several processes.

PROCESS = """
import sys, time
from pathlib import Path
import brooq_sa
from brooq_sa import JobBase, Worker
from sqlalchemy import create_engine

class Jobs(JobBase): ...
class Job(Jobs, topic="work"):
    number: int = 0
    def run(self, claim):
        Path(f"begun-{self.number}").touch()
        while self.number and not Path("go").exists():
            time.sleep(0.01)

engine = create_engine(sys.argv[1])
if engine.dialect.name == "sqlite":
    brooq_sa.sqlite.configure(engine)
worker = Worker(engine, Jobs, workers=2, poll_interval="20ms", http_addr=sys.argv[2])
worker.start()
print("at", worker.http_address, flush=True)
worker.wait()
"""


def scrape(address: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as response:
        text = response.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_several_processes_behind_one_port(processes: Processes, sqlite: Database) -> None:
    """In multiprocess mode any of them answers for all at one port, and gauges of the dead are gone (W2)."""
    (shared := processes.folder / "metrics").mkdir()
    environment = {metrics.MULTIPROCESS: str(shared)}
    first = processes.script(PROCESS, sqlite.url, "127.0.0.1:0", env=environment)
    address = address_of(first)
    second = processes.script(PROCESS, sqlite.url, address, env=environment)
    assert address_of(second) == address
    job = job_class(lambda job, claim: None)
    for number in range(1, 4):
        put(sqlite, job(number=number))
    busy = (("topic", "work"),)
    wait_until(lambda: scrape(address)["brooq_worker_busy"][busy] == 3, what="three busy slots", timeout=30)
    slots = scrape(address)["brooq_worker_slots"]
    assert {labels[0][1]: count for labels, count in slots.items()} == {"free": 1, "busy": 3, "claimed": 0, "hung": 0}
    wait_until(lambda: scrape(address)["brooq_claimed_total"][busy] == 3, what="three claims counted")
    second.kill()
    wait_until(lambda: sum(scrape(address)["brooq_worker_slots"].values()) == 2, what="one process's slots", timeout=30)
    found = scrape(address)
    assert found["brooq_claimed_total"][busy] == 3  # what has been counted stays counted
    assert (("state", "processing"), ("topic", "work")) in found["brooq_jobs"]
    (processes.folder / "go").touch()
    done = (("outcome", "done"), ("topic", "work"))
    wait_until(lambda: scrape(address)["brooq_settle_total"][done] >= 1, what="a job being done", timeout=30)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
def test_a_process_that_nobody_has_buried_is_dead(tmp_path: Path) -> None:
    """The gauges of one that has ended go, also while its parent has not asked how it ended (W2)."""
    with subprocess.Popen([sys.executable, "-c", "", "(odd) Z name"]) as child:
        wait_until(lambda: not metrics._is_alive(child.pid), what="the child being dead")
        assert child.returncode is None  # nobody has asked, so it is a zombie
        (tmp_path / f"gauge_livesum_{child.pid}.db").touch()
        (tmp_path / f"gauge_livesum_{os.getpid()}.db").touch()
        metrics.forget_the_dead(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [f"gauge_livesum_{os.getpid()}.db"]


def test_a_folder_that_is_not_there(sqlite: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several processes' folder has to be there; that it is not is told by name, with the next step (W2, U3)."""
    monkeypatch.setenv(metrics.MULTIPROCESS, str(tmp_path / "nowhere"))
    job = job_class(lambda job, claim: None)
    with pytest.raises(SettingsError, match=r"PROMETHEUS_MULTIPROC_DIR: '.*nowhere' is no folder"):
        Worker(sqlite.engine, base_of(job), http_addr="127.0.0.1:0")


def address_of(child: Any) -> str:
    child.wait_for_output("at ")
    found = re.search(r"at (\S+)", child.output())
    assert found is not None
    return found[1]


# Prometheus itself.


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here; Debian's package prometheus has it")
    return found


@pytest.fixture
def worked(sqlite: Database) -> Iterator[Worker]:
    """A worker with an endpoint that has done a job."""
    job = job_class(lambda job, claim: None)
    with Worker(sqlite.engine, base_of(job), http_addr="127.0.0.1:0", metrics=CollectorRegistry(), **FAST) as worker:
        put(sqlite, job())
        wait_until(lambda: sqlite.states() == ["done"], what="the job being done")
        yield worker


def test_promtool_finds_no_fault(worked: Worker) -> None:
    """`promtool check metrics` has nothing to say about names, types and help (W2)."""
    promtool = program("promtool")
    with urllib.request.urlopen(f"http://{worked.http_address}/metrics", timeout=20) as response:
        text = response.read()
    run = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_a_real_prometheus_scrapes_it(worked: Worker, tmp_path: Path) -> None:
    """A Prometheus server takes all that a worker serves, and knows the topic's jobs (W2)."""
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: brooq, static_configs: [{{targets: ['{worked.http_address}']}}]}}]\n"
    )
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            for query in (
                "up",
                'brooq_settle_total{topic="work",outcome="done"}',
                'brooq_jobs{topic="work",state="done"}',
                "brooq_ready_to_start_seconds_count",
            ):
                wait_until(lambda query=query: asked(port, query) == ["1"], what=f"{query} being 1", timeout=30)  # type: ignore[misc]
        finally:
            server.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def asked(port: int, query: str) -> list[str]:
    """The values that Prometheus has for a query; none while it cannot be asked."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return [result["value"][1] for result in json.load(response)["data"]["result"]]
    except (OSError, ValueError):
        return []
