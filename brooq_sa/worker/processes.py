"""The parent's end of ``isolation="process"``: a slot is a thread that looks after a handler in a child process.

::

    an idle child, or a new one ─▶ Run ─▶ looked at 20 times a second ─┬─ Ended ───▶ the child is idle again
                                                                       ├─ it died ─▶ the attempt has failed
                  at work long after it was told to stop, or too large ┴─ killed ──▶ the same

A child is killed with its whole process group, so that programs that its handler has started end with it. What `child`
says, and when, stands there.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .. import log, sqlite
from ..durations import format_duration
from ..exc import PreserveAttempt, UsageError
from ..kinds import Kind, described
from ..log import get_logger
from ..outcomes import Redact as Hook
from ..store import Claimed
from .attempts import Assignment, Finished, _elapsed, _never_begun, _outcome_of
from .child import Begun, Completing, Ended, Ready, Redact, Redacted, Reference, Reported, Run, Setup, Stop, walk
from .executors import Finish, ThreadExecutor

KILL_GRACE = timedelta(seconds=1)
"""How long a handler has to end once it has been told to stop, before its child is killed."""

START_LIMIT = 60.0
"""Seconds that a child may take to import what it needs."""

TICK = 0.05
"""Seconds between two looks at a child."""

PATIENCE = 5.0
"""Seconds that reading or writing a message may take; longer, and the child has been stopped in its tracks."""

FAREWELL = 2.0
"""Seconds that idle children have to end."""

TRIES = 3
"""How many children a job is given to that end before they begin it: such as one that was killed while it was idle."""

PROC = Path("/proc/self/statm")
BOOTSTRAP = (
    "import sys; from multiprocessing.connection import Connection; channel = Connection(int(sys.argv[1]));"
    " sys.path[:] = channel.recv(); from brooq_sa.worker.child import serve; serve(channel)"
)


def check(kinds: Collection[Kind]) -> None:
    """Refuse kinds that no child here could run.

    Raises:
        UsageError: saying why, and what to do.
    """
    if kinds and not hasattr(os, "killpg"):
        raise UsageError("isolation='process' needs POSIX. Take it away, or run these jobs elsewhere.")
    if kinds and not sys.executable:
        raise UsageError("isolation='process' needs a Python to start, and sys.executable is empty. Set it.")
    for kind in kinds:
        _check_found(kind)
        if kind.options.memory_limit and not PROC.exists():
            raise UsageError(
                f"Topic {kind.topic!r} has a memory_limit, which needs Linux's /proc. Take it away, or run it there."
            )


def _check_found(kind: Kind) -> None:
    reference = reference_to(kind)
    name = described(kind.job_class)
    if "__main__" in reference.modules:
        raise UsageError(
            f"Job class {name} or its handler is declared in the script that is run, which a child process with"
            " isolation='process' cannot import. Move both to a module of their own."
        )
    if walk(sys.modules.get(reference.modules[0]), reference.qualified_name) is not kind.job_class:
        raise UsageError(
            f"Job class {name} has isolation='process', and a child process could not import it by its name."
            " Declare it at the top level of a module."
        )


def reference_to(kind: Kind) -> Reference:
    """Where a child finds the kind: by the modules of its class and of its handler."""
    modules = [kind.job_class.__module__]
    function = inspect.unwrap(kind.handler) if kind.handler else None
    handler_module = getattr(function, "__module__", None)
    if isinstance(handler_module, str) and handler_module not in modules:
        modules.append(handler_module)
    return Reference(kind.topic, tuple(modules), kind.job_class.__qualname__)


def name_of(factory: Callable[[], Any] | str | None) -> str | None:
    """A factory of sessions as "module:name", by which a child finds it.

    Raises:
        UsageError: it has no such name.
    """
    if factory is None or isinstance(factory, str):
        return factory
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if module == "__main__" or name is None or walk(sys.modules.get(str(module)), name) is not factory:
        raise UsageError(
            f"Child processes (isolation='process') need the session factory too, and {factory!r:.200} cannot be"
            " imported by its name. Give it as a string, 'module:name'."
        )
    return f"{module}:{name}"


class ProcessExecutor(ThreadExecutor):
    """Runs handlers in children, one for each slot at the most. They are made when they are first needed, and kept.

    Args:
        setup: makes what every child is told once.
        grace: how long a handler may outlive being told to stop.
    """

    thread_name = "brooq-child"

    def __init__(
        self,
        finish: Finish,
        redact: Hook | None,
        setup: Callable[[], Setup],
        grace: timedelta,
        *,
        worker: str | None = None,
    ) -> None:
        super().__init__(finish, redact, worker=worker)
        self._setup = setup
        self._grace = grace
        # The kernel ends a child together with the thread that started it (prctl(2), PR_SET_PDEATHSIG), and threads of
        # slots may end. This one stays.
        self._starter = ThreadPoolExecutor(1, "brooq-starter")
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._changed = threading.Condition()
        self._is_stopped = False

    def stop(self) -> None:
        """End all children: those at work have `FAREWELL` to be done, and none is left."""
        super().stop()
        with self._changed:
            self._is_stopped = True
            idle, self._idle = self._idle, []
        deadline = time.monotonic() + FAREWELL
        for child in idle:
            child.let_go()
        for child in idle:
            child.wait(max(0.0, deadline - time.monotonic()))
            self._end(child)
        if not self._wait_for_slots(max(0.0, deadline - time.monotonic())):
            with self._changed:
                for child in self._children:
                    child.shoot()
            self._wait_for_slots(PATIENCE)
        self._starter.shutdown()

    def _wait_for_slots(self, timeout: float) -> bool:
        """Wait until each slot has ended its child, which nobody else may while the slot talks to it."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._children, timeout)

    def _run(self, assignment: Assignment) -> Finished:
        claim = assignment.claim
        if claim._is_lost:
            return _never_begun(assignment)
        child: ChildProcess | None = None
        try:
            child, ended = self._in_a_child(assignment)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the attempt is over and its slot free
            finished = Finished(claim, _outcome_of(error, assignment, self._redact), _elapsed(assignment))
        else:
            outcome = None if claim._is_lost and not ended.is_written else ended.outcome
            finished = Finished(claim, outcome, _elapsed(assignment), ended.is_written)
            self._put_back(child)
        claim._close()
        return finished

    def _in_a_child(self, assignment: Assignment) -> tuple[ChildProcess, Ended]:
        """What came of the attempt, and in which child; one that fails is ended."""
        for _ in range(TRIES):
            child = self._take(assignment)
            supervision = Supervision(child, assignment, self._redact, self._grace)
            try:
                return child, supervision.run()
            except BaseException as error:
                self._end(child)
                is_innocent = isinstance(error, ChildProcessError) and not supervision.has_begun
                if not is_innocent or assignment.claim.should_stop:
                    raise
        raise PreserveAttempt(f"{TRIES} child processes ended before they began the job")

    def _take(self, assignment: Assignment) -> ChildProcess:
        """A child that waits for a job: the one that had the last, or a new one."""
        limit = assignment.kind.options.memory_limit
        while True:
            with self._changed:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return self._start_child(assignment.claim)
            # What earlier jobs have left behind must not count against this one.
            if not child.has_ended() and (limit is None or child.memory() <= limit / 2):
                return child
            self._end(child)

    def _start_child(self, claim: Any) -> ChildProcess:
        try:
            child = self._starter.submit(ChildProcess, self._setup()).result()
        except (OSError, RuntimeError) as error:
            raise PreserveAttempt("no child process could be started") from error
        with self._changed:
            self._children.add(child)
        try:
            child.wait_until_ready(lambda: claim.should_stop or self._is_stopped)
        except BaseException:
            self._end(child)
            raise
        get_logger().debug("child_started", pid=child.pid, worker=self._worker)
        return child

    def _put_back(self, child: ChildProcess) -> None:
        with self._changed:
            if not self._is_stopped:
                self._idle.append(child)
                return
        self._end(child)

    def _end(self, child: ChildProcess) -> None:
        child.kill()
        with self._changed:
            self._children.discard(child)
            self._changed.notify_all()


class Supervision:
    """One attempt in a child, seen from the parent.

    Attributes:
        has_begun: whether the child has: what ended it before is no failure of the job.
    """

    def __init__(self, child: ChildProcess, assignment: Assignment, redact: Hook | None, grace: timedelta) -> None:
        self.has_begun = False
        self._child = child
        self._assignment = assignment
        self._claim = assignment.claim
        self._redact = redact
        self._grace = grace
        self._memory_limit = assignment.kind.options.memory_limit
        self._told: Any = None
        self._completing_since: float | None = None

    def run(self) -> Ended:
        """What the child says has come of it.

        Raises:
            ChildProcessError: the child has ended by itself, or did not stop in time.
            MemoryError: it has become too large.
            PreserveAttempt: it ended while its outcome was being committed.
        """
        claim = self._claim
        claimed = Claimed(
            claim.id, claim.topic, claim.payload, claim.attempt, 0, claim.waited.total_seconds(), claim.key
        )
        order = Run(
            claimed, claim.worker, claim.max_attempts, self._assignment.policy, is_redacted=self._redact is not None
        )
        try:
            self._child.send(order)
            self._assignment.begin()
            return self._look_after()
        except (ChildProcessError, MemoryError) as error:
            if self._completing_since is None:
                raise
            # Nobody knows whether it was committed. If it was, the fence will refuse what is written now.
            raise PreserveAttempt("the child ended while its outcome was being committed") from error

    def _look_after(self) -> Ended:
        while True:
            match self._child.receive(TICK):
                case Ended() as ended:
                    return ended
                case Begun():
                    self.has_begun = True
                case Completing(is_so):
                    self._completing_since = time.monotonic() if is_so else None
                    self._claim._is_over = is_so
                case Reported(holding, progress):
                    if holding == self._claim._holding:
                        self._claim.progress(progress.done, progress.total, progress.note)
                case Redact(text):
                    self._child.send(Redacted(self._redacted(text)))
                case None if self._child.has_ended():
                    self._child.raise_end()
                case _:
                    self._look()

    def _look(self) -> None:
        claim = self._claim
        if claim.should_stop and claim.cause is not self._told:
            self._told = claim.cause
            self._child.send(Stop(claim.cause))
        now = time.monotonic()
        if self._completing_since is not None:
            longest = self._assignment.policy.max_execution_timeout
            if self._completing_since + longest.total_seconds() <= now:
                raise ChildProcessError(f"killed: the commit did not end within {format_duration(longest)}")
        elif claim._told_at + self._grace.total_seconds() <= now:
            grace = format_duration(self._grace)
            raise ChildProcessError(f"killed: the handler did not end within {grace} of being told to stop")
        if self._memory_limit is not None and (memory := self._child.memory()) > self._memory_limit:
            raise MemoryError(
                f"killed: the child process held {memory / 1e6:,.0f} MB, above its memory_limit of"
                f" {self._memory_limit / 1e6:,.0f} MB"
            )

    def _redacted(self, text: str) -> str | None:
        try:
            return "".join((self._redact(text),)) if self._redact else text
        except Exception:  # noqa: BLE001 - the hook is the user's code; the text is withheld then
            return None


class ChildProcess:
    """A process that runs one handler after another. Making it starts it.

    Attributes:
        pid: also the id of its process group.
    """

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(PATIENCE), 0))
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this very Python, with arguments from here
                    [sys.executable, *_interpreter_flags(), "-P", "-c", BOOTSTRAP, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
            except BaseException:
                ours.close()
                raise
        self.pid = self._process.pid
        self._channel = Connection(ours.detach())
        self._guard = threading.Lock()
        self._setup: Setup | None = setup

    def wait_until_ready(self, is_unwanted: Callable[[], object]) -> None:
        """Give it what it needs, and wait until it can be given jobs.

        Raises:
            PreserveAttempt: it never could, or was no longer wanted.
        """
        try:
            self.send(list(sys.path))
            self.send(self._setup)
            self._setup = None
            deadline = time.monotonic() + START_LIMIT
            while not isinstance(self.receive(TICK), Ready):
                if self.has_ended():
                    self.raise_end()
                if is_unwanted():
                    raise ChildProcessError("told to stop before the handler began")
                if time.monotonic() >= deadline:
                    raise ChildProcessError(f"its imports did not end within {START_LIMIT:g}s")
        except ChildProcessError as error:
            raise PreserveAttempt("the child process did not start") from error

    def send(self, message: object) -> None:
        with suppress(OSError):
            self._channel.send(message)
            return
        self.raise_end()

    def receive(self, timeout: float) -> Any:
        """The next message; None if there is none for `timeout` seconds.

        Raises:
            ChildProcessError: there will be none.
        """
        try:
            return self._channel.recv() if self._channel.poll(timeout) else None
        except (EOFError, OSError):
            pass
        return self.raise_end()

    def has_ended(self) -> bool:
        """Whether it has, by whatever cause. It stays a zombie, so that its id is nobody else's until `kill`."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # the program that this worker is in has collected it

    def raise_end(self) -> Any:
        """Raise a ChildProcessError that says how it ended, after the channel has told that it did."""
        self.wait(1.0)
        raise ChildProcessError(self._described() if self.has_ended() else "the child process closed its channel")

    def _described(self) -> str:
        self.kill()
        code = self._process.returncode
        if code is None:
            return "the child process cannot be killed"
        if code >= 0:
            return f"the child process exited with status {code}"
        try:
            return f"the child process was ended by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"the child process was ended by signal {-code}"

    def wait(self, timeout: float) -> None:
        """Wait until it has ended, `timeout` seconds at the most."""
        deadline = time.monotonic() + timeout
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.005)

    def memory(self) -> int:
        """How many bytes of memory it holds; 0 once it has ended."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def let_go(self) -> None:
        """Let it end by itself, if it is idle."""
        self._channel.close()

    def kill(self) -> None:
        """End it, and all that it has started, in whatever state it is. For whoever talks to it."""
        self._channel.close()
        self.shoot()
        with self._guard, suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    def shoot(self) -> None:
        """Send it, and all that it has started, SIGKILL. For any thread."""
        with self._guard:
            # Once the process has been waited for, its id could be another group's.
            if self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)


def _interpreter_flags() -> Iterable[str]:
    """Those of this interpreter, such as ``-O`` and ``-W``."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def setup_for(
    kinds: Iterable[Kind], engine: Any, session_factory: str | None, async_session_factory: str | None
) -> Setup:
    """What children are told once, as of now."""
    sync = getattr(engine, "sync_engine", engine)
    root = logging.getLogger()
    return Setup(
        parent=os.getpid(),
        url=sync.url.render_as_string(hide_password=False),
        is_async=sync is not engine,
        execution_options=dict(sync.get_execution_options()),
        sqlite_setup=sqlite.setup_of(sync) if sync.dialect.name == "sqlite" else None,
        session_factory=session_factory,
        async_session_factory=async_session_factory,
        kinds=tuple(reference_to(kind) for kind in kinds),
        log_level=root.level if root.handlers else None,
        log=log.configured(),
    )
