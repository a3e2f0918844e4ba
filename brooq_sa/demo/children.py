"""Child processes that end with us, however we end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PATIENCE = 10.0
"""Seconds that a child gets to end by itself."""


class ChildEnded(Exception):
    """A child ended that should have gone on."""


class Child:
    """A process whose output goes to a file.

    Args:
        last_resort: the signal that it gets on Linux if we die without having ended it.
        options: of `subprocess.Popen`, such as the user to run as.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        last_resort: signal.Signals,
        **options: Any,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is ours to hand on. And what we die of without a word, the kernel hands on.
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid(), last_resort),  # noqa: PLW1509 - we have one thread here
                **options,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise ChildEnded, with the end of its output, unless it runs."""
        if (code := self._process.poll()) is not None:
            raise ChildEnded(f"{self.name} ended by itself, exit code {code}:\n{self.last_words()}")

    def last_words(self, limit: int = 4_000) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-limit:].strip()

    def pause(self) -> None:
        """Return when it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT | os.WEXITED)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, make sure that it has, and give its exit code."""
        self._process.send_signal(number)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return self._process.returncode or -signal.SIGKILL
        finally:
            self.kill()


def _dying_with(parent: int, number: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:
            os._exit(1)  # we were orphaned before the kernel was told

    return prepare


def worker(name: str, url: str, *, folder: Path) -> Child:
    """A ``brooq-sa worker`` process for the demonstration's jobs."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "brooq_sa",
        "worker",
        "brooq_sa.demo.jobs:DemoJob",
        "--name",
        name,
        "--http-addr=off",
    ]
    options = {"--workers": "2", "--lease": "2s", "--poll-interval": "100ms", "--reaper-period": "500ms"}
    # In our own import path, whatever folder we are in, and with none of the settings that the user has for a worker.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUEUE_", "BROOQ_"))}
    environment |= {"DATABASE_URL": url, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    return Child(
        name,
        [*command, *(part for option in options.items() for part in option)],
        folder=folder,
        environment=environment,
        last_resort=signal.SIGKILL,
    )
