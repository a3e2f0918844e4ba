"""Running one check at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from brooq_sa.doctor import CHECKS, Finding, examine
from databases import JOB, Database

Run = Callable[..., list[Finding]]


def run(engine: Engine, name: str, **options: Any) -> list[Finding]:
    """What the check of that name finds."""
    checks = [check for check in CHECKS if check.name == name]
    assert checks, name
    with engine.connect() as connection:
        return list(examine(connection, JOB, checks=checks, **options))


@pytest.fixture
def check() -> Run:
    """Runs a check on an engine."""
    return run


@pytest.fixture
def own(make_pg_database: Callable[..., str], pg_template: str) -> Iterator[Database]:
    """A migrated PostgreSQL database that the test may change as it likes."""
    database = Database(make_pg_database(template=pg_template))
    yield database
    database.dispose()
