"""A whole run: set up, torment, heal, work off, judge."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from chaos import audit, judge, ledger
from chaos.fleet import Fleet
from chaos.jobs import LEASE
from chaos.plan import Fault, plan
from chaos.proxy import Line, Network
from chaos.servers import Servers
from chaos.tormentor import Tormentor
from databases import make_engine, migrate

WORK_OFF = 120.0
"""Seconds that the queue gets to be worked off, once all is well."""

NOBODY = 15.0
"""Seconds until nobody may be connected any more, once all processes have ended."""

SETTINGS = {
    "workers": "8",
    "lease": f"{LEASE:g}s",
    "poll-interval": "100ms",
    "reaper-period": "500ms",
    "attempt-timeout": "30s",
    "max-execution-timeout": "60s",
    "watchdog-grace": "2s",
    "backoff-base": "100ms",
    "backoff-max": "1s",
    "retention-ttl": f"{judge.RETENTION:g}s",
    "retention-period": "2s",
    "grace": f"{2 * LEASE:g}s",
}
"""Of the workers. The grace is longer than the lease, so that a drain without heartbeats would show."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is.

    Attributes:
        seconds: how long the tormentor goes on.
        only: these faults alone; none is all.
        mutant: how the workers are broken, or None.
        rate: transactions that each producer tries a second.
        folder: for logs and ledgers, kept; None is a temporary one, kept only if something is off.
        postgresql: major version, or the folder of ``pg_ctl``.
    """

    seconds: float
    seed: int
    workers: int = 3
    producers: int = 2
    rate: float = 7.0
    is_sqlite: bool = False
    only: frozenset[str] = frozenset()
    mutant: str | None = None
    folder: Path | None = None
    postgresql: str = "18"


@dataclass
class Report:
    """What came of a run.

    Attributes:
        off: each thing that must be nought, and is not.
        counts: each thing that must be nought, and how often it was found.
    """

    options: Options
    faults: list[Fault]
    injected: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    work: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def off(self) -> dict[str, int]:
        return {what: count for what, count in self.counts.items() if count}


def run(options: Options, say: Callable[[str], None] = lambda _: None) -> Report:
    """Carry out a run; it takes its seconds and as long as it takes to work the queue off."""
    folder = options.folder or Path(tempfile.mkdtemp(prefix="brooq-chaos-run-"))
    folder.mkdir(parents=True, exist_ok=True)
    faults = plan(options.seed, options.seconds, is_sqlite=options.is_sqlite, only=options.only)
    report = Report(options, faults, folder=folder)
    with ExitStack() as stack:
        _Run(options, folder, report, stack, say).carry_out()
    if not report.off and options.folder is None:
        shutil.rmtree(folder)
        report.folder = None
    return report


class _Run:
    """The parts of one run, and its steps in order."""

    def __init__(
        self, options: Options, folder: Path, report: Report, stack: ExitStack, say: Callable[[str], None]
    ) -> None:
        self._options = options
        self._report = report
        self._say = say
        self._ledgers = folder / "ledgers"
        self._ledgers.mkdir()
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._servers: Servers | None = None
        self._network: Network | None = None
        self._lines: dict[str, Line] = {}
        self._path = folder / "jobs.sqlite"
        if not options.is_sqlite:
            self._servers = stack.enter_context(Servers(options.postgresql))
            self._network = stack.enter_context(Network(self._servers.ports))
        self._fleet = Fleet(self._logs, self._ledgers, options.mutant)
        stack.callback(self._fleet.end)
        self._tormentor = Tormentor(self._fleet, self._servers or self._url(), self._lines, options.seed)
        stack.callback(self._tormentor.rest)

    def carry_out(self) -> None:
        with self._engine() as engine:
            migrate(engine)
            audit.prepare(engine)
        self._man()
        self._fleet.start()
        self._fleet.wait_until_begun()
        self._say(f"{len(self._report.faults)} faults in {self._options.seconds:g} seconds")
        self._tormentor.torment(self._report.faults, self._options.seconds)
        self._tormentor.heal(self._network)
        self._say("all is well again; working the queue off")
        self._fleet.stop("producer")
        began = time.monotonic()
        self._work_off()
        self._report.work["seconds until the queue was worked off"] = round(time.monotonic() - began)
        self._fleet.stop("consumer")
        self._fleet.stop("worker")
        self._tormentor.rest()
        self._judge()

    def _man(self) -> None:
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        for number in range(self._options.workers):
            self._add(f"w{number}", "worker", lambda url: [f"--url={url}", *settings, "chaos.jobs:ChaosJob"])
        self._add("c0", "consumer", lambda url: [url])
        for number in range(self._options.producers):
            self._add(f"p{number}", "producer", self._of_a_producer(number))

    def _of_a_producer(self, number: int) -> Callable[[str], list[str]]:
        return lambda url: [url, f"producer {self._options.seed} {number}", f"{self._options.rate:g}"]

    def _add(self, name: str, role: str, arguments: Callable[[str], list[str]]) -> None:
        if self._network is not None:
            self._lines[name] = self._network.line()
        self._fleet.add(name, role, lambda who: arguments(self._url_through(name, who)))

    def _url(self) -> str:
        return self._servers.url() if self._servers is not None else f"sqlite:///{self._path}"

    def _url_through(self, name: str, who: str) -> str:
        """The database as the process in a place reaches it: either server, whichever can be written to."""
        if self._servers is None:
            return self._url()
        hosts = "&".join(f"host=127.0.0.1:{port}" for port in self._lines[name].ports)
        wanted = "primary" if name.endswith("1") else "read-write"
        return f"postgresql+psycopg://postgres@/postgres?{hosts}&target_session_attrs={wanted}&application_name={who}"

    @contextmanager
    def _engine(self) -> Iterator[Engine]:
        engine = make_engine(self._url())
        try:
            yield engine
        finally:
            engine.dispose()

    def _work_off(self) -> None:
        deadline = time.monotonic() + WORK_OFF
        query = text("SELECT count(*) FROM job WHERE state IN ('pending', 'failed', 'processing')")
        left = 1
        while left and time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                with self._engine() as engine, engine.connect() as connection:
                    left = int(connection.execute(query).scalar_one())
            except SQLAlchemyError:
                continue

    def _judge(self) -> None:
        connections = self._connections_left()
        processes = self._fleet.end()
        evidence = ledger.read(self._ledgers)
        with self._engine() as engine:
            records = audit.read(engine)
        verdict = judge.judge(records, evidence, self._tormentor.troubles)
        report, fleet = self._report, self._fleet
        report.injected, report.missed = self._tormentor.injected, self._tormentor.missed
        report.troubles = Counter(
            trouble.what
            for trouble in [*self._tormentor.troubles, *evidence.troubles]
            if trouble.what.startswith(("the ", "lock of"))
        )
        report.counts = {
            **verdict.counts,
            "workers and others that ended by themselves": len(fleet.died),
            "processes that did not end in good order": len(fleet.in_disorder),
            "processes left over": len(processes),
            "connections left over": len(connections),
        }
        report.examples = {
            **verdict.examples,
            "workers and others that ended by themselves": fleet.died[: judge.SHOWN],
            "processes that did not end in good order": fleet.in_disorder[: judge.SHOWN],
            "connections left over": connections[: judge.SHOWN],
        }
        report.work |= _work(records, evidence, verdict, fleet) | dict(sorted(self._tormentor.operated.items()))

    def _connections_left(self) -> list[str]:
        if self._servers is None:
            return []
        query = "SELECT application_name, state FROM pg_stat_activity WHERE application_name ~ '^chaos-[wcp]'"
        deadline = time.monotonic() + NOBODY
        left: list[str] = [""]
        while left and time.monotonic() < deadline:
            try:
                left = [f"{name}, {state}" for name, state in self._servers.execute(query)]
            except psycopg.Error:
                continue
        return left


def _work(records: audit.Records, evidence: ledger.Evidence, verdict: judge.Verdict, fleet: Fleet) -> dict[str, int]:
    answers = Counter(promise.answer for promise in evidence.promises if promise.is_new)
    ends = Counter(judge.final(versions).state for versions in records.history.values())
    moves = Counter(version.state for versions in records.history.values() for version in versions[1:])
    return {
        "jobs committed": answers[ledger.COMMITTED],
        "jobs rolled back": answers[ledger.ROLLED_BACK],
        "jobs in doubt": answers[ledger.IN_DOUBT],
        "jobs not new, by their key": sum(not promise.is_new for promise in evidence.promises),
        "jobs in the table": len(records.history),
        **{f"ended {state}": ends[state] for state in judge.TERMINAL},
        "failed attempts": moves["failed"],
        "runs of handlers": len(evidence.runs),
        "effects": len(records.effects),
        "leases reaped": verdict.reaps,
        "outcomes refused": fleet.told('"event": "job_lease_lost"'),
        "handlers hung": fleet.told('"event": "handler_hung"'),
        "processes started": fleet.started,
        "starts refused, the database being down": fleet.refused,
    }
