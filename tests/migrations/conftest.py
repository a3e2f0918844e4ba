"""Databases without a job table, and Alembic as a command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

Run = Callable[..., subprocess.CompletedProcess[str]]


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


@pytest.fixture
def alembic() -> Run:
    """Runs Alembic's command in a folder; fails the test unless it ends as expected."""

    def run(folder: Path, *arguments: str, url: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        if url is not None:
            environment["DATABASE_URL"] = url
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == (code != 0), f"{arguments} ended with {done.returncode}:\n{done.stderr}"
        return done

    return run
