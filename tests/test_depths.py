"""How deep a table is, at a bounded cost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from pytest_postgresql.executors import PostgreSQLExecutor
from sqlalchemy import Engine, create_engine, text

from brooq_sa import depths
from brooq_sa.depths import Depths, Snapshot
from brooq_sa.states import State
from databases import JOB, Database
from plans import loaded
from plans.explaining import Plan, explained
from waiting import wait_until

MANY = depths.COUNTED
"""Jobs that are more than are counted, if there are as many of a topic."""


def add(db: Database, count: int, topic: str, state: str, *, due: str = "-1 hours", priority: int = 0) -> None:
    """Put as many jobs into the table, due so long ago."""
    lease = "'w', CURRENT_TIMESTAMP" if state == "processing" else "NULL, NULL"
    if db.name == "postgresql":
        instant, numbers = f"now() + interval '{due}'", f"generate_series(1, {count}) AS n"
        ids = "gen_random_uuid()"
    else:
        instant = f"datetime('now', '{due}')"
        numbers = f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s)"
        ids = "lower(hex(randomblob(16)))"
    db.execute(
        "INSERT INTO job (id, topic, payload, state, attempts, priority, available_at, locked_by, locked_until)"
        f" SELECT {ids}, '{topic}', '{{}}', '{state}', 1, {priority}, {instant}, {lease} FROM {numbers}"
    )


def look(db: Database) -> Snapshot:
    with db.engine.connect() as connection:
        return depths.look(connection, JOB)


def test_an_empty_table(db: Database) -> None:
    """Nothing is there, and nothing is estimated (W2)."""
    found = look(db)
    assert (found.jobs, found.oldest, found.waiting, found.estimated) == ({}, {}, frozenset(), frozenset())
    assert (found.dead_rows is not None, found.oldest_transaction) == (
        (True, 0.0) if db.name == "postgresql" else (False, None)
    )


def test_few_jobs_are_counted_exactly(db: Database) -> None:
    """Each topic and state has its exact number, and nothing is estimated (W2)."""
    wanted = Counter(
        {(topic, state): 3 + number + 7 * len(topic) for topic in ("a", "b.c") for number, state in enumerate(State)}
    )
    for (topic, state), count in wanted.items():
        add(db, count, topic, state)
    found = look(db)
    assert (Counter(found.jobs), found.estimated) == (wanted, frozenset())
    assert found.waiting == {"a", "b.c"}


def test_the_oldest_due_job(db: Database) -> None:
    """Its age is found behind other priorities and jobs that are not due; topics without one are left out (W2)."""
    add(db, 3, "a", "pending", due="-10 seconds", priority=-5)
    add(db, 2, "a", "failed", due="-100 seconds", priority=3)
    add(db, 2, "a", "pending", due="+1 hours", priority=-9)
    add(db, 2, "later", "pending", due="+1 hours")
    add(db, 2, "ended", "done", due="-1000 seconds")
    found = look(db)
    assert set(found.oldest) == {"a"}
    assert 99 <= found.oldest["a"] <= 160
    assert found.waiting == {"a", "later"}


def test_many_topics_and_priorities(db: Database) -> None:
    """Topics are found whatever their number, up to a bound."""
    for number in range(30):
        add(db, 2, f"topic-{number:02}", "pending", priority=number % 3)
    found = look(db)
    assert len(found.waiting) == 30
    assert set(found.jobs.values()) == {2}


@pytest.mark.parametrize("topics", [depths.MOST_TOPICS + 5, depths.MOST_HEADS + 5])
def test_a_flood_of_topics_hides_none_that_is_named(db: Database, topics: int) -> None:
    """Behind any number of other topics, one that is named has its true depth and age, and it is told of (W2)."""
    add(db, topics, "a-", "pending")
    db.execute("UPDATE job SET topic = topic || substr(CAST(id AS text), 1, 13)")
    for topic, priority in (("a", 9), ("z", 3), ("z", 7)):
        add(db, 2, topic, "pending", due="-1000 seconds", priority=priority)
    add(db, 2, "z.later", "pending", due="+1 hours")
    with db.engine.connect() as connection:
        found = depths.look(connection, JOB, {"z", "z.later", "none", "a"})
    assert (found.jobs["z", State.PENDING], found.jobs["z.later", State.PENDING]) == (4, 2)
    assert ("none", State.PENDING) not in found.jobs
    assert found.jobs["a", State.PENDING] == 2
    assert {topic for topic in found.oldest if not topic.startswith("a-")} == {"a", "z"}
    assert 900 < found.oldest["z"] < 1_100
    assert {"z", "z.later"} <= found.waiting
    assert State.PENDING in found.estimated
    assert len(found.waiting) <= depths.MOST_HEADS + 2


@pytest.mark.parametrize("state", ["pending", "processing", "done"])
def test_many_jobs_are_estimated(db: Database, state: str) -> None:
    """Above what is counted there is an estimate on PostgreSQL, and the least that it can be on SQLite (W2)."""
    add(db, 3 * MANY, "work", state)
    add(db, 5, "work", "dead")
    found = look(db)
    assert State(state) in found.estimated
    number = found.jobs["work", State(state)]
    if db.name == "postgresql":  # the sample is some half of the table's pages
        assert 0.7 * 3 * MANY < number < 1.3 * 3 * MANY
    else:
        assert MANY - 5 <= number <= MANY
    if db.name == "postgresql" and State.DEAD in found.estimated:  # of five rows a sample may have none, or all
        assert 0 <= found.jobs.get(("work", State.DEAD), 0) <= 25
    else:
        assert found.jobs["work", State.DEAD] == 5


def test_an_old_transaction_is_seen(pg: Database) -> None:
    """The oldest transaction that holds vacuum back has its age in seconds (W2)."""
    with pg.engine.connect() as connection:
        connection.execute(text("SELECT txid_current()"))
        wait_until(lambda: (look(pg).oldest_transaction or 0) > 0.2, what="a transaction having grown old")
        connection.rollback()
    assert (look(pg).oldest_transaction or 0) < 5


# How it is asked.


@pytest.fixture
def asked(db: Database) -> Iterator[Depths]:
    """Depths whose turns a thread takes."""
    made = Depths(db.engine, JOB, period=0.2)
    is_over = threading.Event()

    def turn() -> None:
        while not is_over.is_set():
            try:
                made.turn()
            except Exception as error:
                print(f"a look failed: {error}")

    thread = threading.Thread(target=turn)
    thread.start()
    yield made
    is_over.set()
    made.close()
    thread.join(10)
    made.dispose()
    assert not thread.is_alive()


def test_a_look_is_shared(asked: Depths, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once and again, there is one look a period (W2)."""
    looks: list[float] = []
    real = depths.look

    def counted(*arguments: Any) -> Snapshot:
        looks.append(time.monotonic())
        return real(*arguments)

    monkeypatch.setattr(depths, "look", counted)
    begun_at = time.monotonic()
    answers: list[Snapshot | None] = []
    readers = [threading.Thread(target=lambda: answers.extend(asked.current() for _ in range(200))) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert None not in answers
    assert len(looks) <= (time.monotonic() - begun_at) / 0.2 + 1
    assert all(later - earlier >= 0.2 for earlier, later in pairwise(looks))


def test_nobody_asks_and_nobody_looks(asked: Depths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reader there is no look at all (W2)."""
    looks: list[int] = []
    monkeypatch.setattr(depths, "look", lambda *_: looks.append(1))
    time.sleep(0.5)  # two periods in which nothing may happen
    assert looks == []


def test_a_database_that_does_not_answer_holds_up_nobody(asked: Depths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks waits for a moment alone, and gets nothing rather than something old."""
    monkeypatch.setattr(depths, "LEAST_WORTH", 1)  # or what is old would be good for longer than a test
    assert asked.current() is not None
    answer = threading.Event()

    def stuck(*_: Any) -> Snapshot:
        answer.wait(30)
        raise OSError("no answer")

    monkeypatch.setattr(depths, "look", stuck)
    try:
        wait_until(lambda: asked.current(patience=0.05) is None, what="the old look having gone")
        asked_at = time.monotonic()
        assert asked.current(patience=0.05) is None
        assert time.monotonic() - asked_at < 5
    finally:
        answer.set()


def test_a_slow_look_is_a_rare_one(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that took long is not repeated for a hundred times as long (W2)."""
    monkeypatch.setattr(depths, "look", lambda *_: Snapshot({}, {}, frozenset(), frozenset(), seconds=1.0))
    made = Depths(db.engine, JOB, period=0.01)
    made._is_wanted = True
    made.turn()
    assert made._pause() == pytest.approx(100)
    assert made.current() is not None
    made.dispose()


# What it costs.

FINISHED, PENDING = 10_000_000, 1_000_000


@pytest.fixture(scope="module")
def busy(pg_server: PostgreSQLExecutor, pg_maintenance: Engine, pg_template: str) -> Iterator[Engine]:
    """A database whose table holds 625,000 jobs."""
    with pg_maintenance.connect() as connection:
        connection.execute(text(f"CREATE DATABASE brooq_depths TEMPLATE {pg_template}"))
    engine = create_engine(pg_maintenance.url.set(database="brooq_depths"))
    with engine.begin() as connection:
        loaded.load(connection)
    yield engine
    engine.dispose()
    with pg_maintenance.connect() as connection:
        connection.execute(text("DROP DATABASE brooq_depths WITH (FORCE)"))


def plans_of_a_look(engine: Engine) -> list[Plan]:
    with engine.connect() as connection, explained(connection) as plans:
        depths.look(connection, JOB)
        return plans


@pytest.mark.parametrize("statistics", list(loaded.STATISTICS))
def test_what_a_look_reads_is_bounded(busy: Engine, statistics: str) -> None:
    """Of 625,000 jobs it reads no more than it counts and samples, whatever the planner believes of the table (W2)."""
    with busy.begin() as connection:
        loaded.STATISTICS[statistics](connection)
    plans = plans_of_a_look(busy)
    whole = "\n".join(map(str, plans))
    job_plans = [plan for plan in plans if "pg_catalog" not in plan.sql and "set_config" not in plan.sql]
    sampled = [plan for plan in job_plans if "TABLESAMPLE" in plan.sql]
    counted = [plan for plan in job_plans if plan not in sampled]
    assert len(sampled) == 1, whole
    assert sampled[0].buffers <= 2 * depths.SAMPLED_PAGES, whole
    assert sum(plan.rows_read for plan in counted) <= 3 * depths.COUNTED + 500, whole
    # A page of the index and one of the table for each row, at the worst.
    assert sum(plan.buffers for plan in counted) <= 2 * 3 * depths.COUNTED + 1_000, whole


@pytest.mark.slow
def test_a_look_at_eleven_million_jobs(pg_maintenance: Engine, pg_template: str) -> None:
    """With 1,000,000 pending and 10,000,000 finished rows, a look takes the database less than 50 ms (W2)."""
    with pg_maintenance.connect() as connection:
        connection.execute(text(f"CREATE DATABASE brooq_deep TEMPLATE {pg_template}"))
    engine = create_engine(pg_maintenance.url.set(database="brooq_deep"))
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            slice_ = FINISHED // 20
            for start in range(0, FINISHED, slice_):
                connection.execute(text(_rows("CASE WHEN g % 1000 = 3 THEN 'dead' ELSE 'done' END", start, slice_)))
            connection.execute(text(_rows("CASE WHEN g % 50 = 0 THEN 'failed' ELSE 'pending' END", 0, PENDING)))
            connection.execute(text("VACUUM ANALYZE job"))
        with engine.connect() as connection:
            depths.look(connection, JOB)  # the first one reads what the next ones find in memory
        spent = []
        for _ in range(5):
            with engine.connect() as connection, explained(connection) as plans:
                found = depths.look(connection, JOB)
            spent.append(sum(plan.milliseconds for plan in plans))
        print(f"milliseconds of database time: {[round(each, 1) for each in spent]}")
        assert sorted(spent)[2] < 50
        pending = sum(count for (_, state), count in found.jobs.items() if state is State.PENDING)
        finished = sum(count for (_, state), count in found.jobs.items() if state is State.DONE)
        print(f"pending {pending:,}, done {finished:,}")
        assert 0.5 * PENDING < pending < 2 * PENDING
        assert 0.8 * FINISHED < finished < 1.2 * FINISHED
    finally:
        engine.dispose()
        with pg_maintenance.connect() as connection:
            connection.execute(text("DROP DATABASE brooq_deep WITH (FORCE)"))


def _rows(state: str, start: int, count: int) -> str:
    due = "now() - interval '20 days' + g * interval '0.1 s'"
    return (
        "INSERT INTO job (topic, payload, state, attempts, available_at, updated_at)"
        f" SELECT 'topic-' || (g % 20), '{{}}', {state}, 1, {due}, {due}"
        f" FROM generate_series({start + 1}, {start + count}) g"
    )
