"""The story that ``brooq-sa demo`` tells.

::

    add every module and its job, in one transaction ──▶ two workers ──▶ roll back a batch of enqueues
                                                                     ──▶ kill one worker while it holds jobs
                                                                     ──▶ start another
                     until every job is done ──▶ count in the database what became of it
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from sqlalchemy import Engine, func, select, text

from brooq_sa import Session
from brooq_sa.states import State

from . import children, numbers
from .children import Child, ChildEnded
from .databases import JOB, Place, tables, temporary_folder
from .display import Display
from .jobs import ParseModule
from .library import modules
from .models import LeftBehind, Module
from .numbers import GHOST, Expected

ROLLED_BACK = 100
FAILING = 5
"""How many jobs fail once."""

ROLLBACK_AT = 0.1
KILL_AT = 0.3
"""What part of the jobs is done when it happens."""

LOOK = 0.1
"""Seconds between looks at the database."""
LONGEST = 120.0
"""Seconds after which something must be wrong: it takes a tenth of that."""
LARGEST = 8
"""How many modules the chart has."""

QUERIES = (
    "SELECT state, count(*), max(attempts) FROM brooq_demo_job GROUP BY state;",
    "SELECT idempotency_key, attempts, last_error FROM brooq_demo_job WHERE last_error IS NOT NULL;",
    (
        "SELECT m.name, l.worker AS killed, p.worker AS finished, p.attempt FROM brooq_demo_left_behind l"
        " JOIN brooq_demo_job j ON j.id = l.job_id JOIN brooq_demo_module m ON m.name = j.idempotency_key"
        " JOIN brooq_demo_parsed p ON p.module_id = m.id;"
    ),
    "SELECT module_id, count(*) FROM brooq_demo_parsed GROUP BY module_id HAVING count(*) > 1;",
)
"""To look further: counts by state, what failed, who finished what the killed worker held, what was written twice."""


class NotDone(Exception):
    """The jobs did not get done."""


def demonstrate(place: AbstractContextManager[Place]) -> bool:
    """Run the demonstration in a place; whether every number is right.

    No process, no temporary file and none of its tables is left after it, nor if it is interrupted.

    Raises:
        Occupied, NoServer, ChildEnded, NotDone, LookupError: told in a sentence that can be shown.
    """
    display = Display()
    with _interruptible(), place as where, temporary_folder() as folder, tables(where) as engine:
        return _Demonstration(where, engine, folder, display).run()


class _Demonstration:
    def __init__(self, place: Place, engine: Engine, folder: Path, display: Display) -> None:
        self._place = place
        self._engine = engine
        self._folder = folder
        self._display = display
        self._workers: list[Child] = []
        self._started = 0
        self._left_behind = 0

    def run(self) -> bool:
        self._display.say(f"In {self._place.described}")
        enqueued = self._enqueue_all()
        try:
            self._start_worker()
            self._start_worker()
            with self._display.live():
                self._watch(until=lambda done: done >= ROLLBACK_AT * enqueued)
                self._roll_back()
                self._watch(until=lambda done: done >= KILL_AT * enqueued and self._failed_once())
                self._kill_one()
                self._start_worker()
                self._watch(until=lambda done: done == enqueued)
            self._display.say(f"All done: {enqueued} jobs")
        finally:
            exit_codes = [worker.end() for worker in self._workers]
        self._report_exits(exit_codes)
        return self._conclude(enqueued)

    # The acts.

    def _enqueue_all(self) -> int:
        """One transaction: a row for each module of the standard library, and its job."""
        found = modules()
        with Session(self._engine) as session, session.begin():
            for number, (name, path) in enumerate(found.items(), start=1):
                session.add(Module(id=number, name=name))
                fails_once = number <= FAILING
                job = ParseModule(module_id=number, path=str(path), fails_once=fails_once)
                # Those that fail go first, so that all have failed when the worker is killed.
                session.enqueue(job, key=name, priority=-1 if fails_once else 0)
        self._display.say(f"{len(found)} modules of the standard library and their jobs added, in one transaction")
        return len(found)

    def _roll_back(self) -> None:
        """A transaction like the first, which does not commit."""
        with Session(self._engine) as session:
            for number in range(ROLLED_BACK):
                ghost = Module(id=-1 - number, name=f"{GHOST}m{number}")
                session.add(ghost)
                session.enqueue(ParseModule(module_id=ghost.id, path="nowhere"), key=ghost.name)
            session.rollback()
        self._display.say(f"{ROLLED_BACK} more enqueued, and rolled back")

    def _start_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        url = self._place.url
        if self._engine.dialect.name == "postgresql":
            url = url.update_query_dict({"application_name": _application(name)})
        worker = children.worker(name, url.render_as_string(hide_password=False), folder=self._folder)
        self._workers.append(worker)
        self._display.say(f"{name} started, process {worker.pid}")

    def _kill_one(self) -> None:
        """Kill a worker while it holds jobs.

        It is stopped first, so that what it holds can be read before it dies: nobody can finish a job in between.
        """
        victim = self._workers[0]
        held = self._pause_holding(victim)
        victim.kill()
        self._workers.remove(victim)
        with Session(self._engine) as session, session.begin():
            session.add_all(LeftBehind(job_id=job_id, worker=victim.name) for job_id in held)
        self._left_behind = len(held)
        self._display.say(f"{victim.name} killed (SIGKILL) while it held {len(held)} jobs")

    def _pause_holding(self, worker: Child) -> list[uuid.UUID]:
        """Stop the worker at a moment when it holds jobs; their ids."""
        while True:
            worker.check()
            worker.pause()
            self._await_quiet(worker)
            held = self._held_by(worker)
            if held or self._done() == self._total():
                return held
            worker.resume()
            time.sleep(LOOK)

    def _await_quiet(self, worker: Child) -> None:
        """Return when the server has finished what the stopped worker had sent: it might be a job's outcome."""
        if self._engine.dialect.name != "postgresql":
            return
        query = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND state = 'active'")
        with self._engine.connect() as connection:
            while connection.execute(query, {"name": _application(worker.name)}).scalar_one():
                connection.rollback()
                time.sleep(0.001)

    # What is looked at.

    def _watch(self, until: Callable[[int], bool]) -> None:
        """Show the counts until enough is done."""
        while True:
            for worker in self._workers:
                worker.check()
            counts = self._counts()
            self._display.show(counts, [worker.name for worker in self._workers])
            if until(counts[State.DONE]):
                return
            if self._display.elapsed > LONGEST:
                raise NotDone(f"After {LONGEST:.0f} seconds {counts[State.DONE]} jobs are done. {self._last_words()}")
            time.sleep(LOOK)

    def _counts(self) -> dict[State, int]:
        with self._engine.connect().execution_options(brooq_begin="DEFERRED") as connection:
            return numbers.states(connection)

    def _done(self) -> int:
        return self._counts()[State.DONE]

    def _total(self) -> int:
        return sum(self._counts().values())

    def _failed_once(self) -> bool:
        query = select(func.count()).where(JOB.c.last_error.is_not(None))
        with self._engine.connect().execution_options(brooq_begin="DEFERRED") as connection:
            return connection.execute(query).scalar_one() == FAILING

    def _held_by(self, worker: Child) -> list[uuid.UUID]:
        query = select(JOB.c.id).where(JOB.c.locked_by.startswith(f"{worker.name}-"), JOB.c.state == State.PROCESSING)
        with self._engine.connect().execution_options(brooq_begin="DEFERRED") as connection:
            return list(connection.execute(query).scalars())

    def _last_words(self) -> str:
        return "\n".join(f"{worker.name} wrote last:\n{worker.last_words()}" for worker in self._workers)

    # The end.

    def _report_exits(self, exit_codes: list[int]) -> None:
        for worker, code in zip(self._workers, exit_codes, strict=True):
            if code != 0:
                raise ChildEnded(f"{worker.name} was asked to end, exit code {code}:\n{worker.last_words()}")
        self._display.say(f"{' and '.join(worker.name for worker in self._workers)} stopped in good order")

    def _conclude(self, enqueued: int) -> bool:
        expected = Expected(enqueued=enqueued, rolled_back=ROLLED_BACK, failing=FAILING, left_behind=self._left_behind)
        with self._engine.connect() as connection:
            lines = numbers.table(numbers.count(connection), expected)
            largest = numbers.largest(connection, LARGEST)
        self._display.table(lines)
        self._display.chart(largest)
        self._display.hint(*self._hints())
        return numbers.is_well(lines, expected)

    def _hints(self) -> tuple[str, list[str]]:
        url = self._place.url.render_as_string(hide_password=True)
        if self._place.is_kept:
            return "To look further", [f"brooq-sa jobs --url '{url}' --table {JOB.name} --limit 10", *QUERIES]
        again = "brooq-sa demo --keep demo.db, or --url URL --keep-tables"
        return f"To look further, run {again}, and ask", list(QUERIES)


def _application(worker: str) -> str:
    return f"brooq-demo-{worker}"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up; and once, so that it can."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
