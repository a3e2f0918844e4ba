"""`brooq-sa alembic check`: everything that would fail without a word, named, with what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from brooq_sa import migrations
from brooq_sa.adoption import project as adopted
from migrations.conftest import Run
from migrations.consumer import SHARED, Consumer

Check = Callable[..., list[str]]


@pytest.fixture
def project(make_consumer: Callable[..., Consumer], empty_url: str, brooq_sa_command: Run) -> Consumer:
    """A project that has our branch; nothing is migrated."""
    made = make_consumer(empty_url)
    made.revise_orders()
    brooq_sa_command(made.folder, "alembic", "init", "--yes")
    return made


@pytest.fixture
def check(brooq_sa_command: Run) -> Check:
    """The problems that the command finds, each as "about: problem -> cure"."""

    def run(project: Consumer, *arguments: str, code: int = 3) -> list[str]:
        shown = brooq_sa_command(project.folder, "alembic", "check", *arguments, "--json", code=code).output
        findings = json.loads(shown)["findings"]
        return [f"{each['about']}: {each['problem']} -> {each['cure']}" for each in findings]

    return run


def run_sql(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_all_is_well(project: Consumer, alembic: Run, check: Check, brooq_sa_command: Run, empty: Engine) -> None:
    """A project that joined and migrated has no finding, and the check leaves nothing behind (M1, M2)."""
    alembic(project.folder, "upgrade", "heads")
    assert check(project, code=0) == []
    assert brooq_sa_command(project.folder, "alembic", "check").output == "All is well.\n"
    assert [name for name in _tables(empty) if "job" not in name] == ["alembic_version", "orders"]


def _tables(engine: Engine) -> list[str]:
    from sqlalchemy import inspect

    return sorted(inspect(engine).get_table_names())


@pytest.mark.parametrize("template", ["async", "multidb", "pyproject", "pyproject_async"])
def test_in_every_template(
    make_consumer: Callable[..., Consumer],
    empty_sqlite_url: str,
    empty_pg_url: str,
    alembic: Run,
    brooq_sa_command: Run,
    check: Check,
    template: str,
) -> None:
    """The check goes through whatever env.py the project has (M2)."""
    url = empty_pg_url if template != "multidb" else empty_sqlite_url
    project = make_consumer(url, template)
    if template == "multidb":
        project.edit(project.ini, f"[engine2]\nsqlalchemy.url = {url}", f"[engine2]\nsqlalchemy.url = {url}2")
    database = ("--database", "engine2") if template == "multidb" else ()
    brooq_sa_command(project.folder, "alembic", "init", "--yes", *database)
    [absent] = check(project)
    assert "There is no table 'job' yet" in absent
    assert absent.endswith("Run: alembic upgrade brooq@head")
    alembic(project.folder, "upgrade", "brooq@head")
    assert check(project, code=0) == []


def test_branch_that_a_separator_hides(
    make_consumer: Callable[..., Consumer], empty_url: str, check: Check, alembic: Run
) -> None:
    """The entry that a colon splits, which Alembic passes over in silence, is found, and why (M2)."""
    project = make_consumer(empty_url, scripts="db")
    project.revise_orders()
    locations = "version_locations = %(here)s/db/versions:brooq_sa:migrations/versions"
    project.edit(project.ini, "path_separator = os", f"path_separator = os\n{locations}")
    assert "brooq" not in alembic(project.folder, "heads").output
    [found] = check(project)
    assert found.startswith("branch: Alembic does not see the branch 'brooq', and says nothing of it: path_separator")
    assert "brooq-sa alembic init" in found


def test_branch_that_was_never_listed(make_consumer: Callable[..., Consumer], empty_url: str, check: Check) -> None:
    """A project without our branch is told how to join (M2)."""
    [found] = check(make_consumer(empty_url))
    assert "brooq-sa alembic init" in found


def test_steps_count_as_joining(
    make_consumer: Callable[..., Consumer], empty_url: str, alembic: Run, check: Check
) -> None:
    """Where our steps are taken from the consumer's own revisions, the branch need not be listed (M2)."""
    project = make_consumer(empty_url)
    take = "from brooq_sa.migrations import steps; steps.{0}_step(op, 'brooq_0001')"
    project.revise("app_0001", up=take.format("upgrade"), down_again=take.format("downgrade"))
    [found] = check(project)
    assert found.endswith("Run: alembic upgrade head")
    alembic(project.folder, "upgrade", "head")
    assert check(project, code=0) == []

    project.revise("app_0002", "app_0001", up=take.format("upgrade").replace("0001", "0099"))
    assert check(project, code=0) == []  # Alembic itself says what a misspelt step is, when it is run


def test_both_roads_at_once(project: Consumer, check: Check) -> None:
    """Listing the branch and taking its steps as well is found before it fails (M2)."""
    project.revise(
        "app_0002", "app_0001", up="from brooq_sa.migrations import steps; steps.upgrade_step(op, 'brooq_0001')"
    )
    found = check(project)
    assert any("app_0002 of yours takes its steps as well" in each for each in found)


def test_revision_in_our_folder(
    project: Consumer, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revision that Alembic put into our folder, where the next installation forgets it, is found (M2)."""
    ours = tmp_path / "ours"
    shutil.copytree(migrations.script_location() / "versions", ours)
    stray = ours / "stray.py"
    source = (project.scripts / "versions" / "app_0001.py").read_text(encoding="utf-8")
    stray.write_text(source.replace("app_0001", "stray").replace('("app",)', "None"), encoding="utf-8")
    project.edit(project.ini, "brooq_sa:migrations/versions", str(ours))
    monkeypatch.setattr(adopted, "our_folder", lambda: ours)
    assert any("stray lies in brooq-sa's own folder" in each and str(stray) in each for each in check(project))


def test_database_behind(project: Consumer, alembic: Run, check: Check) -> None:
    """A database that the branch has not reached is told with the command that brings it up (M2)."""
    alembic(project.folder, "upgrade", "app@head")
    assert check(project) == ["database: There is no table 'job' yet. -> Run: alembic upgrade brooq@head"]


def test_database_ahead(project: Consumer, alembic: Run, check: Check, empty: Engine) -> None:
    """A database that a newer version migrated is told apart from one that somebody else did (M2)."""
    alembic(project.folder, "upgrade", "heads")
    run_sql(empty, "UPDATE alembic_version SET version_num = 'brooq_0002' WHERE version_num = 'brooq_0001'")
    [found] = check(project)
    assert "at revision brooq_0002, which this version of brooq-sa does not have" in found
    assert "Upgrade brooq-sa here" in found
    run_sql(empty, "UPDATE alembic_version SET version_num = 'abc' WHERE version_num = 'brooq_0002'")
    [found] = check(project)
    assert "alembic_version has revision abc, which is none of this project's" in found


def test_table_that_another_way_made(project: Consumer, check: Check, alembic: Run, empty: Engine) -> None:
    """A table of `brooq-sa migrate` is told apart from none, with the way to take it over (M2)."""
    migrations.upgrade(empty)
    [found] = check(project)
    assert "alembic stamp brooq@head" in found
    alembic(project.folder, "stamp", "brooq@head")
    [found] = check(project)
    assert "notes the revision a second time" in found
    run_sql(empty, found.rpartition("-> ")[2])
    assert check(project, code=0) == []


def test_table_that_is_somebody_elses(project: Consumer, check: Check, empty: Engine) -> None:
    """A table of our name that is not ours is named before the upgrade refuses it, with the option (M3)."""
    run_sql(empty, "CREATE TABLE job (title TEXT)")
    [found] = check(project)
    assert "is not brooq-sa's" in found
    assert "brooq_table" in found


def test_table_that_has_gone(project: Consumer, alembic: Run, check: Check, empty: Engine) -> None:
    """A version table that says more than there is, as after a changed option, is found (M2, M3)."""
    alembic(project.folder, "upgrade", "heads")
    project.edit(project.ini, "version_locations =\n", "brooq_table = other\nversion_locations =\n")
    [found] = check(project)
    assert "alembic_version says brooq_0001, but there is no table 'other'" in found


BASE = """\
from brooq_sa import JobBase


class AppJob(JobBase):
    table_name = "other"
"""


def test_code_and_migrations_disagree(project: Consumer, alembic: Run, check: Check) -> None:
    """A base, or a table in target_metadata, with another name than the migrations' is found (M3)."""
    alembic(project.folder, "upgrade", "heads")
    (project.folder / "app_jobs_zzz.py").write_text(BASE, encoding="utf-8")
    [found] = check(project, "app_jobs_zzz:AppJob")
    assert "The application's base has its jobs in table 'other', and the migrations make 'job'" in found
    assert "brooq_table = other" in found

    project.declare(SHARED.replace("metadata = metadata", "metadata = metadata\n    schema = 'queue'"))
    [found] = check(project)
    assert "target_metadata has its jobs in table 'queue.job'" in found
    assert "brooq_schema = queue" in found


def test_plugin_that_was_left_out(project: Consumer, alembic: Run, check: Check) -> None:
    """An env.py that names its plugins, and not ours, is found (M4)."""
    alembic(project.folder, "upgrade", "heads")
    old = "connection=connection, "
    project.edit(project.scripts / "env.py", old, f'{old}autogenerate_plugins=["alembic.autogenerate.tables"], ')
    [found] = check(project)
    assert "would propose to drop the queue's tables" in found
    assert "alembic.autogenerate.brooq_sa" in found


POSTGRESQL_DRIFT = {
    "ALTER TABLE job SET (fillfactor = 100)": ["storage of table job", "fillfactor=70", "ALTER TABLE"],
    "ALTER TABLE job RESET (autovacuum_vacuum_threshold)": ["storage of table job", "autovacuum_vacuum_threshold=100"],
    "ALTER TABLE job SET UNLOGGED": ["kind of table job", "UNLOGGED", "SET LOGGED"],
    "DROP INDEX job_held_idx": ["index job_held_idx", "is missing", "CREATE INDEX CONCURRENTLY"],
    "ALTER TABLE job ALTER priority TYPE integer": ["column priority", "integer", "smallint"],
    "ALTER TABLE job ALTER attempts DROP DEFAULT": ["column attempts", "DEFAULT 0"],
    "ALTER TABLE job ALTER topic DROP NOT NULL": ["column topic", "text NOT NULL"],
    "ALTER TABLE job DROP COLUMN crashes": ["column crashes", "is missing", "ADD COLUMN"],
    "ALTER TABLE job DROP CONSTRAINT job_lease_check": ["constraint job_lease_check", "is missing", "ADD CONSTRAINT"],
    "ALTER TABLE job ADD CONSTRAINT mine CHECK (topic <> 'x')": ["constraint mine", "none of brooq-sa's"],
    "ALTER TABLE job ADD COLUMN mine integer NOT NULL": ["column mine", "none of brooq-sa's"],
    "CREATE UNIQUE INDEX mine ON job (topic)": ["index mine", "none of brooq-sa's"],
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'job_key_idx'::regclass": [
        "index job_key_idx",
        "INVALID",
        "DROP INDEX CONCURRENTLY",
    ],
    "DROP TABLE job_pause": ["table job_pause", "is missing"],
    "ALTER TABLE job_worker DROP COLUMN slots": ["column slots of table job_worker", "is missing"],
    "CREATE RULE mine AS ON DELETE TO job DO INSTEAD NOTHING": ["rule mine", "DROP RULE"],
}
HARMLESS = ["CREATE INDEX mine ON job (created_at)", "ALTER TABLE job ADD COLUMN mine integer"]


@pytest.fixture
def migrated(make_pg_database: Callable[..., str], make_consumer: Callable[..., Consumer], alembic: Run) -> Consumer:
    """A project whose database has the branch in a schema with an odd name, and nothing else."""
    made = make_consumer(make_pg_database())
    made.edit(
        made.ini, "path_separator = os", "path_separator = newline\nversion_locations = brooq_sa:migrations/versions"
    )
    alembic(made.folder, "upgrade", "head")
    return made


def test_drift_line_by_line(migrated: Consumer, check: Check) -> None:
    """Each thing that differs from what was migrated is a line of its own, with the cure (M1, M5, M6)."""
    engine = create_engine(migrated.url)
    for statement, expected in POSTGRESQL_DRIFT.items():
        with engine.connect() as connection:
            _undo = connection.begin()
            connection.execute(text(statement))
            lines = _drift(connection)
            _undo.rollback()
        assert [line for line in lines if all(part in line for part in expected)], (statement, lines)
        assert len(lines) <= 2, (statement, lines)
    run_sql(engine, *POSTGRESQL_DRIFT_AT_ONCE)
    assert len(check(migrated)) == len(POSTGRESQL_DRIFT_AT_ONCE)
    engine.dispose()


POSTGRESQL_DRIFT_AT_ONCE = [
    "ALTER TABLE job SET (fillfactor = 100)",
    "DROP INDEX job_held_idx",
    "ALTER TABLE job ALTER priority TYPE integer",
]


def _drift(connection: object) -> list[str]:
    from brooq_sa.adoption import drift
    from brooq_sa.migrations.options import Target

    found = drift.compare(connection, Target())  # type: ignore[arg-type]
    return [f"{each.what}: {each.problem} -> {each.cure}" for each in found]


def test_cures_cure(migrated: Consumer, check: Check) -> None:
    """What a finding tells to run brings back what was migrated (M1)."""
    engine = create_engine(migrated.url, isolation_level="AUTOCOMMIT")
    broken = [
        "ALTER TABLE job SET (fillfactor = 100)",
        "DROP INDEX job_held_idx",
        "DROP INDEX job_key_idx",
        "CREATE UNIQUE INDEX job_key_idx ON job (topic)",
        "ALTER TABLE job DROP CONSTRAINT job_lease_check",
        "ALTER TABLE job_worker DROP COLUMN reaps_at",
        "CREATE RULE mine AS ON DELETE TO job DO INSTEAD NOTHING",
    ]
    with engine.connect() as connection:
        for statement in broken:
            connection.execute(text(statement))
        for found in check(migrated):
            for statement in found.rpartition("-> ")[2].removeprefix("Run: ").split(": ")[-1].split(";"):
                if statement.strip():
                    connection.execute(text(statement))
    engine.dispose()
    assert check(migrated, code=0) == []


def test_harmless_additions_are_notes(migrated: Consumer, brooq_sa_command: Run) -> None:
    """An index or a nullable column of the consumer's own is noted, and fails nothing."""
    engine = create_engine(migrated.url)
    run_sql(engine, *HARMLESS)
    engine.dispose()
    shown = brooq_sa_command(migrated.folder, "alembic", "check").output
    assert shown.count("note: ") == 2
    assert shown.endswith("All is well.\n")


def test_drift_on_sqlite(
    make_consumer: Callable[..., Consumer], empty_sqlite_url: str, alembic: Run, check: Check, brooq_sa_command: Run
) -> None:
    """SQLite's tables are compared likewise: indexes, triggers, columns (M1)."""
    project = make_consumer(empty_sqlite_url)
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    alembic(project.folder, "upgrade", "heads")
    engine = create_engine(empty_sqlite_url)
    run_sql(engine, "DROP INDEX job_held_idx", "DROP TRIGGER job_insert_instants", "ALTER TABLE job ADD COLUMN x TEXT")
    engine.dispose()
    found = check(project)
    assert [each.partition(":")[0] for each in found] == [
        "table job",
        "index job_held_idx of table job",
        "trigger job_insert_instants of table job",
    ]


def test_schema_of_its_own_with_an_odd_name(
    make_consumer: Callable[..., Consumer], empty_pg_url: str, alembic: Run, check: Check, brooq_sa_command: Run
) -> None:
    """Names with quotes, percent signs and colons are looked for as they are (M3)."""
    project = make_consumer(empty_pg_url)
    where = ("--schema", 'My "own" %s:x', "--table", "we\"ird%:x{y}'")
    brooq_sa_command(project.folder, "alembic", "init", "--yes", *where)
    alembic(project.folder, "upgrade", "brooq@head")
    assert check(project, code=0) == []


def test_nothing_is_locked_or_written(migrated: Consumer, brooq_sa_command: Run) -> None:
    """The check takes no lock that a worker would wait for, and leaves no table behind (M1)."""
    engine = create_engine(migrated.url)
    with engine.connect() as connection:
        connection.execute(text("LOCK TABLE job IN ROW EXCLUSIVE MODE"))
        brooq_sa_command(migrated.folder, "alembic", "check")
        left = connection.execute(text("SELECT count(*) FROM pg_class WHERE relpersistence = 't'")).scalar()
    engine.dispose()
    assert left == 0


def test_database_out_of_reach(make_consumer: Callable[..., Consumer], brooq_sa_command: Run) -> None:
    """A database that cannot be reached is an error of one line, with another code than a finding, and no password."""
    project = make_consumer("postgresql+psycopg://nobody:s3cret@127.0.0.1:1/none")
    brooq_sa_command(project.folder, "alembic", "init", "--yes")
    told = brooq_sa_command(project.folder, "alembic", "check", code=1).output
    assert "The database of env.py" in told
    assert "s3cret" not in told


@pytest.fixture(autouse=True)
def _modules_of_one_test() -> Iterator[None]:
    import sys

    yield
    sys.modules.pop("app_jobs_zzz", None)
