"""Fixtures: databases on both backends, and child processes.

PostgreSQL comes from pip. ``--pg`` or the environment's ``BROOQ_PG`` chooses 18 (the default) or 16, another version
that the system has, or a folder that holds ``pg_ctl``. Each process of pytest-xdist runs a server of its own, on a port
that is free.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from pytest_postgresql.executors import PostgreSQLExecutor
from sqlalchemy import Engine, create_engine, text

from brooq_sa import log
from databases import Database, make_engine, migrate
from postgresql_server import PG_CTL, find_binaries, for_ordinary_user, is_refused_by_postgresql
from processes import Processes

# A machine that is busy with other tests makes any example slow now and then.
settings.register_profile("brooq", deadline=None)
settings.load_profile("brooq")

MEMORY = Path("/dev/shm")
ENOUGH = 1 << 30
FAST = "-c fsync=off -c full_page_writes=off -c synchronous_commit=off -c autovacuum=off -c max_connections=200"
FAST += " -c max_prepared_transactions=10"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pg", default=os.environ.get("BROOQ_PG", "18"), help="PostgreSQL's major version, or the folder of pg_ctl"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("HTTP_ADDR", "off")  # or the workers of all tests would want the one default port
    if not config.getoption("postgresql_exec"):  # the processes of pytest-xdist inherit it
        config.option.postgresql_exec = str(_server_folder(config) / PG_CTL)
    if not config.getoption("postgresql_postgres_options"):
        config.option.postgresql_postgres_options = FAST
    # Folders on a disk make a test several times slower; Docker's default of 64 MB is too small to use.
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _server_folder(config: pytest.Config) -> Path:
    try:
        binaries = find_binaries(str(config.getoption("--pg")))
    except LookupError as error:
        raise pytest.UsageError(str(error)) from None
    if not is_refused_by_postgresql():
        return binaries
    wrapped = for_ordinary_user(binaries)
    config.add_cleanup(lambda: shutil.rmtree(wrapped))
    return wrapped


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A test that configures the log does so for itself alone, and not for those that follow."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, log._configured
    yield
    if log._configured != configured:
        log._configured = configured
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture(scope="session")
def pg_server(postgresql_proc: PostgreSQLExecutor) -> PostgreSQLExecutor:
    """A running PostgreSQL server, one for this process of the test run."""
    return postgresql_proc


def _pg_address(server: PostgreSQLExecutor, database: str) -> str:
    return f"postgresql+psycopg://{server.user}@{server.host}:{server.port}/{database}"


@pytest.fixture(scope="session")
def pg_maintenance(pg_server: PostgreSQLExecutor) -> Iterator[Engine]:
    """An autocommit engine of the superuser, on the server's own database."""
    engine = create_engine(_pg_address(pg_server, "postgres"), isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def pg_template(pg_server: PostgreSQLExecutor, pg_maintenance: Engine) -> str:
    """The name of a migrated database that is never written to, for cloning."""
    with pg_maintenance.connect() as connection:
        connection.execute(text("CREATE DATABASE brooq_template"))
    engine = make_engine(_pg_address(pg_server, "brooq_template"))
    migrate(engine)
    engine.dispose()
    return "brooq_template"


@pytest.fixture
def make_pg_database(pg_server: PostgreSQLExecutor, pg_maintenance: Engine) -> Iterator[Callable[..., str]]:
    """Makes databases of this test's own; gives their URLs.

    Called with ``template=pg_template`` it makes a migrated one, otherwise an empty one.
    """
    made: list[str] = []

    def make(template: str = "template0") -> str:
        name = f"brooq_own_{len(made)}"
        with pg_maintenance.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        made.append(name)
        return _pg_address(pg_server, name)

    yield make
    with pg_maintenance.connect() as connection:
        for name in made:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def _pg_shared(pg_server: PostgreSQLExecutor, pg_maintenance: Engine, pg_template: str) -> str:
    with pg_maintenance.connect() as connection:
        connection.execute(text(f"CREATE DATABASE brooq_shared TEMPLATE {pg_template}"))
    return _pg_address(pg_server, "brooq_shared")


END_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'brooq_shared'"
EMPTY = """
    DO $$
    DECLARE found regclass;
    BEGIN
        FOR found IN SELECT oid FROM pg_class
            WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
            AND relname NOT IN ('job', 'job_worker', 'job_pause', 'job_brooq_version')
        LOOP EXECUTE format('DROP TABLE %s CASCADE', found); END LOOP;
        TRUNCATE job, job_worker, job_pause;
    END $$
"""


@pytest.fixture
def pg_url(_pg_shared: str, pg_maintenance: Engine) -> str:
    """The URL of a migrated PostgreSQL database without jobs and without tables of other tests."""
    with pg_maintenance.connect() as connection:
        connection.execute(text(END_OTHERS))  # what an earlier test left behind would block this one
    engine = create_engine(_pg_shared, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(EMPTY))
    engine.dispose()
    return _pg_shared


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "jobs.sqlite"
    engine = make_engine(f"sqlite:///{path}")
    migrate(engine)
    engine.dispose()
    return path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite file."""
    path = tmp_path / "jobs.sqlite"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def pg(pg_url: str) -> Iterator[Database]:
    """A migrated PostgreSQL database without jobs."""
    yield from _opened(pg_url)


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    """A migrated SQLite file without jobs."""
    yield from _opened(sqlite_url)


@pytest.fixture(params=["postgresql", "sqlite"])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A migrated database without jobs: the test runs once on each backend."""
    yield from _opened(request.getfixturevalue("pg_url" if request.param == "postgresql" else "sqlite_url"))


def _opened(url: str) -> Iterator[Database]:
    database = Database(url)
    yield database
    database.dispose()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts Python children in `tmp_path`; all have ended when the test has."""
    with Processes(tmp_path) as started:
        yield started
