"""The fixtures keep their promises to the tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, inspect

from databases import Database
from processes import Processes
from waiting import wait_until

ADD = "INSERT INTO job (topic, payload) VALUES ('a.topic', '{}')"


@pytest.mark.parametrize("round", [1, 2])
def test_each_test_starts_without_jobs(db: Database, round: int) -> None:
    """What one test wrote or made is gone in the next."""
    assert db.rows() == []
    assert not inspect(db.engine).has_table("effects")
    db.execute(ADD)
    db.execute("CREATE TABLE effects (id int)")
    assert db.states() == ["pending"]


def test_time_passes_for_every_instant(db: Database) -> None:
    """Shifting the clock moves every instant back by the same time, and leaves NULL alone."""
    db.execute(ADD)
    before = db.row()
    db.shift_clock(timedelta(hours=36))
    after = db.row()
    assert {name for name in before if before[name] != after[name]} == {"available_at", "created_at", "updated_at"}
    assert before["available_at"] - after["available_at"] == timedelta(hours=36)
    assert after["locked_until"] is None


def test_a_test_can_have_databases_of_its_own(make_pg_database: Callable[..., str], pg_template: str) -> None:
    """Clones of the template are migrated, other new databases are empty."""
    tables = []
    for url in (make_pg_database(), make_pg_database(template=pg_template)):
        engine = create_engine(url)
        tables.append(inspect(engine).has_table("job"))
        engine.dispose()
    assert tables == [False, True]


def test_no_child_outlives_its_test(processes: Processes) -> None:
    """A child and its own children end together, and its output is kept."""
    child = processes.script(
        """
        import subprocess, sys, time
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("grandchild", grandchild.pid)
        time.sleep(600)
        """
    )
    child.wait_for_output("grandchild")
    child.end()
    assert child.popen.returncode == -signal.SIGKILL
    assert child.output().startswith("grandchild ")


def test_a_wait_that_fails_says_what_for() -> None:
    """The failure of a wait names what did not happen."""
    with pytest.raises(AssertionError, match=r"^0.01 seconds passed without a miracle$"):
        wait_until(lambda: False, timeout=0.01, what="a miracle")
