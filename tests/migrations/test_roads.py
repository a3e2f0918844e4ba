"""Every road by which the branch comes into somebody's database, in projects as Alembic's own templates make them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest
from pytest_postgresql.executors import PostgreSQLExecutor
from sqlalchemy import Engine, create_engine, inspect, text

from brooq_sa import migrations
from migrations import next_revision
from migrations.conftest import Run
from migrations.consumer import Consumer
from postgresql_server import find_binaries

MakeConsumer: TypeAlias = Callable[..., Consumer]
OURS = ["job", "job_pause", "job_worker"]
OUR_FOLDER = "brooq_sa:migrations/versions"
FOREIGN_KEY: dict[str, Any] = {
    "up": 'op.create_table("receipts", sa.Column("job", sa.Uuid(), sa.ForeignKey("job.id")))',
    "down_again": 'op.drop_table("receipts")',
}


def tables(engine: Engine, schema: str | None = None) -> list[str]:
    return sorted(inspect(engine).get_table_names(schema=schema))


def versions(engine: Engine) -> list[str]:
    """The rows of Alembic's version table."""
    with engine.connect() as connection:
        return sorted(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


class Road:
    """A project that joined, and what is said in it.

    Attributes:
        project: with one revision of its own, which makes a table.
        database: what it migrates.
    """

    def __init__(self, project: Consumer, database: Engine, alembic: Run, brooq_sa: Run, *options: str) -> None:
        self.project = project
        self.database = database
        self._alembic = alembic
        self._brooq_sa = brooq_sa
        project.revise_orders()
        brooq_sa(project.folder, "alembic", "init", "--yes", *options)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run alembic."""
        return self._alembic(self.project.folder, *arguments, code=code).output

    def check(self, code: int = 0) -> str:
        """Run brooq-sa alembic check."""
        return self._brooq_sa(self.project.folder, "alembic", "check", code=code).output

    def next_release(self, folder: Path) -> None:
        """As if a release with another revision had been installed."""
        self.project.edit(self.project.ini, OUR_FOLDER, str(next_revision.package(folder)))


@pytest.fixture
def road(make_consumer: MakeConsumer, empty: Engine, empty_url: str, alembic: Run, brooq_sa_command: Run) -> Road:
    """A plain project, on either database."""
    return Road(make_consumer(empty_url), empty, alembic, brooq_sa_command)


@pytest.fixture(params=["generic", "async", "multidb", "pyproject", "pyproject_async"])
def any_road(
    request: pytest.FixtureRequest,
    make_consumer: MakeConsumer,
    make_pg_database: Callable[..., str],
    alembic: Run,
    brooq_sa_command: Run,
) -> Road:
    """A project from each of Alembic's templates, on PostgreSQL."""
    url = make_pg_database()
    project = make_consumer(url, request.param)
    options: tuple[str, ...] = ()
    if request.param == "multidb":
        old = f"[engine1]\nsqlalchemy.url = {url}"
        project.edit(project.ini, old, f"[engine1]\nsqlalchemy.url = {make_pg_database()}")
        options = ("--database", "engine2")
    return Road(project, create_engine(url), alembic, brooq_sa_command, *options)


def test_two_labelled_heads(any_road: Road) -> None:
    """After init, each branch goes up and down by its name, alone and together (M2)."""
    run, database = any_road, any_road.database
    run("upgrade", "brooq@head")
    assert tables(database) == ["alembic_version", *OURS]
    run.check()
    run("upgrade", "heads")
    assert tables(database) == ["alembic_version", *OURS, "orders"]
    assert versions(database) == ["app_0001", "brooq_0001"]
    run.check()
    run("downgrade", "brooq@base")
    assert tables(database) == ["alembic_version", "orders"]
    run("downgrade", "app@base")
    run("upgrade", "app@head")
    assert versions(database) == ["app_0001"]
    run("upgrade", "heads")
    run.check()
    run("revision", "--head", "app@head", "-m", "more")
    assert list((any_road.project.scripts / "versions").glob("*_more.py")), "it lies beside the first"
    run("downgrade", "base")
    assert tables(database) == ["alembic_version"]
    database.dispose()


def test_the_other_databases_of_several_get_nothing(
    make_consumer: MakeConsumer, make_pg_database: Callable[..., str], alembic: Run, brooq_sa_command: Run
) -> None:
    """Of several databases only the named one gets the table; with none named, the refusal says how (M3)."""
    one, two = make_pg_database(), make_pg_database()
    project = make_consumer(two, "multidb")
    project.edit(project.ini, f"[engine1]\nsqlalchemy.url = {two}", f"[engine1]\nsqlalchemy.url = {one}")
    run = Road(project, create_engine(two), alembic, brooq_sa_command, "--database", "engine2")
    run("upgrade", "heads")
    other = create_engine(one)
    assert tables(other) == ["alembic_version", "orders"]
    assert tables(run.database) == ["alembic_version", *OURS, "orders"]
    run("downgrade", "base")

    project.edit(project.ini, "brooq_database = engine2\n", "")
    assert "brooq_database = engine1" in run("upgrade", "heads", code=1)
    assert tables(other) == ["alembic_version"]
    other.dispose()
    run.database.dispose()


def test_two_heads_without_names(
    make_consumer: MakeConsumer, empty: Engine, empty_url: str, alembic: Run, brooq_sa_command: Run
) -> None:
    """Without a label on the consumer's branch, all but plain `head` works, and that says what to do (M2)."""
    run = Road(make_consumer(empty_url), empty, alembic, brooq_sa_command)
    run.project.edit(run.project.scripts / "versions" / "app_0001.py", '("app",)', "None")
    assert "Multiple head revisions" in run("upgrade", "head", code=1)
    assert "Multiple heads" in run("revision", "-m", "x", code=1)
    run("upgrade", "heads")
    assert tables(empty) == ["alembic_version", *OURS, "orders"]
    run("revision", "--head", "app_0001", "-m", "x")
    run("downgrade", "brooq@base")
    assert tables(empty) == ["alembic_version", "orders"]


def test_merged_heads_and_our_next_revision(road: Road, tmp_path: Path) -> None:
    """Merged, there is one head; our next revision makes two of it again, until the next merge (M2)."""
    road("merge", "-m", "join", "app_0001", "brooq_0001", "--rev-id", "app_0002")
    assert (road.project.scripts / "versions" / "app_0002_join.py").exists(), "beside the consumer's own"
    road("upgrade", "head")
    assert versions(road.database) == ["app_0002"]
    assert tables(road.database) == ["alembic_version", *OURS, "orders"]
    road.check()
    road("revision", "-m", "more", "--rev-id", "app_0003")
    road("upgrade", "head")
    road.check()

    road.next_release(tmp_path / "later")
    assert "Multiple head revisions" in road("upgrade", "head", code=1)
    assert "brooq@head" in road("upgrade", "brooq@head", code=1), "it has become ambiguous"
    found = road.check(code=3)
    assert "brooq@head is ambiguous" in found
    road("upgrade", "heads")
    assert versions(road.database) == ["app_0003", "brooq_0002"]
    road("merge", "-m", "again", "app_0003", "brooq_0002", "--rev-id", "app_0004")
    road("upgrade", "head")
    assert versions(road.database) == ["app_0004"]
    road("downgrade", "base")
    assert tables(road.database) == ["alembic_version"]


def test_merge_names_the_own_head_first(road: Road, tmp_path: Path) -> None:
    """Alembic puts a merge beside the first of the heads that it is given: ours first, and it lands in our folder."""
    folder = next_revision.package(tmp_path / "ours", 1)
    road.project.edit(road.project.ini, OUR_FOLDER, str(folder))
    road("merge", "-m", "join", "brooq_0001", "app_0001", "--rev-id", "lost")
    assert (folder / "lost_join.py").exists()


ORDERS_OF_UPGRADES = [
    ["brooq@head", "heads"],
    ["heads"],
    ["app@head"],
    ["app_0001", "brooq@head", "app@head"],
]


@pytest.mark.parametrize("steps", ORDERS_OF_UPGRADES, ids=", ".join)
def test_depends_on_us(road: Road, tmp_path: Path, steps: list[str]) -> None:
    """A revision with a foreign key to our table comes after it and goes before it, in whatever order one asks (M2)."""
    road.project.revise("app_0002", "app_0001", depends_on="brooq_0001", **FOREIGN_KEY)
    road.project.revise("app_0003", "app_0002")
    for step in steps:
        road("upgrade", step)
    assert tables(road.database) == ["alembic_version", *OURS, "orders", "receipts"]
    assert versions(road.database) == ["app_0003"], "Alembic counts ours as implied"
    road.check()
    road("downgrade", "app@-1")
    road("upgrade", "heads")

    road.next_release(tmp_path / "later")
    road("upgrade", "heads")
    assert versions(road.database) == ["app_0003", "brooq_0002"]
    road("downgrade", "app_0001")
    assert versions(road.database) == ["app_0001", "brooq_0002"]
    road("upgrade", "heads")
    road("downgrade", "brooq@base")  # and what depends on it with it
    assert tables(road.database) == ["alembic_version", "orders"]
    assert versions(road.database) == ["app_0001"]
    road("upgrade", "heads")
    assert versions(road.database) == ["app_0003", "brooq_0002"]


def test_downgrade_of_what_others_depend_on(road: Road) -> None:
    """Going down by our name takes what depends on us first; the consumer's own first revision stays (M1)."""
    road.project.revise("app_0002", "app_0001", depends_on="brooq_0001", **FOREIGN_KEY)
    road("upgrade", "heads")
    road("downgrade", "brooq@base")
    assert tables(road.database) == ["alembic_version", "orders"]
    assert "There is no table 'job' yet" in road.check(code=3)


@pytest.mark.parametrize("template", ["generic", "async"])
def test_steps_from_their_own_revision(
    make_consumer: MakeConsumer, empty_pg_url: str, alembic: Run, brooq_sa_command: Run, template: str
) -> None:
    """Our step, called from the consumer's own revision, keeps their history to one head (M2)."""
    project = make_consumer(empty_pg_url, template)
    take = "from brooq_sa.migrations import steps; steps.{0}_step(op, 'brooq_0001')"
    project.revise("app_0001", up=take.format("upgrade"), down_again=take.format("downgrade"))
    alembic(project.folder, "upgrade", "head")
    engine = create_engine(empty_pg_url)
    assert tables(engine) == ["alembic_version", *OURS]
    assert brooq_sa_command(project.folder, "alembic", "check").output == "All is well.\n"
    alembic(project.folder, "downgrade", "base")
    assert tables(engine) == ["alembic_version"]
    engine.dispose()


# Printed SQL.


@pytest.fixture
def programs(request: pytest.FixtureRequest) -> Path:
    """The folder of psql and pg_dump."""
    return find_binaries(str(request.config.getoption("--pg")))


def psql(programs: Path, url: str, script: str) -> None:
    """Run a script as an operator would, and stop at the first error."""
    address = url.replace("+psycopg", "")
    subprocess.run(
        [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", address],
        input=script,
        text=True,
        check=True,
        capture_output=True,
        env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},
    )


def dump(programs: Path, url: str) -> list[str]:
    """What pg_dump says of the schema, without what differs from one run to the next."""
    address = url.replace("+psycopg", "")
    done = subprocess.run([programs / "pg_dump", "-s", address], text=True, check=True, capture_output=True)
    return [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "\\"))]


def sql(output: str) -> str:
    """The SQL out of what alembic printed."""
    return "\n".join(line for line in output.splitlines() if not re.match(r"(INFO|WARNI|Generating)", line))


OFFLINE = {
    "default": (),
    "elsewhere": ("--schema", 'My "own" %s:x', "--table", "we\"ird%:x{y}'"),
}


@pytest.mark.parametrize("where", OFFLINE)
@pytest.mark.parametrize("template", ["generic", "pyproject_async"])
def test_printed_sql_does_what_running_does(
    make_consumer: MakeConsumer,
    make_pg_database: Callable[..., str],
    alembic: Run,
    brooq_sa_command: Run,
    programs: Path,
    tmp_path: Path,
    template: str,
    where: str,
) -> None:
    """Printed in full, in ranges and downwards, and run by psql, it leaves the same schema as the online run (M1)."""
    online, offline = make_pg_database(), make_pg_database()
    project = make_consumer(online, template)
    run = Road(project, create_engine(online), alembic, brooq_sa_command, *OFFLINE[where])
    configuration = project.toml if "pyproject" in template else project.ini
    project.edit(configuration, OUR_FOLDER, str(next_revision.package(tmp_path / "later")))
    start = dump(programs, offline)

    run("upgrade", "brooq_0001")
    psql(programs, offline, sql(run("upgrade", "brooq_0001", "--sql")))
    assert dump(programs, offline) == dump(programs, online)
    run("upgrade", "brooq_0002")
    psql(programs, offline, sql(run("upgrade", "brooq_0001:brooq_0002", "--sql")))
    assert dump(programs, offline) == dump(programs, online)
    assert any("note2_idx" in line for line in dump(programs, offline))

    run("downgrade", "brooq_0001")
    psql(programs, offline, sql(run("downgrade", "brooq_0002:brooq_0001", "--sql")))
    assert dump(programs, offline) == dump(programs, online)
    run("downgrade", "brooq@base")
    psql(programs, offline, sql(run("downgrade", "brooq_0001:brooq@base", "--sql")))
    assert dump(programs, offline) == dump(programs, online)

    whole = make_pg_database()
    run("upgrade", "heads")
    psql(programs, whole, sql(run("upgrade", "heads", "--sql")))
    assert dump(programs, whole) == dump(programs, online)
    assert len(dump(programs, whole)) > len(start)
    run.database.dispose()


def test_printed_by_our_own_command(
    make_pg_database: Callable[..., str], brooq_sa_command: Run, programs: Path, tmp_path: Path
) -> None:
    """`brooq-sa migrate --sql`, run by psql, does what the command does online (M1)."""
    online, offline = make_pg_database(), make_pg_database()
    for direction in (["upgrade"], ["downgrade", "base"]):
        options = ["--schema", "queue", *(["--yes"] if "base" in direction else [])]
        brooq_sa_command(tmp_path, "migrate", *direction, *options, url=online)
        printed = brooq_sa_command(tmp_path, "migrate", *direction, *options, "--sql", url=online).output
        psql(programs, offline, printed)
        assert dump(programs, offline) == dump(programs, online)


# Names that need care.


@pytest.mark.parametrize("folder", ["my project", "a,b;c", "a:b c"])
@pytest.mark.parametrize("template", ["generic", "pyproject"])
def test_folders_with_odd_names(
    make_consumer: MakeConsumer, empty_pg_url: str, alembic: Run, brooq_sa_command: Run, template: str, folder: str
) -> None:
    """Spaces, colons and commas in folders' names are no trap (M2)."""
    project = make_consumer(empty_pg_url, template, folder, scripts="db scripts, mine")
    run = Road(project, create_engine(empty_pg_url), alembic, brooq_sa_command)
    run("upgrade", "heads")
    run.check()
    run("downgrade", "brooq@base")
    assert tables(run.database) == ["alembic_version", "orders"]
    run.database.dispose()


PASSWORD = "p%@:/?#[ $\\'{x}"


def test_password_with_every_odd_character(
    make_consumer: MakeConsumer,
    make_pg_database: Callable[..., str],
    pg_server: PostgreSQLExecutor,
    pg_maintenance: Engine,
    alembic_command: Run,
    brooq_sa_command: Run,
) -> None:
    """A password that the server does ask for goes through alembic.ini and DATABASE_URL, and is never shown (M2)."""
    address = make_pg_database()
    role = f"{address.rpartition('/')[2]}_secret"
    rules = Path(pg_server.datadir) / "pg_hba.conf"
    before = rules.read_text(encoding="utf-8")
    with pg_maintenance.connect() as connection:
        literal = PASSWORD.replace("'", "''")
        connection.exec_driver_sql(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{literal}'".replace("%", "%%"))
        rules.write_text(f"host all {role} all scram-sha-256\n{before}", encoding="utf-8")
        connection.execute(text("SELECT pg_reload_conf()"))
    try:
        encoded = quote(PASSWORD, safe="")
        url = re.sub(r"//[^@]+@", lambda _: f"//{role}:{encoded}@", address)
        project = make_consumer(url)
        shown = brooq_sa_command(project.folder, "alembic", "init", "--yes").output
        shown += alembic_command(project.folder, "upgrade", "brooq@head").output
        shown += brooq_sa_command(project.folder, "alembic", "check").output
        shown += brooq_sa_command(project.folder, "migrate", "current", url=url).output
        wrong = url.replace(encoded, encoded[:-3] + "z")
        shown += brooq_sa_command(project.folder, "migrate", "current", url=wrong, code=1).output
        assert "password authentication failed" in shown, "the server asked for it"
        assert PASSWORD not in shown
        assert encoded not in shown
    finally:
        with pg_maintenance.connect() as connection:
            rules.write_text(before, encoding="utf-8")
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text(f"REASSIGN OWNED BY {role} TO CURRENT_USER"))
            connection.execute(text(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)"))
            connection.execute(text(f"CREATE DATABASE {address.rpartition('/')[2]}"))
            connection.execute(text(f"DROP ROLE {role}"))


# From one road to another.


def test_from_our_command_to_a_branch_and_back(road: Road, brooq_sa_command: Run) -> None:
    """A table of `brooq-sa migrate` becomes the branch's by two statements, and its jobs stay; and back (M2)."""
    folder, url = road.project.folder, road.project.url
    brooq_sa_command(folder, "migrate", "upgrade", url=url)
    with road.database.begin() as connection:
        connection.execute(text("INSERT INTO job (topic, payload) VALUES ('kept', '{}')"))
    refused = road("upgrade", "heads", code=1)
    assert "stamp" in refused

    road("stamp", "brooq@head")
    brooq_sa_command(folder, "migrate", "stamp", "base", url=url)
    road("upgrade", "heads")
    road.check()
    assert tables(road.database) == ["alembic_version", *OURS, "orders"]

    road("stamp", "brooq@base")
    assert versions(road.database) == ["app_0001"]
    told = brooq_sa_command(folder, "migrate", "stamp", url=url).output
    assert told == "job: brooq_0001, was none\n"
    assert brooq_sa_command(folder, "migrate", "upgrade", url=url).output == "job: brooq_0001 already\n"
    with road.database.connect() as connection:
        assert connection.execute(text("SELECT topic FROM job")).scalars().all() == ["kept"]


def test_from_our_command_to_a_merged_branch_and_back(road: Road, brooq_sa_command: Run) -> None:
    """The same where the consumer has merged: the merge is the note, and stamping their own head forgets it (M2)."""
    folder, url = road.project.folder, road.project.url
    brooq_sa_command(folder, "migrate", "upgrade", url=url)
    road("upgrade", "app@head")
    road("merge", "-m", "join", "app_0001", "brooq_0001", "--rev-id", "app_0002")
    road("stamp", "brooq_0001")
    brooq_sa_command(folder, "migrate", "stamp", "base", url=url)
    road("upgrade", "head")
    assert versions(road.database) == ["app_0002"]
    road.check()

    (road.project.scripts / "versions" / "app_0002_join.py").unlink()
    road("stamp", "--purge", "app_0001")
    brooq_sa_command(folder, "migrate", "stamp", url=url)
    assert versions(road.database) == ["app_0001"]
    assert migrations.current(road.database) == "brooq_0001"


def test_stamp_is_no_lie(brooq_sa_command: Run, empty_url: str, tmp_path: Path) -> None:
    """A revision that the table denies is not noted; without a table there is nothing to note (M2)."""
    refused = brooq_sa_command(tmp_path, "migrate", "stamp", url=empty_url, code=1).output
    assert "is not there" in refused
    brooq_sa_command(tmp_path, "migrate", "upgrade", url=empty_url)
    assert "brooq_0099" in brooq_sa_command(tmp_path, "migrate", "stamp", "brooq_0099", url=empty_url, code=1).output
    brooq_sa_command(tmp_path, "migrate", "stamp", "base", url=empty_url)
    brooq_sa_command(tmp_path, "migrate", "stamp", "head", url=empty_url)


@pytest.mark.parametrize("name", ["job", "job_worker", "job_pause"])
def test_table_that_is_not_ours(road: Road, name: str) -> None:
    """A table of one of our names that is not ours is refused, with the option; nothing is changed (M3)."""
    with road.database.begin() as connection:
        connection.execute(text(f"CREATE TABLE {name} (title TEXT)"))
    refused = road("upgrade", "brooq@head", code=1)
    assert f"Table '{name}' exists already, and is not brooq-sa's" in refused
    assert "brooq_table" in refused
    assert [each for each in tables(road.database) if each != "alembic_version"] == [name]
