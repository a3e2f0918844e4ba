"""Upgrades of a table that is big and in use, by a made-up next revision; old code on new tables, and the reverse."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect, text

from brooq_sa import Claim, JobBase, SchemaError, Worker, enqueue, migrations, revision
from brooq_sa.migrations import MigrationError, busy
from brooq_sa.schema import REVISION, job_table
from databases import make_engine
from migrations import next_revision
from migrations.conftest import Run
from migrations.consumer import Consumer
from waiting import wait_until


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if this were the next release: `brooq_sa.migrations` has a revision more."""
    versions = next_revision.package(tmp_path / "later")
    monkeypatch.setattr(migrations, "script_location", lambda: versions.parent)
    return versions


@pytest.fixture
def first(empty_pg_url: str) -> Iterator[Engine]:
    """A database on PostgreSQL at our first revision."""
    engine = create_engine(empty_pg_url)
    migrations.upgrade(engine, revision="brooq_0001")
    yield engine
    engine.dispose()


def fill(engine: Engine, rows: int) -> None:
    """Jobs that are done, as a table has them that has been in use."""
    statement = """
        INSERT INTO job (topic, payload, state, updated_at)
        SELECT 'old.' || n % 50, '{"n": 1}', 'done', now() - n * interval '1 ms' FROM generate_series(1, :rows) AS n"""
    with engine.begin() as connection:
        connection.execute(text(statement), {"rows": rows})
        connection.execute(text("ANALYZE job"))


@contextmanager
def idle_reader(engine: Engine, level: str = "READ COMMITTED") -> Iterator[Connection]:
    """Somebody who has read the table and left the transaction open."""
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT id FROM job LIMIT 1")).all()
        yield connection
        connection.rollback()


class Traffic:
    """Two workers, and somebody who enqueues all the time; the longest time in which no job was finished.

    Args:
        engine: of the database that they share.
    """

    def __init__(self, engine: Engine) -> None:
        finished = self.finished = [time.monotonic()]

        class TrafficJob(JobBase):
            pass

        class Tick(TrafficJob, topic="tick"):
            def run(self, claim: Claim) -> None:
                finished.append(time.monotonic())

        self._tick = Tick
        self._engine = engine
        self._is_over = threading.Event()
        self._feeder = threading.Thread(target=self._feed)
        self.workers = [Worker(engine, TrafficJob, poll_interval="100ms", workers=2) for _ in range(2)]
        self.enqueued = 0

    def _feed(self) -> None:
        while not self._is_over.wait(0.02):
            with self._engine.begin() as connection:
                enqueue(connection, self._tick())
            self.enqueued += 1

    def __enter__(self) -> Traffic:
        for worker in self.workers:
            worker.start()
        self._feeder.start()
        wait_until(lambda: len(self.finished) > 30)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._feeder.join()
        wait_until(lambda: len(self.finished) > self.enqueued, timeout=30)
        for worker in self.workers:
            worker.stop()

    @property
    def longest_stall(self) -> float:
        return max(later - sooner for sooner, later in zip(self.finished, self.finished[1:], strict=False))


SIZES = [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("rows", SIZES)
def test_busy_table(
    make_consumer: Callable[..., Consumer],
    empty_pg_url: str,
    alembic: Run,
    alembic_command: Run,
    brooq_sa_command: Run,
    tmp_path: Path,
    rows: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Past workers and a reader idle in transaction an upgrade comes through, and stalls nobody for long (M2)."""
    versions = next_revision.package(tmp_path / "later")
    project = make_consumer(empty_pg_url)
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    alembic(project.folder, "upgrade", "brooq@head")
    project.edit(project.ini, "brooq_sa:migrations/versions", str(versions))
    engine = create_engine(empty_pg_url)
    fill(engine, rows)

    with Traffic(engine) as traffic:
        with idle_reader(engine):
            upgrade = threading.Thread(
                target=alembic_command, args=(project.folder, "upgrade", "brooq@head"), daemon=True
            )
            began = time.monotonic()
            upgrade.start()
            wait_until(lambda: _waits_for_lock(engine), timeout=60)  # behind the reader
            tried = time.monotonic()
            wait_until(lambda: not _waits_for_lock(engine), timeout=10)
            assert time.monotonic() - tried < 3 * busy.LOCK_TIMEOUT.total_seconds()
        upgrade.join(120)
        took = time.monotonic() - began
        count = len(traffic.finished)
        wait_until(lambda: len(traffic.finished) > count + 30)
    assert at_revision(engine) == 2
    assert _validity(engine, "job_note2_idx") == [True]
    assert [worker.troubles for worker in traffic.workers] == [{}, {}]
    with capsys.disabled():
        print(f"\n{rows:,} rows: upgraded in {took:.1f} s, longest stall {traffic.longest_stall:.2f} s")
    assert traffic.longest_stall < 4
    engine.dispose()


def _waits_for_lock(engine: Engine) -> bool:
    query = """
        SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
            AND relation = 'job'::regclass"""
    with engine.connect() as connection:
        return bool(connection.execute(text(query)).scalar())


def _validity(engine: Engine, index: str) -> list[bool]:
    query = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)"
    with engine.connect() as connection:
        return list(connection.execute(text(query), {"index": index}).scalars())


def at_revision(engine: Engine, table: str = "job", schema: str | None = None) -> int | None:
    with engine.connect() as connection:
        return revision.found(connection, job_table(MetaData(), table, schema))


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "LOCK_TIMEOUT", timedelta(milliseconds=100))
    monkeypatch.setattr(busy, "TRIES", 3)
    monkeypatch.setattr(busy, "INDEX_PATIENCE", timedelta(milliseconds=300))


@pytest.mark.usefixtures("later", "_hasty")
def test_gives_up_with_advice(first: Engine) -> None:
    """Behind a transaction that does not end, an upgrade gives up, says who is in the way, and changes nothing (M2)."""
    with idle_reader(first) as reader:
        pid = reader.execute(text("SELECT pg_backend_pid()")).scalar()
        with pytest.raises(MigrationError, match=rf"'job' was not changed.*process {pid} \(.*idle in transaction.*"):
            migrations.upgrade(first)
        assert not _waits_for_lock(first)
    assert at_revision(first) == 1
    assert "note2" not in {column["name"] for column in inspect(first).get_columns("job")}
    migrations.upgrade(first)
    assert at_revision(first) == 2


@pytest.mark.usefixtures("later", "_hasty")
def test_index_behind_an_old_snapshot(first: Engine) -> None:
    """An index that cannot be finished is cleared away; the next upgrade goes on from there (M2)."""
    # A snapshot, and no lock on the table.
    with first.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.execute(text("SELECT 1")).all()
        with pytest.raises(MigrationError, match=r"The index 'job_note2_idx' was not built.*pg_terminate_backend"):
            migrations.upgrade(first)
        assert _validity(first, "job_note2_idx") == []
        assert at_revision(first) == 1
        assert migrations.current(first) == "brooq_0001"
    migrations.upgrade(first)
    assert _validity(first, "job_note2_idx") == [True]
    assert migrations.current(first) == "brooq_0002"
    with first.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar() == 0


@pytest.mark.usefixtures("later")
def test_invalid_index_of_a_crash(first: Engine) -> None:
    """An invalid index that a killed upgrade left behind is built anew (M2)."""
    with first.begin() as connection:
        connection.execute(text("ALTER TABLE job ADD COLUMN note2 TEXT"))
        connection.execute(text("CREATE INDEX job_note2_idx ON job (note2, topic)"))
        connection.execute(text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'job_note2_idx'::regclass"))
    migrations.upgrade(first)
    assert _validity(first, "job_note2_idx") == [True]


@pytest.mark.usefixtures("later")
def test_replicas_take_turns_over_an_index(first: Engine) -> None:
    """Replicas that start together upgrade once, also where a revision has to leave its transaction (M2)."""
    failures: list[BaseException] = []
    together = threading.Barrier(3)

    def upgrade() -> None:
        engine = create_engine(first.url)
        try:
            together.wait(10)
            migrations.upgrade(engine)
        except BaseException as error:
            failures.append(error)
        engine.dispose()

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert at_revision(first) == 2
    assert _validity(first, "job_note2_idx") == [True]


@pytest.mark.usefixtures("later")
def test_base_to_head_in_one_transaction(empty: Engine) -> None:
    """All revisions run in one transaction of the caller's too, and go with its rollback (M1)."""
    with empty.connect() as connection:
        migrations.upgrade(connection)
        assert revision.found(connection, job_table(MetaData())) == 2
        connection.rollback()
    assert inspect(empty).get_table_names() == []
    with empty.begin() as connection:
        migrations.upgrade(connection)
    assert at_revision(empty) == 2
    migrations.downgrade(empty, revision="brooq_0001")
    assert at_revision(empty) == 1
    migrations.downgrade(empty)
    assert at_revision(empty) is None


@pytest.mark.usefixtures("later")
def test_every_place_through_the_next_revision(empty_pg_url: str) -> None:
    """Names with quotes, percent signs and colons are changed and indexed as well (M3)."""
    engine = create_engine(empty_pg_url)
    table, schema = "we\"ird%:x{y}'", 'My "own" %s'
    migrations.upgrade(engine, table=table, schema=schema)
    assert at_revision(engine, table, schema) == 2
    migrations.downgrade(engine, table=table, schema=schema)
    engine.dispose()


class SkewJob(JobBase):
    pass


DONE: list[uuid.UUID] = []


class Skewed(SkewJob, topic="skewed"):
    def run(self, claim: Claim) -> None:
        DONE.append(claim.id)


def work_through(engine: Engine, count: int) -> None:
    """Jobs that are enqueued now are done by whoever works there."""
    with engine.begin() as connection:
        wanted = [enqueue(connection, Skewed()).id for _ in range(count)]
    wait_until(lambda: set(wanted) <= set(DONE), timeout=20)


@pytest.mark.parametrize("newest", [2])
def test_old_code_on_new_tables(empty_url: str, later: Path, newest: int) -> None:
    """This version enqueues, claims, settles, reaps and deletes in tables of the next revision (M1)."""
    engine = make_engine(empty_url)
    migrations.upgrade(engine)
    assert at_revision(engine) == newest
    with engine.connect() as connection:
        revision.demand(connection, SkewJob.__table__)
    with Worker(engine, SkewJob, poll_interval="50ms", reaper_period="100ms", retention_period="100ms") as worker:
        work_through(engine, 20)
        assert worker.troubles == {}
    engine.dispose()


def test_upgrade_under_a_running_worker(first: Engine, later: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Prepared statements outlive columns that come and columns that widen: no restart, one error at the most (M1)."""
    with Worker(first, SkewJob, poll_interval="50ms") as worker:
        work_through(first, 15)  # psycopg prepares after five
        with first.connect() as connection:
            for _ in range(3):
                work_through(first, 5)
        migrations.upgrade(first)
        work_through(first, 15)
        with first.begin() as connection:
            connection.execute(text("ALTER TABLE job ALTER priority TYPE integer"))
        work_through(first, 15)
        assert worker.troubles == {}
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) <= 1, errors


@pytest.mark.parametrize(
    "there, ours, refused",
    [
        (1, "brooq_0001", None),
        (2, "brooq_0001", None),
        (3, "brooq_0001", r"at revision brooq_0003.*works with brooq_0002 at most. Upgrade brooq-sa here"),
        (1, "brooq_0002", None),
        (1, "brooq_0003", r"at revision brooq_0001.*needs brooq_0002 or brooq_0003. Upgrade the database.*brooq@head"),
    ],
)
def test_one_revision_apart_works(
    empty: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, ours: str, refused: str | None
) -> None:
    """Code and tables may be one revision apart, either way; further apart, the error says which to upgrade (M1)."""
    versions = next_revision.package(tmp_path / "later", there)
    monkeypatch.setattr(migrations, "script_location", lambda: versions.parent)
    migrations.upgrade(empty)
    monkeypatch.setattr(revision, "REVISION", ours)
    with empty.connect() as connection:
        if refused is None:
            revision.demand(connection, SkewJob.__table__)
        else:
            with pytest.raises(SchemaError, match=refused):
                revision.demand(connection, SkewJob.__table__)


def test_table_that_says_nothing(empty: Engine) -> None:
    """A job table without a word of its revision is taken by its columns; an absent one is left to others (M1)."""
    table = job_table(MetaData())
    with empty.connect() as connection:
        revision.demand(connection, table)
    table.metadata.create_all(empty)
    with empty.begin() as connection:
        assert revision.found(connection, table) == 1
        if empty.dialect.name == "postgresql":
            connection.execute(text("COMMENT ON TABLE job IS 'mine'"))
        else:
            connection.execute(text("DROP TRIGGER job_revision"))
        assert revision.found(connection, table) is None
        revision.demand(connection, table)
        connection.execute(text("ALTER TABLE job DROP COLUMN crashes"))
    with empty.connect() as connection, pytest.raises(SchemaError, match="has no column crashes"):
        revision.demand(connection, table)


def test_revision_is_the_packages_own() -> None:
    """The revision that the code says it needs is the newest one that the package has (M1)."""
    assert migrations.head() == REVISION
    assert re.fullmatch(r"brooq_\d{4}", REVISION)


def test_later_revision_cannot_be_taken_for_ours(first: Engine) -> None:
    """Without the next release, its revision is unknown."""
    with pytest.raises(CommandError):
        migrations.upgrade(first, revision="brooq_0002")


def test_worker_waits_for_the_side_that_is_behind(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker two revisions behind its tables says what to upgrade, takes nothing, and works once they fit (M1)."""
    versions = next_revision.package(tmp_path / "later", 3)
    monkeypatch.setattr(migrations, "script_location", lambda: versions.parent)
    engine = make_engine(empty_url)
    migrations.upgrade(engine)
    with engine.begin() as connection:
        waiting = enqueue(connection, Skewed()).id
    with Worker(engine, SkewJob, poll_interval="50ms") as worker:
        wait_until(lambda: {"claiming", "upkeep"} <= worker.troubles.keys())
        assert "Upgrade brooq-sa here" in worker.troubles["claiming"]
        assert waiting not in DONE
        migrations.downgrade(engine, revision="brooq_0002")
        wait_until(lambda: waiting in DONE, timeout=20)
        wait_until(lambda: worker.troubles == {}, timeout=20)
    engine.dispose()


def test_running_worker_notices_that_it_is_behind(
    first: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two upgrades under a running worker, after which a statement of its fails, are named as what they are (M1)."""
    versions = next_revision.package(tmp_path / "later", 3)
    monkeypatch.setattr(migrations, "script_location", lambda: versions.parent)
    with Worker(first, SkewJob, poll_interval="50ms", wake=False) as worker:
        work_through(first, 1)
        migrations.upgrade(first)
        with first.begin() as connection:
            connection.execute(text("ALTER TABLE job RENAME COLUMN priority TO rank"))
        wait_until(lambda: "works with brooq_0002 at most" in worker.troubles.get("claiming", ""), timeout=20)
        with first.begin() as connection:
            connection.execute(text("ALTER TABLE job RENAME COLUMN rank TO priority"))
        migrations.downgrade(first, revision="brooq_0001")
        work_through(first, 1)
