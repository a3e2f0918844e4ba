"""The child's end of ``isolation="process"``: one handler after another, as the parent orders them.

::

    parent                                   child
    sys.path, Setup ───────────────────────▶ imports the modules of the kinds
           ◀──────────────────────── Ready
    Run ───────────────────────────────────▶ Begun ─▶ decode, handle, complete
    Stop (the cause), while it runs ───────▶ claim.should_stop, claim.cause
           ◀─────────────────── Completing   the claim's own transaction is about to be committed
           ◀─────────────────────── Redact   text for `last_error`; the hook that takes out secrets is the parent's
    Redacted ──────────────────────────────▶
           ◀──────────────────────── Ended   the outcome; the parent writes it unless the child has
    end of file ───────────────────────────▶ idle: ends; at work: is killed, with all that it has started

Handlers run on the main thread. Another one listens to the parent, so that a handler that is at work hears of a stop,
and so that no child outlives its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.orm import Session

from .. import log, sqlite
from ..claims import AsyncClaim, Claim, _Claim
from ..engines import async_engine, carried, sync_engine
from ..exc import UsageError
from ..kinds import Kind, Policy
from ..outcomes import after
from ..progress import Progress, checked
from ..states import StopCause
from ..store import Claimed, Holding, Outcome
from .attempts import Assignment, Finished, run, run_async

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: F401 - named in a string below

LAST_MOMENTS = 2.0
"""Seconds that an idle child has to end when its parent lets it go."""

REPORT_SPACING = 0.2
"""Seconds between two words of a handler's progress that are sent to the parent."""

PR_SET_PDEATHSIG = 1
"""From Linux's prctl(2)."""

EXPENDABLE = 500
"""How much sooner the kernel takes a child than its parent when memory runs out, of 1000."""

S = TypeVar("S")


class Reference(NamedTuple):
    """Where a child finds a kind.

    Attributes:
        modules: to be imported: that of the job class, and that of its handler.
    """

    topic: str
    modules: tuple[str, ...]
    qualified_name: str


class Setup(NamedTuple):
    """What a child is told once.

    Attributes:
        parent: its process's id.
        url: of the database, password included.
        is_async: whether the parent's engine is an AsyncEngine.
        execution_options: of the parent's engine.
        sqlite_setup: of the parent's engine, if it has one.
        session_factory, async_session_factory: as "module:name"; None is a plain session on an engine of the child's.
        log_level: of the parent's root logger, if it has a handler.
        log: what the parent's `log.configure` was called with, if it was.
    """

    parent: int
    url: str
    is_async: bool
    execution_options: Mapping[str, Any]
    sqlite_setup: sqlite.Setup | None
    session_factory: str | None
    async_session_factory: str | None
    kinds: tuple[Reference, ...]
    log_level: int | None
    log: tuple[str, str] | None = None


class Ready(NamedTuple):
    """The child can be given jobs."""


class Run(NamedTuple):
    """Run this attempt."""

    claimed: Claimed
    worker: str
    max_attempts: int
    policy: Policy
    is_redacted: bool


class Stop(NamedTuple):
    """The attempt is to stop."""

    cause: StopCause


class Begun(NamedTuple):
    """What happens from now on, happens to the attempt."""


class Completing(NamedTuple):
    """Whether the claim's transaction is being committed; no longer so if the handler is run again."""

    is_so: bool


class Redact(NamedTuple):
    """Take the secrets out of this text."""

    text: str


class Redacted(NamedTuple):
    """The text without them; None if that failed."""

    text: str | None


class Reported(NamedTuple):
    """How far the handler says it has come. It may come when the parent has gone on to another attempt."""

    holding: Holding
    progress: Progress


class Ended(NamedTuple):
    """The attempt has ended: `Finished`, without the claim."""

    outcome: Outcome | None
    is_written: bool


def serve(channel: Connection) -> None:
    """Run jobs until the parent closes the channel. Called by the first line of a child."""
    os.set_inheritable(channel.fileno(), False)
    log.outlive_readers()
    faulthandler.enable()
    _leave_signals_to_the_parent()
    setup = channel.recv()
    _die_with(setup.parent)
    Child(channel, setup).serve()


def _leave_signals_to_the_parent() -> None:
    """Live on when a terminal or a supervisor signals all processes: the parent has jobs to bring to an end.

    Not with SIG_IGN, which programs that a handler starts would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even while C code keeps all its threads from running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # where it is not allowed, the kernel may choose as it likes
            Path("/proc/self/oom_score_adj").write_text(str(EXPENDABLE), encoding="ascii")
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(1)


def find(reference: Reference) -> Kind:
    """The kind that a reference leads to.

    Raises:
        UsageError: importing its modules does not bring it about.
    """
    for name in reference.modules:
        importlib.import_module(name)
    job_class = walk(sys.modules[reference.modules[0]], reference.qualified_name)
    kind = getattr(job_class, "__dict__", {}).get("__kind__")
    if not isinstance(kind, Kind) or kind.topic != reference.topic or kind.handler is None:
        raise UsageError(
            f"Topic {reference.topic!r} has no handler in a child process after importing"
            f" {', '.join(reference.modules)}. Declare its class, and register its handler, when these are imported."
        )
    return kind


def find_named(reference: str) -> Any:
    """What "module:name" names.

    Raises:
        UsageError: nothing.
    """
    module, _, name = reference.partition(":")
    try:
        found = walk(importlib.import_module(module), name)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{reference!r} cannot be imported: {error}. Give 'module:name'.") from error
    if found is None:
        raise UsageError(f"Module {module!r} has no {name!r}. Give 'module:name'.")
    return found


def walk(start: Any, path: str) -> Any:
    """The attribute of an attribute ..., or None."""
    for name in path.split("."):
        start = getattr(start, name, None)
    return start


class Child:
    """What a child does between its first and its last message.

    Args:
        channel: to the parent.
    """

    def __init__(self, channel: Connection, setup: Setup) -> None:
        self._channel = channel
        self._sessions = Sessions(setup)
        self._references = {reference.topic: reference for reference in setup.kinds}
        self._log_level = setup.log_level
        self._log = setup.log
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._redacted: SimpleQueue[str | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._claim: Claim | AsyncClaim | None = None
        self._told: StopCause | None = None
        self._is_at_work = True

    def serve(self) -> None:
        threading.Thread(target=self._listen, name="brooq-parent", daemon=True).start()
        self._import_kinds()
        self._is_at_work = False
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent has gone; the other thread sees to it
            self._send(Ready())
            while (order := self._runs.get()) is not None:
                self._send(Begun())
                ended = self._attempt(order)
                self._is_at_work = False
                self._send(ended)
        self._sessions.close()

    def _import_kinds(self) -> None:
        """Import what can be imported now, before any attempt's time counts; what cannot, fails its attempts."""
        for reference in self._references.values():
            with suppress(Exception):
                find(reference)
        if self._log is not None:
            form, level = self._log
            log.configure(format=form, level=level)
        elif self._log_level is not None:
            logging.basicConfig(level=self._log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    # The thread that listens.

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._hear(self._channel.recv())
        if not self._is_at_work:
            self._runs.put(None)
            time.sleep(LAST_MOMENTS)
        os.killpg(0, signal.SIGKILL)

    def _hear(self, message: Run | Stop | Redacted) -> None:
        match message:
            case Run():
                self._is_at_work = True
                with self._lock:
                    self._claim = self._told = None
                self._runs.put(message)
            case Stop(cause):
                with self._lock:
                    self._told = cause
                    if self._claim is not None:
                        self._claim._stop(cause)
            case Redacted(text):
                self._redacted.put(text)

    # The thread that works.

    def _attempt(self, order: Run) -> Ended:
        redact = self._redact if order.is_redacted else None
        claimed = order.claimed
        try:
            kind = find(self._references[claimed.topic])
            claim = self._open_claim(order, kind)
        except BaseException as error:  # noqa: BLE001 - a module of the user's may raise anything
            return Ended(after(error, claimed.holding, order.policy, redact), is_written=False)
        assignment = Assignment(claim, kind, order.policy)
        finished = self._run_async(assignment, redact) if kind.is_async else run(assignment, redact)
        return Ended(finished.outcome, finished.is_written)

    def _open_claim(self, order: Run, kind: Kind) -> Claim | AsyncClaim:
        make: Any = AsyncChildClaim if kind.is_async else ChildClaim
        claim: Any = make(
            order.claimed,
            worker=order.worker,
            max_attempts=order.max_attempts,
            table=kind.job_class.__table__,
            open_session=self._sessions.open_async if kind.is_async else self._sessions.open,
            lease_ends=float("inf"),  # the parent's watchdog looks after it
        )
        claim._tell = lambda is_so: self._send(Completing(is_so))
        claim._report = lambda holding, progress: self._send(Reported(holding, progress))
        with self._lock:
            self._claim = claim
            if self._told is not None:
                claim._stop(self._told)
        opened: Claim | AsyncClaim = claim
        return opened

    def _send(self, message: object) -> None:
        # A handler may tell of its progress from threads of its own.
        with self._sending:
            self._channel.send(message)

    def _run_async(self, assignment: Assignment, redact: Callable[[str], str] | None) -> Finished:
        # Each in a context of its own, or what one handler sets the next would find.
        return self._sessions.runner.run(run_async(assignment, redact), context=copy_context())

    def _redact(self, text: str) -> str:
        self._send(Redact(text))
        redacted = self._redacted.get()
        if redacted is None:
            raise RuntimeError("the hook failed")
        return redacted


class _Telling(_Claim[S]):
    """A claim that says when its transaction is about to be committed: a kill would leave it in doubt."""

    _tell: Callable[[bool], None]
    _report: Callable[[Holding, Progress], None]
    _reports_at = 0.0
    _later: threading.Timer | None = None

    def _settle_in(self, session: Session) -> None:
        self._tell(True)
        super()._settle_in(session)

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        self._progress = told = checked(done, total, note)
        if self._later is not None:
            return  # it tells the last word
        if (left := self._reports_at - time.monotonic()) <= 0:
            self._report_now(told)
            return
        self._later = threading.Timer(left, self._report_later)
        self._later.daemon = True
        try:
            self._later.start()
        except RuntimeError:  # no thread to be had; the next word may be told
            self._later = None

    def _report_later(self) -> None:
        self._later = None  # first: a word that comes from now on is told by itself
        if self._progress is not None:
            self._report_now(self._progress)

    def _report_now(self, told: Progress) -> None:
        self._reports_at = time.monotonic() + REPORT_SPACING
        if self._is_over:
            return  # and what a thread that the handler has left behind says is nobody's
        with suppress(OSError):  # the parent has gone; the other thread sees to it
            self._report(self._holding, told)

    def _begin_again(self) -> None:
        super()._begin_again()
        self._tell(False)


class ChildClaim(_Telling[Session], Claim):
    """A ``def`` handler's claim in a child."""


class AsyncChildClaim(_Telling["AsyncSession"], AsyncClaim):
    """An ``async def`` handler's claim in a child."""


class Sessions:
    """Opens the sessions of claims, on an engine that is made when it is first needed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def open(self) -> Any:
        if self._setup.session_factory is not None:
            return find_named(self._setup.session_factory)()
        return Session(self._engine)

    def open_async(self) -> Any:
        if self._setup.async_session_factory is not None:
            return find_named(self._setup.async_session_factory)()
        from sqlalchemy.ext.asyncio import AsyncSession

        return AsyncSession(self._async_engine)

    @cached_property
    def runner(self) -> asyncio.Runner:
        """One event loop for all attempts: the connections of an AsyncEngine belong to the loop that made them."""
        return asyncio.Runner()

    @cached_property
    def _engine(self) -> Engine:
        return sync_engine(self._made)

    @cached_property
    def _async_engine(self) -> Any:
        return async_engine(self._made)

    @cached_property
    def _made(self) -> Any:
        options = dict(self._setup.execution_options)
        if make_url(self._setup.url).get_backend_name() != "sqlite":
            return self._make(options)
        setup = self._setup.sqlite_setup or sqlite.Setup()
        return sqlite.configure(self._make(carried(options)), busy_timeout=setup.busy_timeout, wal=setup.wal)

    def _make(self, options: dict[str, Any]) -> Any:
        if not self._setup.is_async:
            return create_engine(self._setup.url, execution_options=options)
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(self._setup.url, execution_options=options)

    def close(self) -> None:
        made = self.__dict__
        if "_async_engine" in made:
            self.runner.run(self._async_engine.dispose())
        if "runner" in made:
            self.runner.close()
        if "_engine" in made:
            self._engine.dispose()
