"""``brooq-sa cancel``, ``retry``, ``run-now`` and ``delete`` of many jobs; by ids they are shown in test_look."""

from __future__ import annotations

import io
import json
import re
import uuid
from datetime import timedelta
from typing import Any

import click
import pytest
from sqlalchemy import select

from brooq_sa import bulk as module
from brooq_sa.cli import operate
from brooq_sa.states import State
from brooq_sa.store import JobStore, Outcome
from databases import JOB, Database

STORE = JobStore(JOB)


@pytest.fixture
def dead(db: Database, put: Any) -> None:
    """Five dead jobs, two of another topic, and one that waits."""
    for number in range(5):
        put("a" if number < 3 else "b", number)
    with db.engine.begin() as connection:
        claimed = STORE.claim(connection, {"a": 9, "b": 9}, room=9, worker="w", lease=timedelta(minutes=1))
        outcomes = [Outcome(*job.holding, State.DEAD, error=f"ValueError: of {job.topic}") for job in claimed]
        STORE.settle(connection, "w", outcomes)
    put("a", "waits")


def test_a_look_a_question_and_the_move(brooq: Any, db: Database, dead: None) -> None:
    """How many jobs fit and some of them are shown; with yes, they are moved."""
    result = brooq("retry", "--topic", "a", stdin="y\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("3 jobs fit: 3 dead. Among them:\n")
    assert len(re.findall(r"^[0-9a-f-]{36}  a +dead +.* +ValueError: of a *$", result.stdout, re.MULTILINE)) == 3
    assert result.stdout.endswith("3 retried.\n")
    assert "retry 3 jobs? [y/N]" in result.stderr
    assert sorted(db.states()) == ["dead", "dead", "pending", "pending", "pending", "pending"]


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_no_moves_nothing(brooq: Any, db: Database, dead: None, answer: str) -> None:
    """Any answer but yes, and nobody there to answer, leave all as it is, with exit code 1."""
    before = db.rows()
    result = brooq("delete", "--state", "dead", stdin=answer)
    assert result.exit_code == 1
    assert "Nothing was done: the answer was not yes. Give --yes where nobody is asked." in result.stderr
    assert db.rows() == before


@pytest.mark.parametrize("command", ["retry", "cancel", "delete", "run-now"])
def test_a_dry_run(brooq: Any, db: Database, dead: None, put: Any, command: str) -> None:
    """With --dry-run there is a look, and neither question nor move."""
    put("a", "later", delay="1h")
    before = db.rows()
    result = brooq(command, "--topic", "a", "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert " fit" in result.stdout
    assert db.rows() == before


def test_documents(brooq: Any, dead: None) -> None:
    """With --json, one object says what fitted, was moved and was left."""
    arguments = ("delete", "--state", "dead", "--error", "of b", "--yes")
    assert brooq.documents(*arguments, "--dry-run") == [{"fit": {"dead": 2}, "moved": 0, "left": 0}]
    assert brooq.documents(*arguments) == [{"fit": {"dead": 2}, "moved": 2, "left": 0}]
    assert brooq.documents(*arguments) == [{"fit": {}, "moved": 0, "left": 0}]


def test_nothing_fits(brooq: Any, db: Database) -> None:
    """That no job fits is no error, and asks nothing."""
    result = brooq("cancel", "--topic", "nothing.here")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No job fits.\n")


def test_ages(brooq: Any, db: Database, dead: None) -> None:
    """--older-than and --newer-than narrow by the last change."""
    db.shift_clock(timedelta(hours=3))
    assert brooq.documents("retry", "--older-than", "2h", "--dry-run")[0]["fit"] == {"dead": 5}
    assert brooq.documents("retry", "--newer-than", "2h", "--dry-run")[0]["fit"] == {}
    assert brooq("retry", "--older-than", "2").exit_code == 2


def test_what_is_left_is_exit_code_1(brooq: Any, dead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that somebody else has moved meanwhile are counted, and the exit code says so."""
    monkeypatch.setattr(module, "_move_ids", lambda *_: [])
    result = brooq("retry", "--topic", "a", "--yes")
    assert result.exit_code == 1
    assert "0 retried, 3 left as they were: changed, locked or referred to." in result.stdout


def test_what_changed_before_its_batch_is_counted(
    brooq: Any, db: Database, dead: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that somebody else moves between the look and the answer is left alone, and told of."""
    monkeypatch.setattr(
        operate, "_confirm", lambda _question: db.execute("UPDATE job SET state = 'done' WHERE topic = 'b'")
    )
    result = brooq("retry", "--state", "dead")
    assert (result.exit_code, "3 retried, 2 left as they were: " in result.stdout) == (1, True)
    assert db.states().count("done") == 2


def test_one_that_is_left(brooq: Any, db: Database, dead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job is told of as one."""
    db.execute("DELETE FROM job WHERE id <> (SELECT id FROM job LIMIT 1)")
    monkeypatch.setattr(module, "_move_ids", lambda *_: [])
    assert "0 retried, 1 left as it was: " in brooq("retry", "--state", "dead", "--yes").stdout


def test_interrupted(brooq: Any, db: Database, dead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C keeps what was moved, says how many, and the same command goes on."""
    monkeypatch.setattr(module, "BATCH", 2)
    move = module._move_ids
    batches: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        batches.append(1)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return move(*arguments)

    monkeypatch.setattr(module, "_move_ids", interrupted)
    result = brooq("delete", "--state", "dead", "--yes")
    assert result.exit_code == 1
    assert "Interrupted: 2 are moved. The same command goes on with the others." in result.stderr
    assert db.states().count("dead") == 3
    assert brooq("delete", "--state", "dead", "--yes").exit_code == 0
    assert db.states() == ["pending"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("retry",),
        ("delete", "--yes"),
        ("run-now", "--dry-run"),
        ("retry", "--state", "done"),
        ("delete", "--state", "processing"),
        ("cancel", str(uuid.uuid4()), "--topic", "a"),
        ("cancel", "17"),
    ],
)
def test_wrong_usage(brooq: Any, dead: None, db: Database, arguments: tuple[str, ...]) -> None:
    """Neither ids nor a filter, both of them, and a state that is not for this are wrong usage; nothing is moved."""
    before = db.rows()
    assert brooq(*arguments, stdin="y\n").exit_code == 2
    assert db.rows() == before


def test_by_ids(brooq: Any, db: Database, dead: None, put: Any) -> None:
    """run-now and delete take ids too, and say what they did to each."""
    later = str(put("a", delay="1h").id)
    gone = str(db.rows(state="dead")[0]["id"])
    nobody = str(uuid.uuid4())
    assert brooq.documents("run-now", later) == [{"id": later, "result": "moved"}]
    assert brooq("run-now", later).stdout == f"{later}  not needed\n"
    assert brooq("run-now", gone).exit_code == 1
    result = brooq("delete", gone, nobody, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["result"] for line in result.stdout.splitlines()] == ["moved", "not found"]
    assert db.rows(id=uuid.UUID(gone)) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("db", ["postgresql"], indirect=True)
@pytest.mark.parametrize("command", ["cancel", "delete", "run-now"])
def test_a_row_that_somebody_has_locked(
    brooq: Any, db: Database, put: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Is left alone after a while, with a word on how to find out who it is, and costs the others nothing."""
    monkeypatch.setattr(operate, "LOCK_TIMEOUT", "50ms")
    locked, free = put("a", 1, delay="1h").id, put("a", 2, delay="1h").id
    with db.engine.begin() as connection:
        connection.execute(select(JOB.c.id).where(JOB.c.id == locked).with_for_update())
        result = brooq(command, str(locked), str(free))
    assert result.exit_code == 1
    assert f"{locked}  locked by another transaction: brooq-sa why {locked} says whose\n" in result.stdout
    assert f"{free}  " in result.stdout
    assert len(db.rows()) == (1 if command == "delete" else 2)


def test_a_bar_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it is shows on a terminal, and nowhere else."""
    for stream, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        with click.Context(click.Command("x")), operate._progress("retry", 10) as show:
            show(4)
            show(10)
        assert ("10/10" in stream.getvalue()) == is_shown
        assert bool(stream.getvalue()) == is_shown
