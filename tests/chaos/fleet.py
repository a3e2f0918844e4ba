"""The processes of a run, each of which is started again whenever it has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaos import ledger
from processes import Child

TESTS = Path(__file__).parent.parent
PAUSE = 0.3
LAST_GRACE = 40.0
"""Seconds that a process gets to end in good order, at the end."""

STARTED = {"worker": "worker_started", "consumer": "consumer_started", "producer": "producer_started"}


@dataclass
class Place:
    """Where one process after the other runs.

    Attributes:
        name: of the place; the processes add a number.
        who: the name of the process that is there now, as its connections show it.
        is_asked: whether the process that is there has been told or made to end.
        is_kept: whether another one is to follow it.
    """

    name: str
    role: str
    arguments: Callable[[str], list[str]]
    child: Child | None = None
    who: str = ""
    started: int = 0
    is_asked: bool = False
    is_kept: bool = True
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def has_begun(self) -> bool:
        """Whether the process has reached the database."""
        return self.child is not None and STARTED[self.role] in self.child.output()


class Fleet:
    """Keeps every place filled.

    Attributes:
        died: processes that ended though nobody had told them to.
        refused: how often one could not begin, since the database was out of reach.
        in_disorder: processes that did not end in good order when they were told to, at the end.
    """

    def __init__(self, folder: Path, ledgers: Path, mutant: str | None) -> None:
        self.places: list[Place] = []
        self.died: list[str] = []
        self.in_disorder: list[str] = []
        self.refused = 0
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUEUE_", "PG"))},
            "PYTHONPATH": str(TESTS),
            "PYTHONUNBUFFERED": "1",
            ledger.FOLDER: str(ledgers),
        }
        self._mutant = {"BROOQ_CHAOS_MUTANT": mutant} if mutant else {}
        self._children: list[Child] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="fleet", daemon=True)

    def add(self, name: str, role: str, arguments: Callable[[str], list[str]]) -> Place:
        """Add a place; `arguments` are those of the process with the name given."""
        place = Place(name, role, arguments)
        self.places.append(place)
        return place

    def of(self, role: str) -> list[Place]:
        return [place for place in self.places if place.role == role]

    def start(self) -> None:
        for place in self.places:
            self._fill(place)
        self._thread.start()

    def wait_until_begun(self) -> None:
        """Return once every process has reached the database, so that faults meet them at work."""
        deadline = time.monotonic() + LAST_GRACE
        while not all(place.has_begun for place in self.places):
            if time.monotonic() > deadline:
                raise RuntimeError("\n".join(str(place.child and place.child.output()) for place in self.places))
            time.sleep(0.1)

    def _fill(self, place: Place) -> None:
        place.started += 1
        place.who = f"chaos-{place.name}-{place.started}"
        place.is_asked = False
        place.child = Child(
            [sys.executable, "-m", "chaos.child", place.role, *place.arguments(place.who)],
            log=self._folder / f"{place.who}.log",
            folder=self._folder,
            environment=self._environment | {ledger.NAME: place.who} | (self._mutant if place.role == "worker" else {}),
        )
        self._children.append(place.child)

    def _supervise(self) -> None:
        while not self._is_over.wait(PAUSE):
            for place in self.places:
                with place.lock:
                    if place.is_kept and place.child is not None and not place.child.is_running:
                        self._note_end(place)
                        self._fill(place)

    def _note_end(self, place: Place) -> None:
        if place.is_asked or place.child is None:
            return
        if place.has_begun:
            code = place.child.popen.returncode
            self.died.append(f"{place.who} ended by itself, {code}: {place.child.output()[-800:]}")
        else:
            self.refused += 1

    def kill(self, place: Place) -> str:
        """End the process there as SIGKILL does; its name."""
        with place.lock:
            place.is_asked = True
            if place.child is not None:
                place.child.kill()
            return place.who

    def send(self, place: Place, number: signal.Signals, *, ends: bool = False) -> str:
        """Send the process there a signal; its name."""
        with place.lock:
            place.is_asked = place.is_asked or ends
            if place.child is not None and place.child.is_running:
                place.child.send(number)
            return place.who

    def wake_all(self) -> None:
        """Let every process that is stopped go on."""
        for place in self.places:
            self.send(place, signal.SIGCONT)

    def stop(self, role: str) -> None:
        """Empty the places of a role for good: each process is told to end, and has time for it."""
        told = [place for place in self.places if place.role == role and place.child is not None]
        self.places = [place for place in self.places if place not in told]
        for place in told:
            with place.lock:
                place.is_asked, place.is_kept = True, False
                if place.child is not None and place.child.is_running:
                    place.child.send(signal.SIGTERM)
        deadline = time.monotonic() + LAST_GRACE
        for place in told:
            self._await(place, deadline)

    def _await(self, place: Place, deadline: float) -> None:
        if place.child is None:
            return
        while place.child.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        code = place.child.popen.poll()
        # One that was killed or told before the end is not meant here, nor one that had not begun.
        if code != 0 and (code is None or place.has_begun) and code not in (-signal.SIGTERM, -signal.SIGKILL):
            self.in_disorder.append(f"{place.who} ended with {code}: {place.child.output()[-800:]}")

    def end(self) -> list[int]:
        """End whatever still runs; the process groups of which something did."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        left = [child.pid for child in self._children if _is_left(child.pid)]
        for child in self._children:
            child.end()
        return left

    @property
    def started(self) -> int:
        """How many processes were started."""
        return len(self._children)

    def told(self, word: str) -> int:
        """In how many lines of all logs the word stands."""
        return sum(child.output().count(word) for child in self._children)


def _is_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
