"""Whether the demonstration would notice that a number is off."""

from __future__ import annotations

import dataclasses
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, text

from brooq_sa import Session
from brooq_sa.cli import main
from brooq_sa.demo import databases, demonstration, library, numbers
from brooq_sa.demo.children import Child, ChildEnded
from brooq_sa.demo.jobs import ParseModule
from brooq_sa.demo.models import LeftBehind, Module, Parsed
from brooq_sa.demo.numbers import Expected, Numbers
from waiting import wait_until

EXPECTED = Expected(enqueued=3, rolled_back=2, failing=1, left_behind=1)
RIGHT = Numbers(enqueued=3, ghosts=0, done=3, retried=1, recovered=1, twice=0, missing=0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A database as it is when all went well: three modules, one job retried, one recovered."""
    with databases.sqlite_file(tmp_path / "x.db") as place, databases.tables(place) as engine:
        with Session(engine) as session, session.begin():
            ids = [_finished(session, number) for number in (1, 2, 3)]
            session.add(LeftBehind(job_id=ids[2], worker="worker-1"))
        with engine.begin() as connection:
            connection.execute(text("UPDATE brooq_demo_job SET state = 'done', attempts = 1"))
            connection.execute(text("UPDATE brooq_demo_job SET attempts = 2 WHERE idempotency_key <> 'm1'"))
            connection.execute(text("UPDATE brooq_demo_job SET last_error = 'x' WHERE idempotency_key = 'm2'"))
        yield engine


def _finished(session: Session, number: int) -> uuid.UUID:
    session.add(Module(id=number, name=f"m{number}"))
    session.flush()
    session.add(Parsed(module_id=number, lines=1, functions=0, classes=0, imports=0, worker="worker-2-x", attempt=1))
    return session.enqueue(ParseModule(module_id=number, path="x"), key=f"m{number}").id


def count(engine: Engine, *changes: str) -> Numbers:
    with engine.connect() as connection:
        for change in changes:
            connection.execute(text(change))
        found = numbers.count(connection)
        connection.rollback()
    return found


def test_all_is_well(engine: Engine) -> None:
    """Numbers that are all as expected are the verdict that all is well."""
    found = count(engine)
    assert found == RIGHT
    assert numbers.is_well(numbers.table(found, EXPECTED), EXPECTED)


@pytest.mark.parametrize(
    "change,field,number",
    [
        ("DELETE FROM brooq_demo_job WHERE idempotency_key = 'm1'", "enqueued", 2),
        ("INSERT INTO brooq_demo_module (id, name) VALUES (-1, 'ghost.1')", "ghosts", 1),
        ("UPDATE brooq_demo_job SET idempotency_key = 'ghost.1' WHERE idempotency_key = 'm1'", "ghosts", 1),
        ("UPDATE brooq_demo_job SET state = 'dead' WHERE idempotency_key = 'm1'", "done", 2),
        ("UPDATE brooq_demo_job SET last_error = NULL", "retried", 0),
        ("UPDATE brooq_demo_job SET state = 'failed' WHERE idempotency_key = 'm3'", "recovered", 0),
        ("UPDATE brooq_demo_job SET attempts = 1 WHERE idempotency_key = 'm3'", "recovered", 0),
        ("DELETE FROM brooq_demo_parsed WHERE module_id = 2", "missing", 1),
        (
            "INSERT INTO brooq_demo_parsed SELECT 99, 1, 1, 0, 0, 0, 'worker-3-x', 2",
            "twice",
            1,
        ),
    ],
)
def test_what_is_off_is_counted(engine: Engine, change: str, field: str, number: int) -> None:
    """Each fault that a queue could have shows in its number, and the verdict is that something is off."""
    found = count(engine, change)
    assert getattr(found, field) == number
    assert not numbers.is_well(numbers.table(found, EXPECTED), EXPECTED)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Numbers)])
def test_every_number_counts(field: str) -> None:
    """One more or one less of any number, and the verdict is that something is off."""
    for by in (-1, 1):
        wrong = dataclasses.replace(RIGHT, **{field: getattr(RIGHT, field) + by})
        assert not numbers.is_well(numbers.table(wrong, EXPECTED), EXPECTED)


def test_a_worker_killed_while_idle_proves_nothing() -> None:
    """If the killed worker held nothing, nothing was recovered, and that is not good enough."""
    expected = dataclasses.replace(EXPECTED, left_behind=0)
    found = dataclasses.replace(RIGHT, recovered=0)
    assert not numbers.is_well(numbers.table(found, expected), expected)


def test_exit_code_of_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """brooq-sa demo ends with exit code 1 if a number is off."""
    monkeypatch.setattr(demonstration, "demonstrate", lambda _place: False)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == "Error: A number is off.\n"


def test_input_is_the_standard_library() -> None:
    """Every module file of the standard library is in, packages and private modules too; its tests are not."""
    found = library.modules()
    assert {"json", "json.decoder", "_pydecimal", "asyncio.events", "collections.abc", "__future__"} <= found.keys()
    assert all(path.is_file() for path in found.values())
    assert [name for name in found if {"test", "tests"}.intersection(name.split("."))] == []
    assert [name for name in found if "site-packages" in str(found[name])] == []


def test_library_that_is_in_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python whose library is in no files is told so."""
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    with pytest.raises(LookupError, match="no source files of the standard library"):
        library.modules()


def test_worker_that_ends_by_itself(tmp_path: Path) -> None:
    """A child that ends by itself is an error that shows the end of what it wrote."""
    command = [sys.executable, "-c", "print('oh no'); raise SystemExit(3)"]
    child = Child("short", command, folder=tmp_path, environment={}, last_resort=signal.SIGKILL)
    wait_until(lambda: child._process.poll() is not None, what="its end")
    with pytest.raises(ChildEnded, match="short ended by itself, exit code 3:\noh no"):
        child.check()
