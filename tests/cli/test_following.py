"""``brooq-sa enqueue --wait``: how each end is told, and its exit code."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from brooq_sa.cli import following
from brooq_sa.progress import Progress, stored
from brooq_sa.states import State
from brooq_sa.store import JobStore, Outcome
from databases import JOB, Database
from waiting import wait_until

STORE = JobStore(JOB)
HOSTILE = "ValueError: \x1b[2J\nTraceback"

Ending = Callable[..., None]


@pytest.fixture
def ending(db: Database) -> Iterator[Ending]:
    """Lets whatever job comes end so, as soon as it is there."""
    threads: list[threading.Thread] = []

    def end(state: State, error: str | None = None) -> None:
        def take() -> bool:
            with db.engine.begin() as connection:
                claimed = STORE.claim(connection, {"a": 1}, room=1, worker="w", lease=timedelta(minutes=1))
                return bool(claimed) and bool(
                    STORE.settle(connection, "w", [Outcome(*claimed[0].holding, state, error=error)])
                )

        threads.append(threading.Thread(target=wait_until, args=(take,)))
        threads[-1].start()

    yield end
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("state, code", [(State.DONE, 0), (State.DEAD, 4), (State.CANCELED, 5)])
def test_the_exit_code_is_the_end(brooq: Any, ending: Ending, state: State, code: int) -> None:
    """Done is 0, dead 4 and canceled 5; the last line has the id, the end and the error, which commands nothing."""
    ending(state, None if state is State.DONE else HOSTILE)
    result = brooq("enqueue", "a", "1", "--wait", "--timeout", "30s")
    assert result.exit_code == code, result.output
    first, last = result.stdout.splitlines()
    job_id = first.split()[0]
    error = "" if state is State.DONE else ": ValueError: \\x1b[2J"
    assert last == f"{job_id}  {state}, after 1 attempt{error}"
    assert result.stderr.startswith("waits\n") or not result.stderr


def test_documents(brooq: Any, ending: Ending) -> None:
    """With --json there are two objects: the enqueue at once, the end when it comes."""
    ending(State.DEAD, HOSTILE)
    result = brooq("enqueue", "a", "1", "--wait", "--json")
    first, last = map(json.loads, result.stdout.splitlines())
    assert (result.exit_code, first["created"]) == (4, True)
    assert last == {"id": first["id"], "state": "dead", "attempts": 1, "error": HOSTILE}


def test_not_in_time(brooq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 6 says that the job goes on; what it waits for was told meanwhile, and a change of it alone."""
    monkeypatch.setattr(following, "IMPATIENT", 0.05)
    result = brooq("enqueue", "a", "1", "--wait", "--timeout", "600ms")
    assert result.exit_code == 6
    waits, why, error = result.stderr.splitlines()
    assert (waits, why) == ("waits", "No live worker serves its topic a. None is live at all.")
    assert "has not ended within 600ms. It was pending at the last look, and goes on." in error


def test_deleted(brooq: Any, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is deleted while it is waited for is exit code 1."""
    monkeypatch.setattr(following._Line, "show", lambda *_: db.execute("DELETE FROM job"))
    result = brooq("enqueue", "a", "1", "--wait")
    assert (result.exit_code, "has been deleted; it was pending" in result.stderr) == (1, True)


def test_interrupted(brooq: Any, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the wait with exit code 130, and not the job."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(following._Line, "show", interrupt)
    result = brooq("enqueue", "a", "1", "--wait")
    assert result.exit_code == 130
    assert f"The job goes on: brooq-sa why {db.rows()[0]['id']}" in result.stderr
    assert db.states() == ["pending"]


def test_one_that_has_that_key(brooq: Any, db: Database, put: Any, ending: Ending) -> None:
    """If the key is taken, the job that has it is waited for."""
    job_id = put("a", 1, key="k").id
    ending(State.DONE)
    result = brooq("enqueue", "a", "1", "--key", "k", "--wait", "--timeout", "30s")
    assert (result.exit_code, result.stdout.count(str(job_id))) == (0, 2)


def test_a_timeout_without_a_wait(brooq: Any, db: Database) -> None:
    """--timeout alone, and one that is no duration, are wrong usage; nothing is enqueued."""
    assert brooq("enqueue", "a", "1", "--timeout", "5s").exit_code == 2
    assert brooq("enqueue", "a", "1", "--wait", "--timeout", "5").exit_code == 2
    assert db.rows() == []


def test_progress(brooq: Any, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, how far it has come is shown with a bar, and each new word is a line of its own in a pipe."""
    words = [Progress(3, 12, "page 3"), Progress(12, 12)]

    def run(self: Any, fate: Any) -> None:
        with db.engine.begin() as connection:
            if fate.attempts == 0:
                STORE.claim(connection, {"a": 1}, room=1, worker="w", lease=timedelta(minutes=1))
            elif words:
                STORE.report(connection, "w", {(fate.id, 1): stored(words.pop(0), 1)})
            else:
                STORE.settle(connection, "w", [Outcome(fate.id, 1, State.DONE)])
        show(self, fate)

    show = following._Line.show
    monkeypatch.setattr(following._Line, "show", run)
    result = brooq("enqueue", "a", "1", "--wait", "--timeout", "30s")
    assert result.exit_code == 0, result.output
    assert "attempt 1 runs  [#####---------------] 3 of 12 (25%): page 3\n" in result.stderr
    assert "attempt 1 runs  [####################] 12 of 12 (100%)\n" in result.stderr
