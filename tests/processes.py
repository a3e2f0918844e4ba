"""Child processes that never outlive their test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from waiting import wait_until


class Processes:
    """Starts Python children in one folder and ends them all on leaving the block.

    Each child leads a process group of its own, so what it started ends with it. Its output goes to a file, which
    leaving the block prints: pytest shows it if the test fails.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = dict(environment or {})
        self._children: list[Child] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end()
        for child in self._children:
            print(f"--- {child}, exit code {child.popen.returncode}\n{child.output()}")

    def script(self, source: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """A Python child that runs the source, which is dedented first."""
        path = self.folder / f"script_{len(self._children)}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return self.python(str(path), *arguments, env=env)

    def module(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """A Python child that runs the module, as ``python -m`` does."""
        return self.python("-m", name, *arguments, env=env)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """A child of this Python with the arguments, in the folder; modules written there can be imported."""
        child = Child(
            [sys.executable, *arguments],
            log=self.folder / f"child_{len(self._children)}.log",
            folder=self.folder,
            environment=os.environ
            | {"PYTHONPATH": str(self.folder), "PYTHONUNBUFFERED": "1"}
            | self.environment
            | dict(env or {}),
        )
        self._children.append(child)
        return child


class Child:
    """A process, its output, and ways to end it."""

    def __init__(self, command: list[str], *, log: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self.log = log
        with log.open("wb") as file:
            self.popen = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"process {self.popen.pid}: {' '.join(self.command)}"

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """All that it wrote so far, to either stream."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it, and it alone, a signal."""
        self.popen.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} still runs after {timeout:g} seconds:\n{self.output()}") from None

    def wait_for_output(self, text: str, timeout: float = 30.0) -> None:
        """Return once the text stands in its output."""

        def is_written() -> bool:
            if text in self.output():
                return True
            if not self.is_running:
                raise AssertionError(f"{self} ended without writing {text!r}:\n{self.output()}")
            return False

        wait_until(is_written, timeout=timeout, what=f"{text!r} in the output of {self}")

    def kill(self) -> None:
        """End it and all that it started, as SIGKILL does."""
        self._signal_group(signal.SIGKILL)
        self.popen.wait()

    def end(self) -> None:
        """End whatever is left of it and of what it started."""
        self.kill()

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.popen.pid, number)
        except ProcessLookupError:
            return  # the whole group has ended already
