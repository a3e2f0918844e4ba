"""Databases without a job table, and Alembic as a command."""

from __future__ import annotations

import io
import logging.config
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from alembic.config import CommandLine, Config
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine

from brooq_sa.cli import main
from migrations.consumer import Consumer


@pytest.fixture
def empty_pg_url(make_pg_database: Callable[..., str]) -> str:
    """The URL of an empty PostgreSQL database."""
    return make_pg_database()


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'empty.sqlite'}"


@pytest.fixture(params=["postgresql", "sqlite"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database without tables: the test runs once on each backend."""
    return str(request.getfixturevalue("empty_pg_url" if request.param == "postgresql" else "empty_sqlite_url"))


@pytest.fixture
def empty(empty_url: str) -> Iterator[Engine]:
    """An engine, as SQLAlchemy makes it, on a database without tables."""
    engine = create_engine(empty_url)
    yield engine
    engine.dispose()


@dataclass
class Ended:
    """How a run of Alembic ended: zero or not, and all that it printed."""

    code: int
    output: str


Run = Callable[..., Ended]


@pytest.fixture
def alembic_command() -> Run:
    """Runs ``alembic`` in a process of its own, as people do; fails the test unless it ends as expected."""

    def run(folder: Path, *arguments: str, url: str | None = None, code: int = 0) -> Ended:
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        if url is not None:
            environment["DATABASE_URL"] = url
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return _expected(Ended(done.returncode, done.stdout + done.stderr), code, arguments)

    return run


@pytest.fixture
def alembic(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`alembic_command` in this process, which takes a tenth of the time."""

    def run(folder: Path, *arguments: str, url: str | None = None, code: int = 0) -> Ended:
        options = CommandLine().parser.parse_args(arguments)
        command, positional, named = options.cmd
        printed = io.StringIO()
        toml = folder / "pyproject.toml"
        config = Config(str(folder / "alembic.ini"), toml_file=str(toml), stdout=printed, cmd_opts=options)
        with monkeypatch.context() as patch, redirect_stdout(printed):
            patch.chdir(folder)
            patch.setattr(sys, "path", [*sys.path])
            # What an env.py does to the logging of its process would outlive this.
            patch.setattr(logging.config, "fileConfig", lambda _name: None)
            patch.delenv("DATABASE_URL", raising=False)
            if url is not None:
                patch.setenv("DATABASE_URL", url)
            try:
                command(
                    config,
                    *[getattr(options, name, None) for name in positional],
                    **{name: getattr(options, name, None) for name in named},
                )
            except Exception as error:
                return _expected(Ended(1, f"{printed.getvalue()}{error}"), code, arguments)
        return _expected(Ended(0, printed.getvalue()), code, arguments)

    return run


def _expected(ended: Ended, code: int, arguments: tuple[str, ...]) -> Ended:
    assert (ended.code != 0) == (code != 0), f"{arguments} ended with {ended.code}:\n{ended.output}"
    return ended


@pytest.fixture
def make_consumer(tmp_path: Path) -> Callable[..., Consumer]:
    """Makes projects of the kind that ``alembic init`` makes, from one of its templates."""

    def make(url: str, template: str = "generic", name: str = "project", **options: str) -> Consumer:
        return Consumer(tmp_path / name, url, template, **options)

    return make


@pytest.fixture
def brooq_sa_command(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``brooq-sa`` in this process, in a folder; fails the test unless it ends with the code that is expected."""

    def run(folder: Path, *arguments: str, url: str | None = None, code: int = 0) -> Ended:
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(logging.config, "fileConfig", lambda _name: None)
            patch.delenv("DATABASE_URL", raising=False)
            environment = {} if url is None else {"DATABASE_URL": url}
            result = CliRunner().invoke(main, arguments, env=environment, prog_name="brooq-sa")
        assert result.exit_code == code, f"{arguments} ended with {result.exit_code}:\n{result.output}"
        return Ended(result.exit_code, result.output)

    return run
