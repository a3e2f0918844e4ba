"""Handlers in child processes: what they may do, and what becomes of those that do not end."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import brooq_sa
from apps import isolated_handlers
from apps.embedding import Heard, bare_claim, job_class, put, put_many, working
from apps.isolated import Coroutine, Isolated, Large, Registered, Short, Work, notes
from brooq_sa import DeclarationError, UsageError, Worker
from brooq_sa.events import Event, JobDone, JobLeaseLost
from brooq_sa.outcomes import released
from brooq_sa.progress import read
from brooq_sa.settings import WorkerSettings
from brooq_sa.states import State, StopCause
from brooq_sa.store import Claimed, Outcome
from brooq_sa.worker.attempts import Assignment, Finished
from brooq_sa.worker.child import Reference, Run, Setup, find
from brooq_sa.worker.processes import ChildProcess, ProcessExecutor, setup_for
from databases import Database
from processes import Processes
from waiting import wait_until

TESTS = Path(__file__).parent.parent
GRACE = timedelta(seconds=2)
E = TypeVar("E", bound=Event)
RETRY_LATER: dict[str, Any] = {"backoff_base": "1h", "backoff_max": "2h"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where handlers put their notes."""
    return tmp_path / "notes"


def redact(text: str) -> str:
    """A hook that knows one secret, and not what to do with another."""
    if "5678" in text:
        raise ValueError(text)
    return text.replace("1234", "****")


class Slots:
    """An executor without a worker: the children that it keeps serve many tests.

    Args:
        redact: as of `Worker`.
    """

    def __init__(self, redact: Callable[[str], str] | None = None) -> None:
        self._ended: SimpleQueue[Finished] = SimpleQueue()
        engine = create_engine("sqlite:////nonexistent/jobs.sqlite")
        kinds = Isolated.registry.values()
        self.setup: Callable[[], Setup] = lambda: setup_for(kinds, engine, None, None)
        self.executor = ProcessExecutor(self._finish, redact, self.setup, GRACE)

    def _finish(self, finished: Finished, _executor: Any) -> tuple[bool, None]:
        self._ended.put(finished)
        return False, None

    def submit(self, job: Any) -> Any:
        """Run a job that no database knows of; its claim."""
        kind = type(job).__kind__
        claim = bare_claim()
        claim.topic, claim.payload = kind.topic, kind.codec.encode(job)
        self.executor.submit([Assignment(claim, kind, kind.policy(WorkerSettings()))])
        return claim

    def outcome(self) -> Outcome | None:
        """Of the next attempt that ends."""
        return self._ended.get(timeout=60).outcome

    def error(self) -> str:
        outcome = self.outcome()
        assert outcome is not None
        return str(outcome.error)

    def run(self, job: Any) -> Outcome:
        self.submit(job)
        outcome = self.outcome()
        assert outcome is not None
        return outcome

    def pids(self) -> set[int]:
        return {child.pid for child in self.executor._children}


@pytest.fixture(scope="module")
def slots() -> Iterator[Slots]:
    """Slots whose children serve all tests of this module that leave them alive."""
    made = Slots()
    yield made
    made.executor.stop()
    assert made.pids() == set()


@pytest.fixture(autouse=True)
def _no_child_is_left(slots: Slots) -> Iterator[None]:
    """After each test, no child is there but those of `slots`, not even as a zombie."""
    yield
    assert _children() <= slots.pids()


def _children() -> set[int]:
    """This process's own children that run handlers, or did and have not been collected."""
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended by now
            found.update(int(pid) for pid in (task / "children").read_text().split() if _is_ours(int(pid)))
    return found


def _is_ours(pid: int) -> bool:
    arguments, name = Path(f"/proc/{pid}/cmdline").read_text(), Path(f"/proc/{pid}/comm").read_text()
    return "brooq_sa.worker.child" in arguments or (not arguments and name.startswith("python"))


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not just what its parent has not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def effects(db: Database) -> list[str]:
    return [row["name"] for row in db.execute("SELECT name FROM effect")]


def with_effects(db: Database) -> Database:
    db.execute("CREATE TABLE effect (name TEXT NOT NULL)")
    return db


def wait_for(heard: Heard, kind: type[E], count: int = 1) -> list[E]:
    """The events of one kind, once there are as many; on a busy machine children take seconds to start."""
    wait_until(lambda: len(heard.all(kind)) >= count, what=f"{count} {kind.__name__}", timeout=60)
    return heard.all(kind)


def run_one(db: Database, job: Any, **changes: Any) -> dict[str, Any]:
    """The row of a job after its one attempt."""
    job_id = put(db, job)
    with working(db, Isolated, **RETRY_LATER | changes):
        wait_until(lambda: db.row(job_id)["state"] not in ("pending", "processing"), what="an outcome", timeout=60)
    return db.row(job_id)


def noted(path: Path, count: int = 1) -> list[str]:
    """The handler's notes, once there are as many."""
    wait_until(lambda: len(notes(path)) >= count, what=f"{count} notes, only {notes(path)}", timeout=60)
    return notes(path)


class TestOutcomes:
    def test_success_in_a_batch(self, sqlite: Database, path: Path) -> None:
        """A handler in a child that asks for no session is done, written by its parent."""
        row = run_one(sqlite, Work(action="note", path=str(path)))
        assert (row["state"], row["attempts"], row["locked_by"]) == ("done", 1, None)
        assert noted(path) != [str(os.getpid())]

    def test_success_in_its_own_transaction(self, db: Database) -> None:
        """What a handler writes through claim.session and chains is committed with its job's done, by the child."""
        with working(with_effects(db), Isolated, workers=1) as worker:
            heard = Heard(worker.events)
            job_id = put(db, Work(action="write"))
            wait_for(heard, JobDone)
            put(db, Work(action="chain"))
            wait_for(heard, JobDone, 2)
        assert (db.row(job_id)["state"], effects(db)) == ("done", [str(job_id)])
        assert [job["state"] for job in db.rows(topic="next")] == ["pending"] * 2
        assert heard.names() == ["JobClaimed", "JobDone"] * 2

    def test_a_coroutine(self, sqlite: Database) -> None:
        """An ``async def`` handler runs in a child as well, on an AsyncSession of its own."""
        ids = put_many(with_effects(sqlite), [Coroutine(action="write") for _ in range(3)])
        with working(sqlite, Isolated, workers=1):
            wait_until(lambda: len(sqlite.rows(state="done")) == 3, what="three done", timeout=60)
        assert sorted(effects(sqlite)) == sorted(map(str, ids))
        assert len(sqlite.rows(topic="next")) == 3

    def test_an_async_engine(self, pg: Database) -> None:
        """A worker on an AsyncEngine has children with sessions of either sort."""
        with_effects(pg)
        ids = [put(pg, Work(action="write")), put(pg, Coroutine(action="write"))]
        engine: AsyncEngine = create_async_engine(pg.url)
        with Worker(engine, Isolated, workers=1, poll_interval="20ms"):
            wait_until(lambda: len(pg.rows(state="done")) == 2, what="two done", timeout=60)
        engine.sync_engine.dispose(close=False)
        assert sorted(effects(pg)) == sorted(map(str, ids))

    def test_failure_undoes_its_writes(self, sqlite: Database) -> None:
        """A handler that raises leaves nothing of its session, and its error and traceback in the row (R3)."""
        row = run_one(with_effects(sqlite), Work(action="write and fail"))
        assert (row["state"], effects(sqlite), sqlite.rows(topic="next")) == ("failed", [], [])
        assert row["last_error"].startswith("ValueError: after the write\nTraceback")
        assert "in write_and_fail" in row["last_error"]

    def test_losing_the_job_undoes_its_writes(self, pg: Database) -> None:
        """A child whose job has been taken by another commits nothing (I12)."""
        with working(with_effects(pg), Isolated, reaper_period="1h") as worker:
            heard = Heard(worker.events)
            put(pg, Work(action="lose"))
            wait_for(heard, JobLeaseLost)
        [row] = pg.rows(topic="work")
        assert (row["state"], row["locked_by"], effects(pg)) == ("processing", "somebody else", [])

    @pytest.mark.parametrize(
        "action, expected",
        [
            ("retry", (State.FAILED, False, "brooq_sa.exc.RetryAfter: later")),
            ("preserve", (State.FAILED, True, "brooq_sa.exc.PreserveAttempt: not its fault")),
            ("cancel", (State.CANCELED, False, "brooq_sa.exc.CancelJob: no point")),
            ("system exit", (State.FAILED, False, "SystemExit: 4")),
            ("unpicklable", (State.FAILED, False, "apps.isolated.Unpicklable: cannot be sent anywhere")),
        ],
    )
    def test_what_is_raised(self, slots: Slots, action: str, expected: tuple[State, bool, str]) -> None:
        """Signals and whatever else a handler raises mean in a child what they mean in a thread (R2, R4)."""
        outcome = slots.run(Work(action=action))
        assert (outcome.state, outcome.give_back, str(outcome.error).partition("\n")[0]) == expected

    def test_an_undecodable_payload(self, slots: Slots) -> None:
        """A payload that does not fit fails the attempt with its path."""
        kind = Work.__kind__
        claim = bare_claim()
        claim.payload = '{"action": 7}'
        slots.executor.submit([Assignment(claim, kind, kind.policy(WorkerSettings()))])
        assert "at `$.action`" in slots.error()

    def test_secrets_are_taken_out(self) -> None:
        """The hook that redacts is the worker's own, whatever it is, and is asked about each text of a child (R3)."""
        slots = Slots(redact)
        try:
            redacted, withheld = str(slots.run(Work(action="fail")).error), str(slots.run(Work(action="exotic")).error)
        finally:
            slots.executor.stop()
        assert redacted.startswith("ValueError: the secret is ****\nTraceback")
        assert withheld.startswith("<withheld: the hook that redacts raised")

    def test_a_handler_elsewhere(self, sqlite: Database, path: Path) -> None:
        """A child imports the module of the handler too, if it is not that of the class."""
        assert isolated_handlers.handle is Registered.__kind__.handler
        assert run_one(sqlite, Registered(path=str(path)))["state"] == "done"


class TestTelling:
    def test_a_handler_hears_its_cause(self, sqlite: Database, path: Path) -> None:
        """A handler in a child that waits on claim.should_stop hears of its time limit, and may succeed (T1, T2)."""
        row = run_one(sqlite, Short(action="wait", path=str(path)))
        assert (row["state"], notes(path)[1:]) == ("done", ["told attempt timed out"])

    def test_progress_of_a_child(self, sqlite: Database) -> None:
        """What a handler in a child tells of its progress gets into the row as well; of a flood, the last word."""
        job_id = put(sqlite, Work(action="tell and wait"))
        with working(sqlite, Isolated, attempt_timeout="20s"):
            last = "100 of 100 (100%): in a child"
            wait_until(lambda: str(read(sqlite.row(job_id)["progress"], 1)) == last, what="the last word")
            with Session(sqlite.engine) as session, session.begin():
                brooq_sa.cancel(session, Isolated, job_id)

    @pytest.mark.parametrize("cause", StopCause)
    def test_a_coroutine_is_cancelled(self, slots: Slots, path: Path, cause: StopCause) -> None:
        """An ``async def`` handler in a child is cancelled as a task, and knows why (T2)."""
        claim = slots.submit(Coroutine(action="wait", path=str(path)))
        noted(path)
        claim._stop(cause)
        outcome = slots.outcome()
        assert notes(path)[1:] == [f"told {cause}"]
        match cause:
            case StopCause.LEASE_LOST | StopCause.CANCELED:
                assert outcome is None
            case StopCause.SHUTDOWN:
                assert outcome == released(claim._holding)
            case _:
                assert str(outcome.error).startswith(f"TimeoutError: {cause} after ")  # type: ignore[union-attr]


class TestKilling:
    @pytest.mark.parametrize("action", ["spin", "sleep in C"])
    def test_a_handler_that_does_not_stop(self, slots: Slots, path: Path, action: str) -> None:
        """A handler out of time is killed a moment after it was told, in whatever loop or C code it is (T1, T3)."""
        claim = slots.submit(Work(action=action, path=str(path)))
        [pid] = noted(path)
        claim._stop(StopCause.ATTEMPT_TIMEOUT)
        assert slots.error() == (
            "TimeoutError: attempt timed out after 1m\n"
            "Caused by ChildProcessError: killed: the handler did not end within 2s of being told to stop"
        )
        assert not is_running(int(pid))

    @pytest.mark.parametrize(
        "action, text",
        [
            ("exit", "ChildProcessError: the child process exited with status 3"),
            ("segfault", "ChildProcessError: the child process was ended by signal 11 (SIGSEGV)"),
            ("kill", "ChildProcessError: the child process was ended by signal 9 (SIGKILL)"),
            ("close", "ChildProcessError: the child process exited with status 1"),
        ],
    )
    def test_the_end_of_a_child(self, slots: Slots, action: str, text: str) -> None:
        """A child that ends is a failed attempt that says how, and not a dead worker."""
        outcome = slots.run(Work(action=action))
        assert (outcome.state, outcome.give_back, outcome.error) == (State.FAILED, False, text)

    def test_the_next_child(self, slots: Slots, path: Path) -> None:
        """The job after one that killed its child has a fresh one."""
        slots.run(Work(action="note", path=str(path)))
        slots.run(Work(action="exit"))
        assert slots.run(Work(action="note", path=str(path))).state is State.DONE
        first, second = notes(path)
        assert first != second

    def test_a_limit_in_a_worker(self, sqlite: Database, path: Path) -> None:
        """What became of a child stands in the row, as that of any attempt does (T1, R3)."""
        row = run_one(sqlite, Short(action="spin", path=str(path)))
        assert row["state"] == "dead"
        assert row["last_error"].startswith("TimeoutError: attempt timed out after 200ms\nCaused by ChildProcessError")

    def test_an_end_while_committing(self, sqlite: Database) -> None:
        """A child that ends between its outcome and the commit costs the job no attempt, and leaves nothing."""
        row = run_one(with_effects(sqlite), Work(action="die before commit"))
        assert (row["state"], row["attempts"], effects(sqlite)) == ("failed", 0, [])
        assert "PreserveAttempt: the child ended while its outcome was being committed" in row["last_error"]

    def test_too_much_memory(self, slots: Slots, path: Path) -> None:
        """A child that holds more than its kind's memory_limit is killed, and the attempt has failed."""
        outcome = slots.run(Large(action="allocate", path=str(path)))
        assert outcome.state is State.DEAD
        assert str(outcome.error).startswith("MemoryError: killed: the child process held ")
        assert str(outcome.error).endswith("MB, above its memory_limit of 256 MB")

    def test_what_others_left_does_not_count(self, slots: Slots, path: Path) -> None:
        """A job with a memory_limit gets a new child rather than one that has grown."""
        slots.run(Work(action="keep", path=str(path)))
        assert slots.run(Large(action="note", path=str(path))).state is State.DONE
        first, second = notes(path)
        assert first != second

    def test_a_cancel(self, sqlite: Database, path: Path) -> None:
        """A canceled job's handler is killed within moments; the row stays canceled (T5, I3)."""
        job_id = put(sqlite, Work(action="spin", path=str(path)))
        with working(sqlite, Isolated) as worker:
            heard = Heard(worker.events)
            pid = int(noted(path)[0])
            with Session(sqlite.engine) as session, session.begin():
                brooq_sa.cancel(session, Isolated, job_id)
            [lost] = wait_for(heard, JobLeaseLost)
            assert not is_running(pid)
        assert (lost.cause, sqlite.row(job_id)["state"], sqlite.row(job_id)["last_error"]) == (
            "canceled",
            "canceled",
            None,
        )

    def test_a_lost_lease(self, sqlite: Database, path: Path) -> None:
        """A handler whose job somebody else has got is killed, and nothing is written (I12)."""
        job_id = put(sqlite, Work(action="spin", path=str(path)))
        with working(sqlite, Isolated, lease="600ms", reaper_period="1h", watchdog_grace="10s") as worker:
            heard = Heard(worker.events)
            pid = int(noted(path)[0])
            sqlite.execute("UPDATE job SET attempts = attempts + 1")
            wait_for(heard, JobLeaseLost)
            assert not is_running(pid)
        assert (sqlite.row(job_id)["state"], sqlite.row(job_id)["attempts"]) == ("processing", 2)

    def test_what_a_handler_started(self, slots: Slots, path: Path) -> None:
        """Programs that a handler has started are killed with it."""
        claim = slots.submit(Work(action="start a program", path=str(path)))
        [program] = noted(path)
        claim._stop(StopCause.CANCELED)
        assert slots.outcome() is None
        wait_until(lambda: not is_running(int(program)), what="the program's end")


class TestChildren:
    def test_one_child_for_many_jobs(self, slots: Slots, path: Path) -> None:
        """A child is started once and used again (19 times here)."""
        for _ in range(20):
            slots.run(Work(action="note", path=str(path)))
        assert (len(notes(path)), len(set(notes(path)))) == (20, 1)

    def test_as_many_children_as_slots(self, sqlite: Database, path: Path) -> None:
        """Jobs at once run in a child each."""
        put_many(sqlite, [Work(action="wait and succeed", path=str(path)) for _ in range(4)])
        with working(sqlite, Isolated, workers=2) as worker:
            assert len(set(noted(path, 2))) == 2
            assert len(worker._processes._children) == 2
            Path(f"{path}.go").touch()
            wait_until(lambda: len(sqlite.rows(state="done")) == 4, what="four done", timeout=60)
        assert len(set(notes(path))) == 2

    def test_nothing_before_it_is_needed(self, sqlite: Database) -> None:
        """A worker has no child, and no thread for one, before the first job that wants it (I9)."""
        before = threading.active_count(), _children()
        with working(sqlite, Isolated, topics=["coroutine"]) as worker:
            names = {thread.name for thread in threading.enumerate()} - {"brooq-starter_0"}
            assert worker._processes._children == set()
        Worker(sqlite.engine, Isolated)
        assert (threading.active_count(), _children()) == before
        assert not [name for name in names if name.startswith("brooq-child")] or before[1]

    def test_an_idle_child_that_was_killed(self, slots: Slots, path: Path) -> None:
        """A child that ended between two jobs costs the next one nothing."""
        slots.run(Work(action="note", path=str(path)))
        os.kill(int(notes(path)[0]), signal.SIGKILL)
        assert slots.run(Work(action="note", path=str(path))).state is State.DONE

    def test_a_child_that_ends_before_it_begins(
        self, slots: Slots, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A child that is killed as it is given a job costs the job nothing: another child has it."""
        slots.run(Work(action="note", path=str(path)))
        monkeypatch.setattr(ChildProcess, "has_ended", lambda child: False)
        os.kill(int(notes(path)[0]), signal.SIGKILL)
        wait_until(lambda: not is_running(int(notes(path)[0])), what="the child's end")
        slots.submit(Work(action="note", path=str(path)))
        noted(path, 2)
        monkeypatch.undo()
        assert slots.outcome().state is State.DONE  # type: ignore[union-attr]

    def test_a_child_that_was_stopped_in_its_tracks(self, slots: Slots, path: Path) -> None:
        """A child that does not take its job is given up, and another one has it."""
        slots.run(Work(action="note", path=str(path)))
        os.kill(int(notes(path)[0]), signal.SIGSTOP)
        big = "x" * 2_000_000  # more than the channel holds
        assert slots.run(Work(action="nothing", path=big)).state is State.DONE
        assert not is_running(int(notes(path)[0]))

    def test_signals_to_all(self, slots: Slots, path: Path) -> None:
        """A Ctrl-C or SIGTERM that reaches the children too leaves their handlers alone (T6)."""
        slots.submit(Work(action="wait and succeed", path=str(path)))
        pid = int(noted(path)[0])
        assert os.getpgid(pid) != os.getpgrp()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        Path(f"{path}.go").touch()
        assert slots.outcome().state is State.DONE  # type: ignore[union-attr]

    def test_output_passes_through(self, sqlite: Database, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """What a handler prints and logs comes out of the worker's own streams, and its input is empty."""
        put_many(sqlite, [Work(action="print"), Work(action="log"), Work(action="stdin", path=str(path))])
        with working(sqlite, Isolated, workers=1):
            wait_until(lambda: len(sqlite.rows(state="done")) == 3, what="three done", timeout=60)
        out, err = capfd.readouterr()
        assert "from the handler\n" in out
        assert "WARNING app: from its log\n" in err
        assert notes(path) == ["''"]

    def test_no_child_to_be_had(self, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where no process can be started, the job gets its attempt back."""
        monkeypatch.setattr("sys.executable", "/nonexistent/python")
        row = run_one(sqlite, Work(action="nothing"))
        assert (row["state"], row["attempts"]) == ("failed", 0)
        assert "PreserveAttempt: no child process could be started\nCaused by FileNotFoundError" in row["last_error"]

    def test_a_child_that_cannot_start(self, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """A child that ends before it is ready costs the job no attempt either, and the row says how it ended."""
        monkeypatch.setattr("brooq_sa.worker.processes.BOOTSTRAP", "raise SystemExit(5)")
        row = run_one(sqlite, Work(action="nothing"))
        assert (row["state"], row["attempts"]) == ("failed", 0)
        assert "the child process exited with status 5" in row["last_error"]


class TestEnding:
    def test_a_stop_ends_all(self, sqlite: Database, path: Path) -> None:
        """A stopped worker leaves no child, and gives back the jobs of those that it had to kill (T6)."""
        job_id = put(sqlite, Work(action="sleep in C", path=str(path)))
        with working(sqlite, Isolated) as worker:
            pid = int(noted(path)[0])
            worker.stop(grace="0s")
            assert not is_running(pid)
        row = sqlite.row(job_id)
        assert (row["state"], row["attempts"], row["last_error"]) == ("pending", 0, None)

    def test_an_idle_child_ends_by_itself(self, sqlite: Database, path: Path) -> None:
        """Idle children end in good order and at once when the worker stops."""
        with working(sqlite, Isolated) as worker:
            heard = Heard(worker.events)
            put(sqlite, Work(action="note", path=str(path)))
            wait_for(heard, JobDone)
            [child] = worker._processes._children
            began = time.monotonic()
        assert child._process.returncode == 0
        assert time.monotonic() - began < 10

    @pytest.mark.parametrize("action", ["note", "sleep in C"])
    def test_the_death_of_the_worker(self, sqlite: Database, processes: Processes, path: Path, action: str) -> None:
        """A worker killed with SIGKILL takes its children with it, idle or at work."""
        put(sqlite, Work(action=action, path=str(path)))
        parent = processes.script(
            f"""
            from sqlalchemy import create_engine
            from apps.isolated import Isolated
            from brooq_sa import Worker
            worker = Worker(create_engine({sqlite.url!r}), Isolated, poll_interval="20ms")
            worker.start()
            worker.wait()
            """,
            env={"PYTHONPATH": str(TESTS)},
        )
        pid = int(noted(path)[0])
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
        try:
            wait_until(lambda: not is_running(pid), what="the child's end")
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def test_the_end_of_the_channel(self, slots: Slots, path: Path) -> None:
        """A child at work whose channel ends kills itself, where no kernel does it."""
        child = ChildProcess(slots.setup())
        try:
            child.wait_until_ready(lambda: False)
            job = Work(action="spin", path=str(path))
            claimed = Claimed(uuid.uuid4(), "work", job.__kind__.codec.encode(job), 1, 0, 0.0, None)
            child.send(Run(claimed, "w", 1, job.__kind__.policy(WorkerSettings()), is_redacted=False))
            noted(path)
            child.let_go()
            wait_until(child.has_ended, what="the child's end")
        finally:
            child.kill()
        assert child._process.returncode == -signal.SIGKILL


class TestSessions:
    def test_a_factory_by_name(self, sqlite: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A session factory that can be imported makes the sessions in children; it may have an engine of its own."""
        monkeypatch.setenv("SESSIONS", str(path))
        monkeypatch.setenv("SESSION_URL", sqlite.url)
        with_effects(sqlite)
        with working(sqlite, Isolated, session_factory="apps.isolated:session_of_its_own") as worker:
            heard = Heard(worker.events)
            job_id = put(sqlite, Work(action="write"))
            wait_for(heard, JobDone)
        assert effects(sqlite) == [str(job_id)]
        assert notes(path) != [str(os.getpid())]

    def test_a_factory_that_has_a_name(self, sqlite: Database) -> None:
        """A function at the top of a module need not be given as a string."""
        from apps.isolated import session_of_its_own

        worker = Worker(sqlite.engine, Isolated, session_factory=session_of_its_own)
        setup = worker._processes._setup()
        assert (setup.session_factory, setup.async_session_factory) == ("apps.isolated:session_of_its_own", None)

    def test_a_factory_without_a_name(self, sqlite: Database) -> None:
        """A session factory that no child could import is refused, unless nothing runs in children."""
        factory = sessionmaker(sqlite.engine)
        with pytest.raises(UsageError, match="Give it as a string, 'module:name'"):
            Worker(sqlite.engine, Isolated, session_factory=factory)
        Worker(sqlite.engine, job_class(lambda job, claim: None).__bases__[0], session_factory=factory)

    @pytest.mark.parametrize("name", ["apps.isolated", "apps.isolated:nothing", "apps.nowhere:name", ":"])
    def test_a_name_of_nothing(self, sqlite: Database, name: str) -> None:
        """A name that leads nowhere is refused when the worker is made."""
        with pytest.raises(UsageError, match="Give 'module:name'"):
            Worker(sqlite.engine, Isolated, session_factory=name)

    def test_the_password_stays_in_the_pipe(self, pg: Database, path: Path) -> None:
        """Neither the arguments nor the environment of a child name the database."""
        with working(pg, Isolated) as worker:
            put(pg, Work(action="note", path=str(path)))
            folder = Path(f"/proc/{noted(path)[0]}")
            seen = (folder / "cmdline").read_text() + (folder / "environ").read_text()
            assert worker._processes._setup().url == pg.url
        assert "brooq_shared" not in seen


class TestDeclarations:
    def test_a_class_in_a_function(self, sqlite: Database) -> None:
        """A job class that no child could import is refused when the worker is made."""
        base = job_class(lambda job, claim: None, isolation="process").__bases__[0]
        with pytest.raises(UsageError, match="Declare it at the top level of a module"):
            Worker(sqlite.engine, base)

    def test_a_class_in_the_script(self, sqlite: Database, processes: Processes) -> None:
        """So is one in the script that is run, since a child does not run that again."""
        script = processes.script(
            f"""
            from sqlalchemy import create_engine
            from brooq_sa import JobBase, UsageError, Worker

            class Jobs(JobBase):
                pass

            class Own(Jobs, topic="own", isolation="process"):
                def run(self, claim):
                    pass

            try:
                Worker(create_engine({sqlite.url!r}), Jobs)
            except UsageError as error:
                print(error)
            """
        )
        assert script.wait() == 0
        assert "Move both to a module of their own." in script.output()

    @pytest.mark.parametrize("name, topic", [("Next", "next"), ("Nothing", "work"), ("Work", "short")])
    def test_a_kind_that_imports_do_not_bring(self, name: str, topic: str) -> None:
        """A child that does not find a class with a handler under a topic says what it has imported."""
        with pytest.raises(UsageError, match=f"Topic '{topic}' has no handler .* after importing apps.isolated, apps"):
            find(Reference(topic, ("apps.isolated", "apps"), name))

    @pytest.mark.parametrize(
        "limit, size",
        [("512MB", 512_000_000), ("1GiB", 2**30), ("64MiB", 2**26), ("100000KB", 10**8), (2**25, 2**25), (None, None)],
    )
    def test_memory_limits(self, limit: Any, size: int | None) -> None:
        """A memory_limit is bytes, or a number with a decimal or a binary unit."""
        kind = job_class(lambda job, claim: None, isolation="process", memory_limit=limit).__kind__
        assert (kind.options.memory_limit, kind.is_isolated) == (size, True)

    @pytest.mark.parametrize("limit", ["512", "512 MB", "0.5GB", "1MB", 1, 0, -1, True, 1e9, "MB"])
    def test_malformed_memory_limits(self, limit: Any) -> None:
        """Any other memory_limit is refused, as is one that no Python process could keep."""
        with pytest.raises(DeclarationError, match="memory_limit is"):
            job_class(lambda job, claim: None, isolation="process", memory_limit=limit)

    def test_a_limit_without_a_process(self) -> None:
        """A memory_limit means nothing for a thread."""
        with pytest.raises(DeclarationError, match="Add isolation='process'"):
            job_class(lambda job, claim: None, memory_limit="512MB")

    @pytest.mark.parametrize("isolation", ["processes", "", 1])
    def test_unknown_isolation(self, isolation: Any) -> None:
        """Isolation is one of two."""
        with pytest.raises(DeclarationError, match="Give 'thread' or 'process'"):
            job_class(lambda job, claim: None, isolation=isolation)

    def test_threads_are_the_default(self) -> None:
        """Without isolation a handler runs in the worker's own process."""
        assert job_class(lambda job, claim: None).__kind__.is_isolated is False
