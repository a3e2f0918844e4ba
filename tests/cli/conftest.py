"""The command line, called inside the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brooq_sa import Enqueued, RawJob, enqueue
from brooq_sa.cli import main
from databases import Database


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the variables or the .env of whoever runs it."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "BROOQ_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


class CommandLine:
    """Calls ``brooq-sa`` with arguments; gives its exit code and output."""

    def __init__(self, **environment: str) -> None:
        self.environment = environment

    def __call__(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, env=self.environment, prog_name="brooq-sa")

    def documents(self, *arguments: str) -> list[Any]:
        """The JSON documents that a command prints with --json, one a line."""
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def call() -> CommandLine:
    """The command line, without a database."""
    return CommandLine()


@pytest.fixture
def brooq(db: Database) -> CommandLine:
    """The command line, with DATABASE_URL set to the database under test."""
    return CommandLine(DATABASE_URL=db.url)


@pytest.fixture
def put(db: Database) -> Callable[..., Enqueued]:
    """Enqueues a raw job, and commits."""

    def run(topic: str = "email.send", payload: Any = None, **options: Any) -> Enqueued:
        with db.engine.begin() as connection:
            return enqueue(connection, RawJob(topic, payload), **options)

    return run
