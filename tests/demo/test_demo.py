"""``brooq-sa demo``, as a real process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, text

from brooq_sa.demo.demonstration import QUERIES
from brooq_sa.demo.library import modules
from processes import Child, Processes
from waiting import wait_until

LINE = re.compile(r"^(\S.*?) +(-?\d+) +(-?\d+) +(✓|✗|ok|WRONG) *$", re.MULTILINE)


@pytest.fixture
def demo(processes: Processes, tmp_path: Path) -> Callable[..., Child]:
    """Starts the demonstration, whose temporary files go to a folder of the test's own."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(*arguments: str) -> Child:
        # A database of the environment's is not the demonstration's.
        environment = {"TMPDIR": str(temporary), "DATABASE_URL": "postgresql://127.0.0.1:1/nobodys"}
        return processes.module("brooq_sa", "demo", *arguments, env=environment)

    return run


def numbers(child: Child) -> dict[str, int]:
    """The final table's numbers; each is the one expected."""
    found = LINE.findall(child.output())
    assert [name for name, number, expected, _ in found if number != expected] == []
    return {name: int(number) for name, number, _, _ in found}


def left_over(child: Child) -> list[str]:
    """Command lines of the processes that the child started, or what it started: they have inherited its TMPDIR."""
    mark = f"TMPDIR={child.log.parent}/"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended, or somebody else's
        if mark in environment:
            found.append(arguments)
    return found


def check(child: Child) -> None:
    """The demonstration ended well: its numbers are right, and are those of the standard library."""
    assert child.wait(90) == 0, child.output()
    counted = numbers(child)
    held = counted.pop("recovered from the killed worker")
    assert held > 0
    total = len(modules())
    assert total > 300
    assert counted == {
        "enqueued": total,
        "rolled back": 100,
        "done": total,
        "retried": 5,
        "effects missing": 0,
        "effects written twice": 0,
    }
    assert f"worker-1 killed (SIGKILL) while it held {held} jobs" in child.output()
    assert re.search(r"^[a-z]\S+ +█+ +[\d,]+ lines, \d+ functions, \d+ classes", child.output(), re.MULTILINE)
    assert "\x1b" not in child.output()
    assert left_over(child) == []


def test_sqlite_file_that_is_kept(demo: Any, tmp_path: Path) -> None:
    """On SQLite: jobs commit with their rows, a killed worker loses nothing, no effect is doubled (I11, S2)."""
    child = demo("--keep", "kept.db")
    check(child)
    assert list((tmp_path / "temporary").iterdir()) == []
    connection = sqlite3.connect(tmp_path / "kept.db")
    answers = [connection.execute(query).fetchall() for query in QUERIES]
    connection.close()
    assert answers[0] == [("done", len(modules()), answers[0][0][2])]
    assert len(answers[1]) == 5
    assert {(killed, attempt > 1) for _, killed, _, attempt in answers[2]} == {("worker-1", True)}
    assert all(not finished.startswith("worker-1-") for _, _, finished, _ in answers[2])
    assert answers[3] == []
    assert all(query in child.output() for query in QUERIES)

    again = demo("--keep", "kept.db")
    assert again.wait() == 1
    assert "kept.db is there already" in again.output()


def test_postgresql_of_its_own(demo: Any, tmp_path: Path) -> None:
    """The same on a PostgreSQL server that it starts and ends, of which nothing is left (I11)."""
    child = demo("--postgres")
    check(child)
    assert "a PostgreSQL server of its own" in child.output()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_database_of_ones_own(demo: Any, make_pg_database: Callable[..., str]) -> None:
    """In a given database it makes its own tables, drops them, and refuses to touch what is there already."""
    url = make_pg_database()
    engine = create_engine(url)
    try:
        check(demo("--url", url))
        assert inspect(engine).get_table_names() == []
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE brooq_demo_parsed (mine integer)"))
        refused = demo("--url", url)
        assert refused.wait() == 1
        assert "brooq_demo_parsed: there already" in refused.output()
        assert inspect(engine).get_table_names() == ["brooq_demo_parsed"]
    finally:
        engine.dispose()


@pytest.mark.parametrize("place,number", [((), signal.SIGINT), (("--postgres",), signal.SIGTERM)])
def test_interrupted(demo: Any, tmp_path: Path, place: tuple[str, ...], number: signal.Signals) -> None:
    """Interrupted in the middle, it ends its processes and removes its files."""
    child = demo(*place)
    child.wait_for_output("worker-2 started")
    assert left_over(child)
    child.send(number)
    assert child.wait() == 128 + number
    assert "Traceback" not in child.output()
    assert left_over(child) == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the kernel's signal to orphans is Linux's")
def test_killed(demo: Any) -> None:
    """Even killed, it leaves no process: the kernel ends its workers and its server."""
    child = demo("--postgres")
    child.wait_for_output("worker-2 started")
    [folder] = {found[1] for line in left_over(child) if (found := re.search(r"postgres -D \S+ -k (\S+)", line))}
    try:
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: left_over(child) == [], what="the end of its processes")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("--postgres", "--keep", "x.db"), "Give one of --keep, --postgres and --url."),
        (("--keep-tables",), "--keep-tables is for --url."),
        (("--url", "mysql://host/db"), "Jobs live in PostgreSQL or SQLite, not in mysql."),
    ],
)
def test_wrong_usage(demo: Any, arguments: tuple[str, ...], message: str) -> None:
    """Options that do not go together are wrong usage."""
    child = demo(*arguments)
    assert child.wait() == 2
    assert message in child.output()
