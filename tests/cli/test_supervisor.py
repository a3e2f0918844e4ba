"""What systemd is told, through a real datagram socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brooq_sa.cli.supervisor import Supervisor
from databases import Database
from processes import Processes
from waiting import wait_until

JOBS = """
from brooq_sa import JobBase

class AppJob(JobBase): ...

class Job(AppJob, topic="work"):
    def run(self, claim):
        import os
        print("NOTIFY_SOCKET" in os.environ, flush=True)
"""


class Listening:
    """The supervisor's end.

    Attributes:
        told: the datagrams so far.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def hear(self) -> list[str]:
        with suppress(BlockingIOError):
            while True:
                self.told.append(self._socket.recv(4_096).decode())
        return self.told

    def has_heard(self, text: str, times: int = 1) -> bool:
        return sum(text in datagram.splitlines() for datagram in self.hear()) >= times

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listening]:
    """A socket in the file system, or one that has a name alone."""
    path = f"{tmp_path}/n"
    made = Listening(path if request.param == "file" else f"@brooq{path}")
    yield made
    made.close()


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_worker_tells_its_supervisor(processes: Processes, db: Database, listening: Listening) -> None:
    """It says READY once it claims, WATCHDOG while it lives, STOPPING when it stops; handlers cannot (W2)."""
    (processes.folder / "own_jobs.py").write_text(JOBS, encoding="utf-8")
    db.execute("INSERT INTO job (id, topic, payload) VALUES ('01a22df7ff1173e0983222bb2cf027b1', 'work', '{}')")
    worker = processes.module(
        "brooq_sa",
        "worker",
        "own_jobs:AppJob",
        env={"DATABASE_URL": db.url, "NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "300000"},
    )
    wait_until(lambda: listening.has_heard("READY=1"), what="READY=1", timeout=30)
    wait_until(lambda: listening.has_heard("WATCHDOG=1", 3), what="three WATCHDOG=1", timeout=30)
    assert not listening.has_heard("STOPPING=1")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.output()
    assert listening.has_heard("STOPPING=1")
    assert sum("READY=1" in told for told in listening.told) == 1
    assert [line for line in worker.output().splitlines() if line in ("True", "False")] == ["False"]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Any]:
    """Makes a supervisor with a watchdog, and what it is told."""
    listening = Listening(f"{tmp_path}/n")

    def make(**changes: str) -> tuple[Supervisor, Listening]:
        environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "30000000", **changes}
        supervisor = Supervisor(environment)
        assert environment == {}
        return supervisor, listening

    yield make
    listening.close()


def test_the_watchdog_is_fed_while_it_is_healthy(told: Any) -> None:
    """A worker whose threads do not turn is not said to be alive; one without a database is, and is not ready (W2)."""
    supervisor, listening = told()
    supervisor.tell(["claiming fails: no route"], is_alive=True)
    supervisor.tell(["claiming fails: no route"], is_alive=False)
    supervisor.tell(["claiming fails: no route"], is_alive=True)
    assert listening.hear() == ["WATCHDOG=1", "STATUS=Not ready: claiming fails: no route.", "WATCHDOG=1"]
    supervisor.tell([], is_alive=False)
    supervisor.tell(["claiming fails: no route"], is_alive=False)
    assert listening.hear()[3:] == ["READY=1\nSTATUS=Running jobs."]


def test_how_often(told: Any) -> None:
    """Until it is ready it looks often; then at a third of what the watchdog allows, or never."""
    supervisor, _ = told()
    assert supervisor.period == pytest.approx(0.1)
    supervisor.tell([], is_alive=True)
    assert supervisor.period == pytest.approx(10)
    supervisor, _ = told(WATCHDOG_USEC="")
    supervisor.tell([], is_alive=True)
    assert supervisor.period is None
    assert Supervisor({}).period is None


def test_a_watchdog_for_another_process(told: Any) -> None:
    """WATCHDOG_PID says for whom it is."""
    supervisor, listening = told(WATCHDOG_PID=str(os.getpid() + 1))
    supervisor.tell([], is_alive=True)
    assert listening.hear() == ["READY=1\nSTATUS=Running jobs."]


def test_a_supervisor_that_is_gone(told: Any) -> None:
    """Nobody hears, and nothing fails."""
    supervisor, listening = told()
    listening.close()
    supervisor.tell([], is_alive=True)
    Supervisor({"NOTIFY_SOCKET": "/nowhere/at/all"}).tell_of_stop()
    Supervisor({}).tell([], is_alive=True)
