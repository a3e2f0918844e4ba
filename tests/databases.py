"""The databases under test: what the fixtures hand to a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, MetaData, bindparam, create_engine, select, text, update

from brooq_sa import migrations, sqlite
from brooq_sa.schema import INSTANTS, job_table

JOB = job_table(MetaData())
"""The table as tests read it, in a MetaData of their own."""


def make_engine(url: str) -> Engine:
    """An engine as a careful user would make it."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        sqlite.configure(engine)
    return engine


def migrate(engine: Engine) -> None:
    """Bring an empty database to the newest schema."""
    migrations.upgrade(engine)


class Database:
    """One empty, migrated database, and the ways a test looks into it.

    Attributes:
        name: of the backend, ``postgresql`` or ``sqlite``.
        url: to hand to other processes.
        engine: a configured one, disposed of after the test.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = make_engine(url)
        self.name = self.engine.dialect.name

    def __repr__(self) -> str:
        return f"Database({self.name})"

    def rows(self, **columns: object) -> list[dict[str, Any]]:
        """The jobs whose columns have these values, in order of their ids."""
        query = select(JOB).filter_by(**columns).order_by(JOB.c.id)
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def row(self, id: uuid.UUID | None = None) -> dict[str, Any]:
        """The one job with this id, or the only job there is."""
        [row] = self.rows() if id is None else self.rows(id=id)
        return row

    def states(self) -> list[str]:
        """The state of each job, in order of their ids."""
        return [row["state"] for row in self.rows()]

    def execute(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """The rows of a hand-written statement, which is committed."""
        with self.engine.begin() as connection:
            result = connection.execute(text(sql), parameters)
            return [dict(row) for row in result.mappings()] if result.returns_rows else []

    def shift_clock(self, by: timedelta) -> None:
        """Let time pass in the database, by moving every instant in every job back."""
        with self.engine.begin() as connection:
            moved = [_moved(row, by) for row in connection.execute(select(JOB.c.id, *_instants())).mappings()]
            if moved:
                change = update(JOB).where(JOB.c.id == bindparam("job_id"))
                connection.execute(change.values({name: bindparam(f"new_{name}") for name in INSTANTS}), moved)

    def dispose(self) -> None:
        self.engine.dispose()


def _instants() -> Iterable[Any]:
    return (JOB.c[name] for name in INSTANTS)


def _moved(row: Any, by: timedelta) -> dict[str, Any]:
    times = {f"new_{name}": row[name] and row[name] - by for name in INSTANTS}
    return {"job_id": row["id"], **times}
