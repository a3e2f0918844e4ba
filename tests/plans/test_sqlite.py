"""SQLite finds the rows of every statement through an index, whatever it was told about the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, event, text

from brooq_sa.statements import bulk, enqueue, operate
from brooq_sa.statements.bulk import Shape, Sweep
from brooq_sa.states import State
from brooq_sa.store import JobStore, Outcome
from databases import JOB, Database

STORE = JobStore(JOB)
LEASE = timedelta(minutes=1)


def never_analysed(_connection: Connection) -> None:
    """SQLite knows nothing."""
    fill(_connection)


def analysed_empty(connection: Connection) -> None:
    """The table was analysed when it was empty, and then filled."""
    connection.execute(text("ANALYZE"))
    fill(connection)


def analysed_before_any_was_taken(connection: Connection) -> None:
    """The table was analysed when every job waited."""
    fill(connection)
    connection.execute(text("ANALYZE"))
    connection.execute(text("UPDATE job SET state = 'done' WHERE rowid > 100"))


def fill(connection: Connection) -> None:
    connection.execute(
        text(
            "INSERT INTO job (topic, payload)"
            " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
            " SELECT 'a.topic', '{}' FROM n"
        )
    )


@pytest.fixture(params=[never_analysed, analysed_empty, analysed_before_any_was_taken], ids=lambda each: each.__name__)
def connection(request: pytest.FixtureRequest, sqlite: Database) -> Iterator[Connection]:
    """A connection to a table of 2,000 jobs."""
    with sqlite.engine.begin() as connection:
        request.param(connection)
    with sqlite.engine.connect() as connection:
        yield connection


@contextmanager
def explained(connection: Connection) -> Iterator[list[str]]:
    """Gather the steps of each statement's plan that is run inside the block."""
    steps: list[str] = []

    def explain(_connection: Any, cursor: Any, sql: str, parameters: Any, _context: Any, _many: bool) -> None:
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        steps.extend(step for *_, step in plan.fetchall())

    event.listen(connection, "before_cursor_execute", explain)
    yield steps
    event.remove(connection, "before_cursor_execute", explain)


def test_no_statement_walks_the_table(connection: Connection) -> None:
    """Claim, settle, renewal, reaper, retention, cancel and retry search the table by an index (M6)."""
    with explained(connection) as steps:
        [first, second] = STORE.claim(connection, {"a.topic": 2}, room=2, worker="me", lease=LEASE)
        STORE.renew(connection, "me", {first.holding, (uuid.uuid4(), 1)}, LEASE)
        STORE.settle(
            connection,
            "me",
            [
                Outcome(*first.holding, State.DONE),
                Outcome(*second.holding, State.FAILED, timedelta(seconds=1), "failed"),
            ],
        )
        STORE.reap(connection, limit=100)
        STORE.purge(connection, ttl=timedelta(days=1), limit=100)
        STORE.cancel(connection, second.id)
        STORE.retry(connection, second.id)
        connection.execute(operate.state_of(JOB), {"job_id": first.id})
    assert steps
    assert [
        step for step in steps if step.startswith("SCAN") and "json_each" not in step and "CONSTANT" not in step
    ] == []


def test_no_sort_stands_before_a_claim_or_retention(connection: Connection) -> None:
    """The indexes give the order, so a claim and a batch of retention stop as soon as they are full (M6)."""
    with explained(connection) as steps:
        STORE.claim(connection, {"a.topic": 2}, room=2, worker="me", lease=LEASE)
        STORE.purge(connection, ttl=timedelta(days=1), limit=100)
    assert [step for step in steps if "ORDER BY" in step] == []


def test_a_key_is_found_by_its_index(connection: Connection) -> None:
    """The job that has a key is found without a walk (I8)."""
    with explained(connection) as steps:
        connection.execute(enqueue.find_by_key(JOB), {"topic": "a.topic", "key": "key"})
        connection.execute(enqueue.find_by_keys(JOB), {"topic": "a.topic", "keys": ["key", "other"]})
    assert len(steps) == 2
    assert all("job_key_idx" in step for step in steps)


SHAPES = {
    "ready": Shape(Sweep.READY, (State.PENDING,)),
    "ready_of_a_topic": Shape(Sweep.READY, (State.PENDING, State.FAILED), by_topic=True, is_early=True),
    "held": Shape(Sweep.HELD, (State.PROCESSING,), by_topic=True),
    "finished": Shape(Sweep.FINISHED, (State.DONE,), by_topic=True, has_before=True),
}
EXPECTED = {"ready": "job_ready_idx", "ready_of_a_topic": "job_ready_idx", "held": "job_held_idx"}


@pytest.mark.parametrize("name", SHAPES)
def test_windows_go_by_their_indexes(connection: Connection, name: str) -> None:
    """Looking for jobs to move in bulk walks the index of their states, in its order as far as that goes."""
    shape = SHAPES[name]
    terms: dict[str, Any] = {"topic": "a.topic", "limit": 10, "before": datetime.now(UTC)}
    values = {"topic": "a.topic", "locked_by": "me", "priority": 0, "id": uuid.uuid4()}
    terms |= {f"last_{column}": values.get(column, datetime(2020, 1, 1, tzinfo=UTC)) for column in shape.order}
    with explained(connection) as steps:
        connection.execute(bulk.window(JOB, shape, goes_on=False), terms)
        connection.execute(bulk.window(JOB, shape, goes_on=True), terms)
    assert all(EXPECTED.get(name, "job_finished_idx") in step for step in steps if " job " in f"{step} "), steps
    assert [step for step in steps if step == "USE TEMP B-TREE FOR ORDER BY"] == []


@pytest.mark.parametrize("move", [bulk.retry, bulk.cancel, bulk.run_now, bulk.remove], ids=lambda move: move.__name__)
def test_bulk_moves_go_by_ids(connection: Connection, move: Callable[..., Executable]) -> None:
    """A batch of a bulk move searches the table by primary key."""
    with explained(connection) as steps:
        connection.execute(move(JOB, State.PENDING), {"ids": [uuid.uuid4()]})
    assert [step for step in steps if step.startswith("SCAN job")] == []
    assert any("SEARCH job" in step for step in steps)


def test_a_pause_is_asked_once(connection: Connection) -> None:
    """A claim of a paused topic searches the pauses, and no job."""
    STORE.pause(connection, "a.topic")
    with explained(connection) as steps:
        assert STORE.claim(connection, {"a.topic": 2}, room=2, worker="me", lease=LEASE) == []
    assert any("SEARCH job_pause" in step for step in steps)
