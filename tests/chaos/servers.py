"""A pair of PostgreSQL servers that are there to be stopped, killed and replaced by one another.

One is the primary. A standby is made of it only when it is to be promoted, and is then in step with it: what the
primary has acknowledged by then, the standby has.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Any

import psycopg

from postgresql_server import PG_CTL, find_binaries, for_ordinary_user, is_refused_by_postgresql

PATIENCE = 60.0
PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections: a server that is down must find its port free again."""

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_connections": "150",
    "shared_buffers": "64MB",
}


MEMORY = Path("/dev/shm")
ENOUGH = 1 << 30


def _fast_folder() -> Path | None:
    """Memory, if there is some: a kill of processes loses nothing of it, and recovery takes a tenth of the time."""
    is_fit = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH
    return MEMORY if is_fit else None


def free_port() -> int:
    """A port of this host that nobody listens on."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


HEIR = """
    cat
    for data in "$2"/data*; do
        test -e "$data/postmaster.pid" && "$1" stop -s -D "$data" -m immediate
    done
    rm -rf "$2" ${3:+"$3"}
"""
"""Run once our end of its pipe is closed. Takes pg_ctl, the folder of the servers, and one of programs or ""."""


class Servers:
    """The two places of a server, one of which is the primary. A context manager that leaves nothing behind."""

    def __init__(self, version: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="brooq-chaos-", dir=_fast_folder()))
        self._programs, self._wrapped = _programs(version)
        self.ports = (free_port(), free_port())
        self.primary = 0
        self._heir = self._appoint_heir()

    def _appoint_heir(self) -> subprocess.Popen[bytes]:
        """A process that stops the servers and removes their folders once we let go of it, or are killed.

        A server outlives whoever started it, and a suite that is about kills will be killed itself.
        """
        return subprocess.Popen(
            ["sh", "-c", HEIR, "heir", str(self._programs / PG_CTL), str(self._folder), str(self._wrapped or "")],
            cwd=self._folder.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Servers:
        try:
            options = "-U postgres -A trust -E UTF8 --no-locale --no-sync"
            self._run(PG_CTL, "initdb", "-s", "-D", str(self._data(0)), "-o", options)
            self.start()
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clean()

    def _clean(self) -> None:
        self._heir.communicate()

    def url(self, **query: str) -> str:
        """Of the primary, as it is now, around any proxy."""
        options = "".join(f"&{name}={value}" for name, value in query.items())
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.ports[self.primary]}/postgres?connect_timeout=5{options}"

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection of the superuser to the primary, for what must go on in any case."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.ports[self.primary],
            user="postgres",
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
            options="-c default_transaction_read_only=off -c statement_timeout=20s",
            **options,
        )

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connect(application_name="chaos-tormentor") as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    # What is done to them.

    def start(self) -> None:
        self._start(self.primary)

    def _start(self, place: int) -> None:
        given = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
        self._run(
            PG_CTL, "start", "-s", "-w", "-t", str(int(PATIENCE)), "-D", str(self._data(place)),
            "-l", str(self._log(place)), "-o", f"-p {self.ports[place]} {given}",
        )  # fmt: skip

    def stop(self, mode: str) -> None:
        """Stop the primary: ``fast`` or ``immediate``, which is a crash."""
        self._run(PG_CTL, "stop", "-s", "-w", "-D", str(self._data(self.primary)), "-m", mode)

    def kill_a_backend(self, pid: int) -> None:
        """Kill a process of the server; it ends all connections and recovers, as after a crash."""
        os.kill(pid, signal.SIGKILL)

    def promote(self, mode: str) -> None:
        """Make a standby, wait until it is in step, stop the primary and let the standby take its place."""
        standby = 1 - self.primary
        self._follow(standby)
        self.stop(mode)
        self._run(PG_CTL, "promote", "-s", "-w", "-D", str(self._data(standby)))
        self.primary = standby
        self.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self.execute("SELECT pg_reload_conf()")

    def _follow(self, standby: int) -> None:
        data = self._data(standby)
        shutil.rmtree(data, ignore_errors=True)
        self._run(
            "pg_basebackup", "-D", str(data), "-h", "127.0.0.1", "-p", str(self.ports[self.primary]), "-U", "postgres",
            "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        self._start(standby)
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        # From "sync" on no commit is acknowledged before the standby has it; those before are in what it replays first.
        in_step = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"
        _wait(lambda: self.execute(in_step), "the standby being in step")

    def lets_nobody_write(self, is_read_only: bool) -> None:
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if is_read_only else 'off'}")
        self.execute("SELECT pg_reload_conf()")

    def _data(self, place: int) -> Path:
        return self._folder / f"data{place}"

    def _log(self, place: int) -> Path:
        return self._folder / f"server{place}.log"

    def log(self) -> str:
        """What the servers logged."""
        return "\n".join(
            self._log(place).read_text(encoding="utf-8", errors="replace")
            for place in (0, 1)
            if self._log(place).exists()
        )

    def _run(self, program: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        # A file and no pipe: the server inherits it, and a pipe would be open for as long as the server runs.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                env=environment | {"LC_ALL": "C"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output.seek(0)
            if done.returncode != 0:
                said = output.read().decode(errors="replace")
                raise RuntimeError(f"{program} {arguments[0]} failed, {done.returncode}: {said}\n{self.log()[-3_000:]}")


def _programs(version: str) -> tuple[Path, Path | None]:
    """The folder of the programs, and that which is to be removed afterwards, if any."""
    binaries = find_binaries(version)
    if not is_refused_by_postgresql():
        return binaries, None
    wrapped = for_ordinary_user(binaries, (PG_CTL, "pg_basebackup"))
    return wrapped, wrapped


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{PATIENCE:g} seconds passed without {what}")
        time.sleep(0.05)
