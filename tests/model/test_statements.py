"""The model's moves are those of the statements: guard by guard in the SQL, and row by row in the database."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.dialects.postgresql import psycopg

from brooq_sa.statements import claim, lease, operate, settle, upkeep
from brooq_sa.states import State
from brooq_sa.store import JobStore
from brooq_sa.store import Outcome as Written
from databases import JOB, Database
from model import moves
from model.moves import AHEAD, GUARDS, LOCKING, PAST, PROCESSING, SUCCEEDED, Guard, Moves, Outcome, Row, Terms

BUILDERS: dict[str, Callable[[Any], Any]] = {
    "claim": claim.claim,
    "renew": lease.renew,
    "release_unknown": lease.release_unknown,
    "settle_done": settle.settle_done,
    "settle_otherwise": settle.settle_otherwise,
    "reap": upkeep.reap,
    "cancel_waiting": operate.cancel_waiting,
    "cancel_processing": operate.cancel_processing,
    "retry": operate.retry,
    "purge": upkeep.purge,
}


DIALECT: Any = psycopg.PGDialect_psycopg  # untyped in SQLAlchemy 2.0


def conditions(statement: str) -> tuple[str, str]:
    """The WHERE of a statement: within its locking sub-select, and outside of it."""
    sql = " ".join(str(BUILDERS[statement](JOB).compile(dialect=DIALECT())).split())
    where = sql.partition(" WHERE ")[2].rpartition(" RETURNING ")[0]
    if statement not in LOCKING:
        return where, ""
    start = where.index("ARRAY(") + len("ARRAY")
    end = closing(where, start)
    return where[start : end + 1], where[end + 1 :]


def closing(sql: str, start: int) -> int:
    """Where the parenthesis that opens at `start` is closed."""
    depth = 0
    for place in range(start, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if not depth:
            return place
    raise ValueError(f"not closed: {sql[start:]}")


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.full_name)
def test_each_guard_of_the_model_is_in_its_statement(guard: Guard) -> None:
    """The statement that the model says has a guard has it, repeated where the model says so (I2, I3, I12)."""
    choosing, writing = conditions(guard.statement)
    assert guard.sql in choosing
    assert guard.again in writing


ON_THE_ROW = re.compile(r"job\.(state|attempts|locked_by|locked_until|available_at|updated_at) (=|<|>|IN|IS|NOT)[^)]*")


HARMLESS = {
    # The reaper goes by the index on holders; a processing row always has one.
    "reap": "job.locked_by IS NOT NULL",
    # Where a claim may begin to look. What lies before is found by the next that begins at the start.
    "claim": "job.available_at >= CASE",
}


@pytest.mark.parametrize("statement", BUILDERS)
def test_the_model_knows_each_condition_of_a_statement(statement: str) -> None:
    """No statement has a condition that the model lacks, which would make the model weaker than the database."""
    choosing, writing = conditions(statement)
    for guard in GUARDS:
        if guard.statement == statement:
            choosing = choosing.replace(guard.sql, "")
            writing = writing.replace(guard.again, "") if guard.again else writing
    left = (choosing + writing).replace(HARMLESS.get(statement, "\0"), "")
    assert ON_THE_ROW.findall(left) == []


HOLDERS = {None: None, 0: "A", 1: "B"}
ATTEMPT = 2
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
TERMS = Terms(worker=0, attempt=ATTEMPT)

Case = tuple[str, Callable[..., Any], Callable[[Row], Row | None]]
"""A statement, how to run it, and what it makes of a row."""


class Put(NamedTuple):
    """A row that was put into the table."""

    id: uuid.UUID
    row: Row
    is_named: bool


def rows() -> list[Put]:
    """Every row that can be, once among those that the statement is about and once not."""
    put = []
    for is_named, state, attempts, holder, until, is_due, is_old in itertools.product(
        (True, False), moves.STATES, (1, ATTEMPT), HOLDERS, (None, AHEAD, PAST), (True, False), (True, False)
    ):
        if state == PROCESSING and (holder is None or until is None):
            continue  # the table refuses it
        put.append(Put(uuid.uuid4(), Row(state, attempts, holder, until, is_due, is_old), is_named))
    return put


def fill(connection: Connection, put: list[Put]) -> None:
    now = datetime.now(UTC)
    ends = {None: None, AHEAD: now + DAY, PAST: now - DAY}
    values: list[dict[str, Any]] = [
        {
            "id": each.id,
            "topic": "t",
            "payload": {},
            "state": each.row.state,
            "attempts": each.row.attempts,
            "locked_by": HOLDERS[each.row.holder],
            "locked_until": ends[each.row.until],
            "available_at": now - DAY if each.row.is_due else now + DAY,
            "updated_at": now - DAY if each.row.is_old else now,
        }
        for each in put
    ]
    connection.execute(insert(JOB), values)


def look(connection: Connection) -> dict[uuid.UUID, Row]:
    now = datetime.now(UTC)
    workers = {name: holder for holder, name in HOLDERS.items()}
    found = {}
    for row in connection.execute(select(JOB)).mappings():
        until = row["locked_until"] and (AHEAD if row["locked_until"] > now else PAST)
        is_due, is_old = row["available_at"] <= now + HOUR / 2, row["updated_at"] < now - HOUR
        found[row["id"]] = Row(row["state"], row["attempts"], workers[row["locked_by"]], until, is_due, is_old)
    return found


def outcomes(put: list[Put], outcome: Outcome) -> list[Written]:
    delay = DAY if outcome.is_delayed else None
    state = State(outcome.state)
    return [Written(each.id, ATTEMPT, state, delay, None, outcome.gives_back) for each in put if each.is_named]


def settling(outcome: Outcome) -> Case:
    statement = "settle_done" if outcome is SUCCEEDED else "settle_otherwise"
    return (
        statement,
        lambda store, connection, put: store.settle(connection, "A", outcomes(put, outcome)),
        lambda row: moves.settled(row, outcome),
    )


def operating(statement: str, change: Callable[[Row], Row]) -> Case:
    def run(_store: JobStore, connection: Connection, put: list[Put]) -> None:
        for each in put:
            if each.is_named:
                connection.execute(BUILDERS[statement](JOB), {"job_id": each.id}).close()

    return statement, run, change


CASES: dict[str, Case] = {
    "claim": (
        "claim",
        lambda store, connection, put: store.claim(connection, {"t": len(put)}, room=len(put), worker="A", lease=DAY),
        lambda row: moves.claimed(row, 0),
    ),
    "renew": (
        "renew",
        lambda store, connection, put: store.renew(
            connection, "A", [(each.id, ATTEMPT) for each in put if each.is_named], DAY
        ),
        moves.renewed,
    ),
    "release_unknown": (
        "release_unknown",
        lambda store, connection, put: store.release_unknown(
            connection, "A", [each.id for each in put if each.is_named]
        ),
        moves.released_unknown,
    ),
    "reap": ("reap", lambda store, connection, put: store.reap(connection, limit=len(put)), moves.reaped),
    "purge": (
        "purge",
        lambda store, connection, put: store.purge(connection, ttl=HOUR, limit=len(put)),
        lambda row: None,
    ),
    "cancel_waiting": operating("cancel_waiting", moves.canceled),
    "cancel_processing": operating("cancel_processing", moves.canceled),
    "retry": operating("retry", moves.retried),
    **{outcome.name: settling(outcome) for outcome in moves.OUTCOMES},
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_moves_a_row_as_the_database_does(db: Database, case: str) -> None:
    """Of all the rows there can be, a statement changes those that the model says, as the model says (I3, I6, I12)."""
    statement, run, change = CASES[case]
    known = Moves()
    put = rows()
    with db.engine.begin() as connection:
        fill(connection, put)
    with db.engine.begin() as connection:
        run(JobStore(JOB), connection, put)
        found = look(connection)
    expected = {}
    for each in put:
        fits = known.fits(statement, each.row, TERMS._replace(is_named=each.is_named))
        after = change(each.row) if fits else each.row
        if after is not None:
            expected[each.id] = after
    assert {each: found.get(each.id) for each in put} == {each: expected.get(each.id) for each in put}
    assert found != {each.id: each.row for each in put}


def test_a_cancel_in_plain_sql_leaves_what_the_model_says(db: Database) -> None:
    """An UPDATE of the state alone is taken by the table, and leaves the lease where it was (I1)."""
    put = [each for each in rows() if each.row.state in moves.ACTIVE]
    with db.engine.begin() as connection:
        fill(connection, put)
        connection.execute(text("UPDATE job SET state = 'canceled'"))
        found = look(connection)
    assert found == {each.id: moves.canceled_in_plain_sql(each.row) for each in put}
