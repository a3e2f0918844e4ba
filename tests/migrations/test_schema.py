"""The branch makes what `brooq_sa.schema` describes, on both databases, under any name."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, inspect, text
from sqlalchemy.exc import IntegrityError

from brooq_sa import migrations
from brooq_sa.schema import job_table
from migrations.description import Description, describe, quote

PLACES = [
    ("job", None),
    ("Background Job", None),
    ("we\"ird%:x{y}'", None),
    ("job", "queue"),
    ("Job", 'My "own" %s'),
    ("job%s", "a:b"),
]
"""Table names and schemas."""


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[1] or ''}.{place[0]}")
def place(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """A table's name and its schema."""
    table, schema = request.param
    return table, schema


@pytest.fixture
def engine(empty: Engine, place: tuple[str, str | None], tmp_path: Path) -> Iterator[Engine]:
    """An empty database; on SQLite one to which the schema is attached."""
    _, schema = place
    if empty.dialect.name == "sqlite" and schema is not None:
        attach = f"ATTACH DATABASE ? AS {quote(schema)}"
        event.listen(
            empty, "connect", lambda connection, _: connection.execute(attach, (str(tmp_path / "attached.sqlite"),))
        )
    yield empty
    empty.dispose()


def described(engine: Engine, table: str, schema: str | None) -> list[Description]:
    """The job table, and those beside it."""
    return [describe(engine, f"{table}{end}", schema) for end in ("", "_worker", "_pause")]


def made_by_core(engine: Engine, table: str, schema: str | None) -> list[Description]:
    core = job_table(MetaData(), table, schema)
    core.metadata.create_all(engine)
    descriptions = described(engine, table, schema)
    core.metadata.drop_all(engine)
    return descriptions


def test_branch_makes_the_core_table(engine: Engine, place: tuple[str, str | None]) -> None:
    """Columns, defaults, checks, indexes, storage and triggers are those of the Core table (M1, M3, M5, M6)."""
    table, schema = place
    migrations.upgrade(engine, table=table, schema=schema)
    migrated = described(engine, table, schema)
    migrations.downgrade(engine, table=table, schema=schema)

    assert all(each["columns"] for each in migrated), "the comparison found no table"
    assert made_by_core(engine, table, schema) == migrated


def test_down_takes_everything_and_up_brings_it_back(engine: Engine, place: tuple[str, str | None]) -> None:
    """Downgrading an empty database leaves no table of ours, and upgrading it again makes the same (M1)."""
    table, schema = place
    migrations.upgrade(engine, table=table, schema=schema)
    first = described(engine, table, schema)
    migrations.downgrade(engine, table=table, schema=schema)
    assert inspect(engine).get_table_names(schema=schema) == []

    migrations.upgrade(engine, table=table, schema=schema)
    assert described(engine, table, schema) == first


def test_printed_sql_makes_the_same(engine: Engine, place: tuple[str, str | None]) -> None:
    """The SQL printed for upgrade and downgrade does what running them does (M1)."""
    table, schema = place
    migrations.upgrade(engine, table=table, schema=schema)
    migrated = described(engine, table, schema)
    migrations.downgrade(engine, table=table, schema=schema)

    up, down = io.StringIO(), io.StringIO()
    migrations.upgrade(engine, table=table, schema=schema, out=up)
    migrations.downgrade(engine, table=table, schema=schema, out=down)

    run_script(engine, up.getvalue())
    assert described(engine, table, schema) == migrated
    assert migrations.current(engine, table=table, schema=schema) == migrations.head()

    run_script(engine, down.getvalue())
    assert inspect(engine).get_table_names(schema=schema) == []


def run_script(engine: Engine, script: str) -> None:
    """Run a script as psql or the sqlite3 shell would: each statement as it stands, none prepared."""
    connection = engine.raw_connection()
    driver = connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        driver.executescript(script)
    else:
        assert isinstance(driver, psycopg.Connection)
        driver.autocommit = True
        driver.execute(script.encode())
        driver.autocommit = False
    connection.close()


def test_printing_connects_to_nothing() -> None:
    """The SQL for a server that cannot be reached is printed all the same (M1)."""
    out = io.StringIO()
    migrations.upgrade(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"), schema="queue", out=out)
    assert 'CREATE TABLE "queue"."job"' in out.getvalue()


def test_storage_is_set_for_a_busy_table(empty_pg_url: str) -> None:
    """Autovacuum comes at 2 % and 100 dead rows, and pages keep room for renewed leases (M5)."""
    engine = create_engine(empty_pg_url)
    migrations.upgrade(engine)
    options = describe(engine)["table"][0]["reloptions"]
    engine.dispose()
    assert set(options) == {
        "fillfactor=70",
        "autovacuum_vacuum_scale_factor=0.02",
        "autovacuum_vacuum_threshold=100",
    }


def test_one_row_a_topic_and_key(empty: Engine) -> None:
    """The table itself refuses a second row of a topic and key, and takes any number without a key (I8, M6)."""
    migrations.upgrade(empty)
    insert = "INSERT INTO job (topic, payload, idempotency_key) VALUES (:topic, '{}', :key)"
    with empty.begin() as connection:
        for topic, key in [("a", "k"), ("b", "k"), ("a", None), ("a", None)]:
            connection.execute(text(insert), {"topic": topic, "key": key})
    with pytest.raises(IntegrityError), empty.begin() as connection:
        connection.execute(text(insert), {"topic": "a", "key": "k"})


def test_two_tables_live_side_by_side(empty: Engine) -> None:
    """Each job table has indexes and a revision of its own, also in one schema (M3)."""
    migrations.upgrade(empty)
    migrations.upgrade(empty, table="nightly")
    migrations.downgrade(empty)
    assert migrations.current(empty) is None
    assert migrations.current(empty, table="nightly") == migrations.head()
    assert sorted(inspect(empty).get_table_names()) == [
        "nightly",
        "nightly_brooq_version",
        "nightly_pause",
        "nightly_worker",
    ]
