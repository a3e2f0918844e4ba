"""What goes wrong is one clear line and an exit code, never a password, and a traceback only on request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databases import Database

NOBODY = "postgresql://me:s3cr%40t@127.0.0.1:1/jobs"
"""Nobody listens on port 1."""


@pytest.mark.parametrize("arguments", [("jobs",), ("stats",), ("enqueue", "a", "1"), ("migrate", "current")])
def test_database_out_of_reach(call: Any, arguments: tuple[str, ...]) -> None:
    """A database that cannot be reached is told in a line with its URL, without the password, exit code 1."""
    result = call(*arguments, "--url", NOBODY)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: postgresql+psycopg://me:***@127.0.0.1:1/jobs: ")
    assert len(result.stderr.splitlines()) == 1
    assert "s3cr" not in result.stderr


def test_worker_whose_database_is_out_of_reach() -> None:
    """A worker that cannot reach its database ends likewise."""
    Path("own_failing.py").write_text(
        "from brooq_sa import JobBase\nclass AppJob(JobBase): pass\n"
        "class A(AppJob, topic='a'):\n    def run(self, claim): ...\n",
        encoding="utf-8",
    )
    run = subprocess.run(
        [sys.executable, "-m", "brooq_sa", "worker", "own_failing:AppJob", "--url", NOBODY],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    assert run.stderr.startswith("Error: postgresql+psycopg://me:***@127.0.0.1:1/jobs: ")
    assert len(run.stderr.splitlines()) == 1
    assert "s3cr" not in run.stdout + run.stderr


@pytest.mark.parametrize("ask", ["--traceback", "BROOQ_TRACEBACK"])
def test_traceback_on_request(call: Any, ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """--traceback or BROOQ_TRACEBACK=1 shows where an error came from, still without the password."""
    if ask == "BROOQ_TRACEBACK":
        monkeypatch.setenv(ask, "1")
    result = call(*([ask] if ask.startswith("--") else []), "jobs", "--url", f"{NOBODY}?password=hunter2")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "psycopg.OperationalError" in result.stderr
    assert not any(secret in result.output for secret in ("s3cr", "hunter2"))


@pytest.mark.parametrize(
    "url",
    [
        "nonsense with s3cret",
        "postgresql://me:s3cret@host:port/db",
        "mysql://me:s3cret@host/db",
        "sqlite://",
        "bad+s3cret://x",
    ],
)
def test_url_that_cannot_be_used(call: Any, url: str) -> None:
    """A URL that is none, or of a database that jobs do not live in, is wrong usage; it is not repeated."""
    result = call("jobs", "--url", url)
    assert result.exit_code == 2
    assert "Give one such as postgresql://user@host/name or sqlite:///jobs.db." in " ".join(result.stderr.split())
    assert "me:s3cret" not in result.output
    assert "nonsense" not in result.output


def test_no_database_given(call: Any) -> None:
    """Without a URL, the three places are named where one is looked for."""
    result = call("jobs")
    assert result.exit_code == 2
    assert "Use --url, or set DATABASE_URL in the environment or in .env." in result.stderr


def test_places_of_the_url(call: Any, sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--url goes before the environment, that before .env; an empty variable counts as unset (U3)."""
    Path(".env").write_text(f"DATABASE_URL={sqlite.url}\n", encoding="utf-8")
    assert call("jobs").exit_code == 0
    monkeypatch.setenv("DATABASE_URL", "")
    assert call("jobs").exit_code == 0
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/absent.db")
    assert call("jobs").exit_code == 1
    assert call("jobs", "--url", sqlite.url).exit_code == 0


def test_plain_postgresql_urls(call: Any, pg: Database) -> None:
    """postgresql:// and postgres:// choose psycopg."""
    for scheme in ("postgresql", "postgres", "postgresql+asyncpg"):
        url = pg.url.replace("postgresql+psycopg", scheme)
        assert call("jobs", "--url", url).exit_code == 0


def test_sqlite_file_that_is_not_there(call: Any, tmp_path: Path) -> None:
    """A misspelt SQLite file is refused, not made."""
    result = call("jobs", "--url", f"sqlite:///{tmp_path}/typo.db")
    assert result.exit_code == 1
    assert "There is no file" in result.stderr
    assert not (tmp_path / "typo.db").exists()


def test_missing_table(brooq: Any, db: Database) -> None:
    """A database without the table is told apart, with the way to make it."""
    for arguments in (["jobs"], ["stats"], ["cancel", "0198c5a2-7f4e-7c31-9d7f-3b0c5a1e2d4f"], ["enqueue", "a", "1"]):
        result = brooq(*arguments, "--table", "absent")
        assert result.exit_code == 1
        assert "has no table 'absent'" in result.stderr
        assert "brooq-sa migrate" in result.stderr


def test_faults_of_our_own_are_not_dressed_up(call: Any, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is neither ours nor the database's is a bug, and keeps its traceback."""

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("brooq_sa.cli.look._as_line", fail)
    sqlite.execute("INSERT INTO job (topic, payload) VALUES ('a', '1')")
    assert isinstance(call("jobs", "--url", sqlite.url).exception, ZeroDivisionError)


def test_reader_that_goes_away(sqlite: Database) -> None:
    """A pipe whose reader has enough is no error: no traceback, exit code 0."""
    insertion = "INSERT INTO job (topic, payload) VALUES " + ", ".join(["('a', '1')"] * 1_000)
    sqlite.execute(insertion)
    command = [sys.executable, "-m", "brooq_sa", "jobs", "--json", "--limit", "1000", "--url", sqlite.url]
    reader, writer = os.pipe()
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert os.read(reader, 1)
        os.close(reader)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
