"""A durable PostgreSQL for the time of a run: on a disk, with fsync and synchronous_commit on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from chaos.servers import HEIR, free_port
from postgresql_server import PG_CTL, find_binaries, for_ordinary_user, is_refused_by_postgresql

PATIENCE = 60
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_line_prefix": "%n %p ",
}
"""All else is as PostgreSQL comes."""

LOGGED = "-c log_min_duration_statement=0"
"""For a connection whose every statement is to stand in the server's log, with its duration."""

_ENTRY = re.compile(r"^(\d+\.\d+) (\d+) (\w+):  ", re.MULTILINE)
_TIMED = re.compile(r"duration: ([\d.]+) ms(?:  (parse|bind|execute|statement)[^:]*: (.*))?", re.DOTALL)


def disk() -> Path:
    """Where data lie on a real disk: never in memory, whose commits cost nothing."""
    return Path(os.environ.get("TMPDIR", "/var/tmp"))


class Logged:
    """A statement as the server logged it.

    Attributes:
        at: when it ended, in seconds of the host's clock.
        milliseconds: that binding (which is when it is planned) and executing took.
    """

    def __init__(self, at: float, text: str, milliseconds: float) -> None:
        self.at = at
        self.text = text
        self.milliseconds = milliseconds


class Server:
    """A context manager that leaves nothing behind, however the process ends."""

    def __init__(self, version: str) -> None:
        self._binaries = find_binaries(version)
        self._folder = Path(tempfile.mkdtemp(prefix="brooq-benchmarks-", dir=disk()))
        self._wrapped = for_ordinary_user(self._binaries) if is_refused_by_postgresql() else None
        self._programs = self._wrapped or self._binaries
        self.port = free_port()
        self._heir = subprocess.Popen(
            ["sh", "-c", HEIR, "heir", str(self._programs / PG_CTL), str(self._folder), str(self._wrapped or "")],
            cwd=self._folder.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Server:
        try:
            self._run("initdb", "-s", "-D", str(self._data), "-o", "-U postgres -A trust -E UTF8 --no-locale")
            given = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
            self._run(
                "start", "-s", "-w", "-t", str(PATIENCE), "-D", str(self._data), "-l", str(self.log),
                "-o", f"-p {self.port} {given}",
            )  # fmt: skip
        except BaseException:
            self._heir.communicate()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._heir.communicate()

    @property
    def folder(self) -> Path:
        """On the same disk as the data, and removed with them."""
        return self._folder

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def address(self, database: str) -> str:
        """A URL of libpq's."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def url(self, database: str) -> str:
        """The same for SQLAlchemy."""
        return self.address(database).replace("postgresql:", "postgresql+psycopg:")

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection."""
        return psycopg.connect(self.address(database), autocommit=True)

    def logged(self, start: int) -> Iterator[Logged]:
        """The statements that `LOGGED` connections have run, from a place in the log."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            file.seek(start)
            text = file.read()
        found = list(_ENTRY.finditer(text))
        bound: dict[str, float] = {}
        ends = [*(entry.start() for entry in found[1:]), None]
        for entry, end in zip(found, ends, strict=False):
            timed = _TIMED.match(text[entry.end() : end])
            if timed is None or timed[2] is None:
                continue
            pid, milliseconds = entry[2], float(timed[1])
            if timed[2] in ("parse", "bind"):
                bound[pid] = bound.get(pid, 0.0) + milliseconds
            else:
                yield Logged(float(entry[1]), timed[3], milliseconds + bound.pop(pid, 0.0))

    def log_end(self) -> int:
        """The place in the log where what comes next will stand."""
        return self.log.stat().st_size

    def _run(self, command: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        with tempfile.TemporaryFile() as output:  # no pipe: the server inherits it
            done = subprocess.run(
                [str(self._programs / PG_CTL), command, *arguments],
                env=environment | {"LC_ALL": "C"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output.seek(0)
            if done.returncode != 0:
                raise RuntimeError(f"{PG_CTL} {command} failed, {done.returncode}: {output.read().decode()}")


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
