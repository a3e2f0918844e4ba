"""`upgrade`, `downgrade` and `current`, called from Python."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, inspect, pool, text
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.ext.asyncio import create_async_engine

from brooq_sa import migrations, sqlite
from brooq_sa.migrations import MigrationError


def tables(bind: Engine | Connection) -> list[str]:
    return sorted(inspect(bind).get_table_names())


OURS = ["job", "job_brooq_version", "job_pause", "job_worker"]


def test_current_follows_up_and_down(empty: Engine) -> None:
    """The revision is none before, the newest after an upgrade, and none again after a downgrade (M1)."""
    assert migrations.current(empty) is None
    migrations.upgrade(empty)
    assert migrations.current(empty) == migrations.head()
    migrations.downgrade(empty)
    assert migrations.current(empty) is None


def test_doing_it_twice_does_nothing_more(empty: Engine) -> None:
    """A second upgrade keeps the jobs, and a second downgrade finds nothing to do."""
    migrations.upgrade(empty)
    with empty.begin() as connection:
        connection.execute(text("INSERT INTO job (topic, payload) VALUES ('a', '{}')"))
    migrations.upgrade(empty)
    with empty.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job")).scalar() == 1
    migrations.downgrade(empty)
    migrations.downgrade(empty)
    assert tables(empty) == []


def test_callers_transaction_decides(empty: Engine) -> None:
    """On a connection the upgrade is the caller's: gone with their rollback, there with their commit (M1)."""
    with empty.connect() as connection:
        migrations.upgrade(connection)
        assert tables(connection) == OURS
        connection.rollback()
    assert tables(empty) == []

    with empty.begin() as connection:
        migrations.upgrade(connection)
    assert tables(empty) == OURS


def stand_in_the_way(connection: Connection) -> None:
    """Something has the name of the last index, so that a migration fails after it has made the table."""
    connection.execute(text("CREATE TABLE job_key_idx (x INTEGER)"))


def test_failure_halfway_leaves_nothing(empty: Engine) -> None:
    """An upgrade that fails after its first statements leaves neither a table nor a revision (M1)."""
    with empty.begin() as connection:
        stand_in_the_way(connection)
    with pytest.raises(DBAPIError, match="job_key_idx"):
        migrations.upgrade(empty)
    assert tables(empty) == ["job_key_idx"]
    assert migrations.current(empty) is None


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_failure_halfway_leaves_nothing_at_any_isolation(empty: Engine, level: str) -> None:
    """The same on an engine that commits each statement, and on one whose snapshots are long (M1)."""
    engine = create_engine(empty.url, isolation_level=level)
    with engine.begin() as connection:
        stand_in_the_way(connection)
    with pytest.raises(DBAPIError, match="job_key_idx"):
        migrations.upgrade(engine)
    assert tables(engine) == ["job_key_idx"]

    with engine.begin() as connection:
        connection.execute(text("DROP TABLE job_key_idx"))
    migrations.upgrade(engine)
    assert tables(empty) == OURS
    engine.dispose()


def test_failure_halfway_leaves_the_callers_transaction_usable(empty: Engine) -> None:
    """A connection whose upgrade failed goes on without the upgrade, and keeps what the caller did before."""
    with empty.begin() as connection:
        stand_in_the_way(connection)
        with pytest.raises(DBAPIError, match="job_key_idx"):
            migrations.upgrade(connection)
        connection.execute(text("CREATE TABLE kept (x INTEGER)"))
    assert tables(empty) == ["job_key_idx", "kept"]


def test_foreign_table_is_refused(empty: Engine) -> None:
    """A table of the same name that is someone else's stays as it is; the error names the option (M3)."""
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job (title TEXT)"))
    with pytest.raises(MigrationError, match=r"(?s)'job' exists already, and is not brooq-sa's.*brooq_table.*--table"):
        migrations.upgrade(empty)
    assert tables(empty) == ["job"]
    migrations.upgrade(empty, table="background_job")
    assert migrations.current(empty, table="background_job") == migrations.head()


def test_job_table_of_unknown_origin_is_refused(empty: Engine) -> None:
    """A job table whose revision is kept elsewhere is told apart from a foreign one."""
    migrations.upgrade(empty)
    with empty.begin() as connection:
        connection.execute(text("DROP TABLE job_brooq_version"))
    with pytest.raises(MigrationError, match="is a job table whose revision this environment does not know"):
        migrations.upgrade(empty)


def test_upgrades_at_once_take_turns(empty: Engine) -> None:
    """Of many processes that upgrade at their start, one does it and none fails."""
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def upgrade() -> None:
        engine = create_engine(empty.url, poolclass=pool.NullPool)
        try:
            together.wait(10)
            migrations.upgrade(engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert migrations.current(empty) == migrations.head()


def test_existing_schema_needs_no_right_to_make_schemas(empty_pg_url: str) -> None:
    """A role that may not make schemas migrates into one that it was given (M3)."""
    engine = create_engine(empty_pg_url, poolclass=pool.NullPool)
    role = f"{engine.url.database}_tenant"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(f"CREATE SCHEMA queue AUTHORIZATION {role}"))
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SET ROLE {role}"))
            migrations.upgrade(connection, schema="queue")
        assert migrations.current(engine, schema="queue") == migrations.head()
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


def test_schema_outlives_the_downgrade(empty_pg_url: str) -> None:
    """A schema is made when it is absent, and never dropped: others may use it (M3)."""
    engine = create_engine(empty_pg_url)
    migrations.upgrade(engine, schema="queue")
    migrations.downgrade(engine, schema="queue")
    assert inspect(engine).has_schema("queue")
    assert inspect(engine).get_table_names(schema="queue") == []
    engine.dispose()


def test_schema_on_sqlite_must_be_attached(empty_sqlite_url: str) -> None:
    """On SQLite a schema is an attached database; the error says so (M3)."""
    engine = create_engine(empty_sqlite_url)
    with pytest.raises(MigrationError, match=r"'queue'.*attached database"):
        migrations.upgrade(engine, schema="queue")
    assert tables(engine) == []
    engine.dispose()


def test_sqlite_in_memory() -> None:
    """An in-memory database migrates like a file."""
    engine = create_engine("sqlite://", poolclass=pool.StaticPool)
    migrations.upgrade(engine)
    assert tables(engine) == OURS
    engine.dispose()


def test_sqlite_set_up_for_jobs(empty_sqlite_url: str) -> None:
    """An engine that begins its transactions itself migrates too, and so does its connection (M1)."""
    engine = sqlite.configure(create_engine(empty_sqlite_url))
    with engine.connect() as connection:
        migrations.upgrade(connection)
        connection.rollback()
    assert tables(engine) == []
    migrations.upgrade(engine)
    assert tables(engine) == OURS
    with engine.connect() as connection:
        migrations.downgrade(connection)
        connection.commit()
    assert tables(engine) == []
    engine.dispose()


@pytest.mark.parametrize(
    "options, why",
    [
        ({"table": ""}, "brooq_table is ''"),
        ({"table": "a\0b"}, "brooq_table"),
        ({"table": "x" * 46}, "at most 45 bytes"),
        ({"table": "é" * 23}, "at most 45 bytes"),
        ({"schema": ""}, "brooq_schema is ''"),
        ({"schema": "x" * 64}, "at most 63 bytes"),
    ],
)
def test_impossible_names_are_refused(options: dict[str, Any], why: str) -> None:
    """A name that a database would refuse or cut is refused before anything is connected to (M3)."""
    with pytest.raises(MigrationError, match=why):
        migrations.upgrade(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"), **options)


def test_longest_table_name_fits(empty: Engine) -> None:
    """With the longest name allowed, all names made from it are whole and distinct (M3)."""
    migrations.upgrade(empty, table="x" * 45)
    indexes = {index["name"] for index in inspect(empty).get_indexes("x" * 45)}
    assert indexes == {"x" * 45 + end for end in ("_ready_idx", "_held_idx", "_finished_idx", "_key_idx")}


def test_unknown_revision(empty: Engine) -> None:
    """A revision that does not exist is Alembic's own error, and changes nothing."""
    with pytest.raises(CommandError, match="brooq_9999"):
        migrations.upgrade(empty, revision="brooq_9999")
    assert tables(empty) == []


def test_async_connection_runs_it_sync(tmp_path: Path) -> None:
    """An async connection hands itself over with run_sync; the transaction is its own (M1)."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'async.sqlite'}")

    async def main() -> tuple[list[str], list[str]]:
        async with engine.connect() as connection:
            await connection.run_sync(migrations.upgrade)
            await connection.rollback()
            rolled_back = await connection.run_sync(tables)
        async with engine.begin() as connection:
            await connection.run_sync(migrations.upgrade)
        async with engine.connect() as connection:
            committed = await connection.run_sync(tables)
        await engine.dispose()
        return rolled_back, committed

    assert asyncio.run(main()) == ([], OURS)


def test_what_is_no_connection_is_refused_by_name() -> None:
    """Async engines and sessions are refused with the call that works."""
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(TypeError, match=r"AsyncEngine.*run_sync"):
        migrations.upgrade(engine)  # type: ignore[arg-type]


def test_closed_connection_is_sqlalchemys_error(empty: Engine) -> None:
    """SQLAlchemy's own errors pass through."""
    connection = empty.connect()
    connection.close()
    with pytest.raises(ResourceClosedError):
        migrations.upgrade(connection)
