"""How the statements of a worker lock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Executable, Table, create_engine
from sqlalchemy.sql.dml import UpdateBase

from brooq_sa.statements.claim import claim
from brooq_sa.statements.lease import renew
from brooq_sa.statements.upkeep import purge, reap
from databases import JOB


@pytest.mark.parametrize(
    "build, lock",
    [
        (claim, "FOR NO KEY UPDATE SKIP LOCKED"),
        (renew, "FOR NO KEY UPDATE SKIP LOCKED"),
        (reap, "FOR NO KEY UPDATE SKIP LOCKED"),
        (purge, "FOR UPDATE SKIP LOCKED"),
    ],
    ids=["claim", "renew", "reap", "purge"],
)
def test_rows_that_others_have_locked_are_passed_over(build: Callable[[Table], Executable], lock: str) -> None:
    """Claim, heartbeat, reap and retention are Core statements that skip locked rows on PostgreSQL (M7, I2)."""
    statement = build(JOB)
    assert isinstance(statement, UpdateBase)
    postgresql = create_engine("postgresql+psycopg://").dialect
    assert str(statement.compile(dialect=postgresql)).count(lock) == 1
