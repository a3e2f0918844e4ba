"""``brooq-sa top``: printed once, as a document, and live on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from rich.cells import cell_len

from brooq_sa.cli.frame import View, lines
from brooq_sa.cli.top import _Heard, _Screen
from brooq_sa.overview import Job, Overview, Topic, WorkerLine
from databases import Database
from waiting import wait_until

COUNTS = dict.fromkeys(("pending", "processing", "done", "failed", "dead", "canceled"), 1_234_567)


def busy(count: int) -> Overview:
    """More than fits a screen, in names longer than it is wide."""
    name = "télé.東京\x1b[2J" * 12
    return Overview(
        at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        topics=[Topic(f"{n}{name}", COUNTS, 86_400.0, 99_999.9, 0.01, "why") for n in range(count)],
        workers=[WorkerLine(f"{n}{name}", name, n, "0.1.0.dev12345", [name], 1000, 999, 3.0) for n in range(count)],
        running=[Job(uuid.uuid4(), name, "processing", 99, name, None, 5.0, -1.0) for _ in range(count)],
        troubled=[Job(uuid.uuid4(), name, "canceled", 99, None, f"{name}\nand more", 5.0) for _ in range(count)],
        is_estimated=True,
    )


@pytest.mark.parametrize("width, height", [(80, 24), (60, 16), (200, 60)])
@pytest.mark.parametrize("shows_trouble", [False, True])
@pytest.mark.parametrize("count", [0, 3, 40])
def test_a_frame_fits(count: int, shows_trouble: bool, width: int, height: int) -> None:
    """A frame has as many lines as the screen, none wider, and nothing in it commands the terminal.

    The last one has the keys, or the error of the job that is chosen.
    """
    frame = lines(busy(count), View(shows_trouble=shows_trouble, chosen=count), width, height)
    assert len(frame) == height
    assert max(map(cell_len, frame)) <= width
    assert "\x1b" not in "".join(frame)
    assert frame[-1].startswith("télé" if count and shows_trouble else "q quit")


def test_the_chosen_job_is_in_sight() -> None:
    """However far down its list a job is, it is on the screen once it is chosen."""
    seen, view = busy(40), View()
    for place in range(40):
        view.move(1, seen)
        job = view.job(seen)
        assert job is seen.running[place]
        assert any(line.startswith(f"> {job.id}") for line in lines(seen, view, 80, 24))


def test_once(brooq: Any, put: Any) -> None:
    """--once prints one frame as plain text, on both databases; --topic leaves others out."""
    put("email.send")
    put("report.build")
    result = brooq("top", "--once")
    assert result.exit_code == 0, result.output
    assert re.match(r"brooq-sa top  \d\d:\d\d:\d\d UTC\n2 waiting, 0 running; 0 workers, 0/0 busy\n", result.stdout)
    assert re.search(r"^  email\.send +1 +0 +0 +\d", result.stdout, re.MULTILINE)
    filtered = brooq("top", "--once", "--topic", "email").stdout
    assert ("email.send" in filtered, "report.build" in filtered) == (True, False)


def test_a_document(brooq: Any, put: Any) -> None:
    """--json is one object with all that a frame shows."""
    put("email.send")
    [document] = brooq.documents("top")
    assert document.keys() == {"at", "topics", "workers", "running", "troubled", "is_estimated"}
    assert [(each["topic"], each["counts"]["pending"]) for each in document["topics"]] == [("email.send", 1)]


def test_no_terminal(brooq: Any) -> None:
    """Where there is no terminal, it says what to use instead, as wrong usage."""
    result = brooq("top")
    assert result.exit_code == 2
    assert "Use --once, or --json." in result.stderr


class Terminal:
    """A program on a terminal of 80x24, and what it has drawn."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._drawn = ""

    def modes(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._descriptor)

    def press(self, text: str) -> None:
        self._drawn = ""
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str, timeout: float = 20.0) -> None:
        """Until it has drawn this, since the last key."""
        deadline = time.monotonic() + timeout
        while text not in self._drawn:
            assert time.monotonic() < deadline, f"no {text!r} in {self._drawn[-3000:]!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self._drawn += os.read(self._descriptor, 65536).decode(errors="replace")


@contextmanager
def terminal(*arguments: str, cwd: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "brooq_sa", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env=environment | {"TERM": "xterm"},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


ERROR = "broken: an error that its column has no room for on a screen of 80"


def test_live(db: Database, put: Any, tmp_path: Path) -> None:
    """On a terminal the keys filter, hold, choose, retry after a question, and quit; the screen is kept up to date."""
    dead = put("email.send").id
    put("report.build")
    db.execute("UPDATE job SET state = 'dead', last_error = :error WHERE topic = 'email.send'", error=ERROR)
    with terminal("top", "--interval", "0.5", "--url", db.url, cwd=tmp_path) as screen:
        screen.wait_for("report.build")
        put("new.topic")
        screen.wait_for("new.topic")
        screen.press("/email\r")
        screen.wait_for("only topics with 'email'")
        screen.press("p")
        screen.wait_for("HELD")
        screen.press("p\t")
        screen.wait_for("broken")
        screen.press("c")
        screen.wait_for("No job is chosen")
        screen.press("\x1b[B")
        screen.wait_for(f"> {dead}")
        screen.wait_for(ERROR)
        screen.press("r")
        screen.wait_for("? y/n")
        screen.press("n")
        screen.wait_for(ERROR)
        assert db.row(dead)["state"] == "dead"
        screen.press("ry")
        screen.wait_for(f"{dead}: retried")
        assert db.row(dead)["state"] == "pending"
        screen.press("q")
        # What is still drawn has to be read, or the program would wait for that.
        wait_until(lambda: screen.process.poll() is not None, what="the end")
        assert screen.process.returncode == 0


def test_interrupted(sqlite: Database, tmp_path: Path) -> None:
    """SIGINT, which Ctrl-C sends, ends it like q."""
    with terminal("top", "--url", sqlite.url, cwd=tmp_path) as screen:
        screen.wait_for("q quit")
        screen.process.send_signal(signal.SIGINT)
        wait_until(lambda: screen.process.poll() is not None, what="the end")
        assert screen.process.returncode == 0


RESTORED = "\x1b[?1049l"
"""What leads from the full screen back to the shell's."""


def test_ended(sqlite: Database, tmp_path: Path) -> None:
    """SIGTERM and SIGHUP leave the terminal as it was, and are told by the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        with terminal("top", "--url", sqlite.url, cwd=tmp_path) as screen:
            before = screen.modes()
            screen.wait_for("q quit")
            assert screen.modes() != before
            screen.process.send_signal(number)
            screen.wait_for(RESTORED)
            wait_until(lambda: screen.process.poll() is not None, what="the end")
            assert (screen.process.returncode, screen.modes()) == (128 + number, before)


def test_suspended(sqlite: Database, tmp_path: Path) -> None:
    """Ctrl-Z gives the shell its terminal back; continued, the screen is drawn anew and keys act as before."""
    with terminal("top", "--interval", "0.5", "--url", sqlite.url, cwd=tmp_path) as screen:
        before = screen.modes()
        screen.wait_for("q quit")
        screen.process.send_signal(signal.SIGTSTP)
        screen.wait_for(RESTORED)
        assert os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        assert screen.modes() == before
        screen.press("")
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for("q quit")
        screen.press("p")
        screen.wait_for("HELD")


class Interrupted:
    """A keyboard on which nobody types, while a signal comes to the screen that waits for it."""

    def __init__(self, screen: _Screen, number: int) -> None:
        self._screen = screen
        self._number = number

    def read(self, _timeout: float) -> list[str]:
        self._screen._hear(self._number, None)
        raise AssertionError("the wait went on")


def idle_screen() -> _Screen:
    return _Screen(None, None, busy(0), View(), 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP])
def test_one_signal_cuts_a_wait_short_and_the_next_waits(first: int, second: int) -> None:
    """A signal that comes while the terminal is put back, by the one before, does not cut that short."""
    screen = idle_screen()
    screen._is_shown = screen._is_waiting = True  # as it still is where a signal comes at the very end of a wait
    with pytest.raises((_Heard, KeyboardInterrupt)):
        screen._hear(first, None)
    screen._hear(second, None)
    assert screen._is_over or screen._heard is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_not_undone_by_one_to_stop(number: int) -> None:
    """SIGTSTP after SIGTERM or SIGHUP, before that was obeyed, changes nothing: the screen ends, with its exit code."""
    screen = idle_screen()
    with pytest.raises(_Heard):
        screen._wait(Interrupted(screen, number), 60.0)  # type: ignore[arg-type]
    screen._hear(signal.SIGTSTP, None)
    with pytest.raises(click.exceptions.Exit) as ended:
        screen._obey()
    assert ended.value.exit_code == 128 + number


def test_a_signal_to_end_after_one_to_stop() -> None:
    """SIGTERM after SIGTSTP, before that was obeyed, ends the screen."""
    screen = idle_screen()
    screen._hear(signal.SIGTSTP, None)
    screen._hear(signal.SIGTERM, None)
    with pytest.raises(click.exceptions.Exit):
        screen._obey()


def test_a_database_that_refuses(sqlite: Database, tmp_path: Path) -> None:
    """While the database refuses, the last line tells; once it answers again, the screen goes on by itself."""
    with terminal("top", "--interval", "0.5", "--url", sqlite.url, cwd=tmp_path) as screen:
        screen.wait_for("q quit")
        sqlite.execute("ALTER TABLE job_pause RENAME TO elsewhere")
        screen.wait_for("The database has no table 'job_pause'")
        screen.press("")
        sqlite.execute("ALTER TABLE elsewhere RENAME TO job_pause")
        screen.wait_for("q quit")


def test_json_of_a_running_job(brooq: Any, put: Any, db: Database) -> None:
    """A running job is listed with its worker."""
    put("email.send")
    db.execute("UPDATE job SET state = 'processing', locked_by = 'w-1', locked_until = available_at")
    document = json.loads(brooq("top", "--json").stdout)
    assert [(each["worker"], each["lease_left"] < 0) for each in document["running"]] == [("w-1", True)]
