"""What the handlers of a worker process leave behind for the process that measures. Standard library only."""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import time
from pathlib import Path

_LAYOUT = struct.Struct("<Qd")
_COUNT = struct.Struct("<Q")


class Tally:
    """Counts runs of handlers in a file that other processes can read while it grows."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._numbers = itertools.count(1)
        self._notes = os.open(notes_beside(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hit(self) -> None:
        """A handler has begun."""
        number = next(self._numbers)  # atomic, so threads may hit at once
        if number == 1:
            _LAYOUT.pack_into(self._memory, 0, 1, time.time())
        else:
            _COUNT.pack_into(self._memory, 0, number)

    def note(self, number: int) -> None:
        """The handler of that very job has begun."""
        os.write(self._notes, f"{number} {time.time():.6f}\n".encode())
        self.hit()


def prepare(path: Path) -> None:
    """Make the file that a `Tally` writes into."""
    path.write_bytes(bytes(_LAYOUT.size))
    notes_beside(path).write_bytes(b"")


def read(path: Path) -> tuple[int, float]:
    """How many handlers have begun, and when the first did: 0.0 if none has.

    With handlers in threads the count may be behind by as many as there are threads.
    """
    count, first = _LAYOUT.unpack(path.read_bytes())
    return int(count), float(first)


def noted(path: Path) -> dict[int, float]:
    """When each job's handler began, by the number that the job has."""
    begun: dict[int, float] = {}
    for line in notes_beside(path).read_text(encoding="ascii").splitlines():
        number, at = line.split()
        begun.setdefault(int(number), float(at))
    return begun


def notes_beside(path: Path) -> Path:
    return path.with_suffix(".notes")
