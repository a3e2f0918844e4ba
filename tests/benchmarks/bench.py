"""What the measurements share: one server, its databases, the peers, and worker processes that end with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine

from benchmarks import tally
from benchmarks.jobs import TALLY
from benchmarks.peers.installing import Peers
from benchmarks.server import Server, disk
from benchmarks.sizes import Sizes
from brooq_sa import migrations

TESTS = Path(__file__).parent.parent
START = 60.0
"""Seconds that a worker process gets until its first handler, and a drain without progress."""


class Bench:
    """A run of the suite.

    Args:
        postgresql: major version, or the folder of ``pg_ctl``.
        slots: of our workers in drains.
        batch: how many jobs pgqueuer takes at a time, in drains.
    """

    def __init__(self, sizes: Sizes, peers: Peers, *, postgresql: str = "18", slots: int = 10) -> None:
        self.sizes = sizes
        self.peers = peers
        self.slots = slots
        self._postgresql = postgresql
        self._stack = ExitStack()
        self._databases: dict[str, str] = {}
        self._files = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @cached_property
    def server(self) -> Server:
        """The server, started at first use."""
        return self._stack.enter_context(Server(self._postgresql))

    @cached_property
    def folder(self) -> Path:
        """For files, on the disk that the server's data would lie on."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="brooq-benchmarks-", dir=disk())))

    @cached_property
    def environment(self) -> dict[str, str]:
        """For processes of ours, which compile what they import once for all, whatever this process was told."""
        ours = {"PYTHONPATH": str(TESTS), "PYTHONPYCACHEPREFIX": str(self.folder / "compiled")}
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | ours

    def new_file(self, suffix: str) -> Path:
        """The path of a file that is not there yet."""
        self._files += 1
        return self.folder / f"{self._files}{suffix}"

    def database(self, name: str, prepare: Callable[[str], None] | None = None) -> str:
        """The name of a database of this run, made at first use.

        Args:
            prepare: takes its name when it has been made; our own migrations, if left out.
        """
        if name not in self._databases:
            with self.server.connect() as connection:
                connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0'.encode())
            (prepare or self._migrate)(name)
            self._databases[name] = name
        return name

    def _migrate(self, database: str) -> None:
        with self.engine(database) as engine:
            migrations.upgrade(engine)

    @contextmanager
    def engine(self, database: str) -> Iterator[Engine]:
        """An engine on one of the databases, as a user would make it."""
        engine = create_engine(self.server.url(database))
        try:
            yield engine
        finally:
            engine.dispose()

    def calm(self, database: str) -> None:
        """Bring a database into the state that it would reach if nobody did anything for a while."""
        with self.server.connect(database) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    @contextmanager
    def process(self, command: Sequence[str]) -> Iterator[Working]:
        """A worker process, from its start until it is told to stop."""
        path = self.new_file(".tally")
        tally.prepare(path)
        log = path.with_suffix(".log")
        environment = self.environment | {TALLY: str(path)}
        with log.open("wb") as output:
            popen = subprocess.Popen(
                list(command),
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        working = Working(popen, path, log)
        try:
            yield working
        finally:
            working.stop()

    def ours(self, url: str, topics: Sequence[str], *, slots: int | None = None, **settings: str) -> list[str]:
        """The command of a worker process of ours."""
        given = [f"--setting={name}={value}" for name, value in settings.items()]
        slots_given = [] if slots is None else [f"--slots={slots}"]
        return [sys.executable, "-m", "benchmarks.worker", url, *slots_given, *given, *topics]


class Working:
    """A worker process that is being measured."""

    def __init__(self, popen: subprocess.Popen[bytes], path: Path, log: Path) -> None:
        self._popen = popen
        self.tally = path
        self._log = log

    @property
    def count(self) -> int:
        """How many handlers have begun."""
        return tally.read(self.tally)[0]

    @property
    def first(self) -> float:
        """When the first of them did, by the clock of the host."""
        return tally.read(self.tally)[1]

    @property
    def memory(self) -> float:
        """Its resident memory, in MB; 0 where the system does not tell."""
        try:
            status = Path(f"/proc/{self._popen.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return next(
            (int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmRSS")), 0.0
        )

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._popen.poll() is not None:
            raise RuntimeError(f"A worker ended by itself, with {self._popen.returncode}:\n{self.output()[-3_000:]}")

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()


def wait(condition: Callable[[], object], what: str, *, check: Callable[[], None] = lambda: None) -> None:
    """Wait until a condition is true, for as long as `START` at the most."""
    deadline = time.monotonic() + START
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{START:g} seconds passed without {what}")
        time.sleep(0.005)


def scalar(connection: psycopg.Connection[tuple[Any, ...]], sql: str) -> Any:
    """The one value that a query gives."""
    row = connection.execute(sql.encode()).fetchone()
    return None if row is None else row[0]
