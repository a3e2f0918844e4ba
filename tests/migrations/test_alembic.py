"""The branch under Alembic's own command: in this repository, and in a project that uses brooq-sa."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, text

from brooq_sa import migrations
from migrations.conftest import Run
from migrations.description import describe

ROOT = Path(__file__).parents[2]


def tables(engine: Engine) -> list[str]:
    return sorted(inspect(engine).get_table_names())


def expected(make: Callable[[], str]) -> dict[str, object]:
    """What the branch makes, as `upgrade` makes it in a database of its own."""
    engine = create_engine(make())
    migrations.upgrade(engine)
    description = describe(engine)
    engine.dispose()
    return description


@pytest.fixture
def as_made_by_upgrade(request: pytest.FixtureRequest, empty: Engine, tmp_path: Path) -> dict[str, object]:
    if empty.dialect.name == "sqlite":
        return expected(lambda: f"sqlite:///{tmp_path / 'reference.sqlite'}")
    return expected(request.getfixturevalue("make_pg_database"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What this repository keeps for Alembic, in a folder of the test's own."""
    shutil.copytree(ROOT / "alembic", tmp_path / "clone" / "alembic")
    shutil.copy(ROOT / "alembic.ini", tmp_path / "clone")
    return tmp_path / "clone"


def test_repository_up_and_down(
    clone: Path,
    empty: Engine,
    empty_url: str,
    alembic: Run,
    alembic_command: Run,
    as_made_by_upgrade: dict[str, object],
) -> None:
    """From a clone the branch goes up, shows itself, agrees with the Core table, and goes down (M1)."""
    url = empty_url.replace("+psycopg", "")  # psycopg is chosen
    assert "brooq" not in alembic(clone, "current", url=url).output
    alembic_command(clone, "upgrade", "brooq@head", url=url)
    assert describe(empty) == as_made_by_upgrade
    assert "brooq_0001 (head)" in alembic(clone, "current", url=url).output
    assert "brooq_0001 (brooq) (head)" in alembic(clone, "history", url=url).output
    assert "No new upgrade operations" in alembic(clone, "check", url=url).output
    alembic(clone, "downgrade", "brooq@base", url=url)
    assert tables(empty) == ["alembic_version"]


def test_repository_takes_options(clone: Path, empty_pg_url: str, alembic: Run) -> None:
    """With another table and schema the branch goes up there, and agrees with the Core table there (M3, M4)."""
    options = ("-x", "brooq_schema=queue", "-x", "brooq_table=background_job", "-x", f"url={empty_pg_url}")
    alembic(clone, *options, "upgrade", "brooq@head")
    assert "No new upgrade operations" in alembic(clone, *options, "check").output
    engine = create_engine(empty_pg_url)
    assert sorted(inspect(engine).get_table_names(schema="queue")) == [
        "background_job",
        "background_job_pause",
        "background_job_worker",
    ]
    engine.dispose()


def test_repository_prints_sql(clone: Path, alembic: Run) -> None:
    """Offline mode prints both directions for a database that cannot be reached (M1)."""
    url = "postgresql://nobody@127.0.0.1:1/none"
    assert 'CREATE TABLE "job"' in alembic(clone, "upgrade", "brooq@head", "--sql", url=url).output
    assert 'DROP TABLE "job"' in alembic(clone, "downgrade", "brooq@head:brooq@base", "--sql", url=url).output


def test_repository_has_a_default_database(clone: Path, alembic_command: Run) -> None:
    """Without DATABASE_URL it is a SQLite file beside alembic.ini."""
    alembic_command(clone, "upgrade", "brooq@head")
    engine = create_engine(f"sqlite:///{clone / 'brooq.db'}")
    assert tables(engine) == ["alembic_version", "job", "job_pause", "job_worker"]
    engine.dispose()


def test_misspelt_option_is_one_line(clone: Path, alembic_command: Run) -> None:
    """A refusal is a line of text, not a traceback (M3)."""
    failed = alembic_command(clone, "-x", "brooq_shema=queue", "upgrade", "brooq@head", code=1)
    assert "brooq_shema: no such option" in failed.output
    assert "Traceback" not in failed.output


ENVIRONMENT = """\
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

engine = create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=NullPool)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
THEIR_REVISION = """\
import sqlalchemy as sa
from alembic import op

revision = "app_0001"
down_revision = None
branch_labels = ("app",)
depends_on = None


def upgrade():
    op.create_table("orders", sa.Column("id", sa.Integer(), primary_key=True))


def downgrade():
    op.drop_table("orders")
"""
BOTH_BRANCHES = """\
path_separator = newline
version_locations =
    %(here)s/migrations/versions
    brooq_sa:migrations/versions
"""


class Project:
    """A consumer's project with an Alembic environment of the plainest kind."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        (folder / "migrations" / "versions").mkdir(parents=True)
        (folder / "migrations" / "env.py").write_text(ENVIRONMENT, encoding="utf-8")

    def configure(self, options: str = BOTH_BRANCHES) -> None:
        ini = f"[alembic]\nscript_location = %(here)s/migrations\nsqlalchemy.url = {self.url}\n{options}"
        (self.folder / "alembic.ini").write_text(ini, encoding="utf-8")

    def revise(self, name: str, source: str) -> None:
        (self.folder / "migrations" / "versions" / f"{name}.py").write_text(source, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, empty_url: str) -> Project:
    made = Project(tmp_path / "project", empty_url)
    made.configure()
    made.revise("app_0001", THEIR_REVISION)
    return made


def test_branches_side_by_side(
    project: Project, empty: Engine, alembic: Run, as_made_by_upgrade: dict[str, object]
) -> None:
    """A consumer's branch and ours go up and down together and each alone, in one version table (M2)."""
    alembic(project.folder, "upgrade", "brooq@head")
    assert tables(empty) == ["alembic_version", "job", "job_pause", "job_worker"]
    assert describe(empty) == as_made_by_upgrade

    alembic(project.folder, "upgrade", "heads")
    assert tables(empty) == ["alembic_version", "job", "job_pause", "job_worker", "orders"]
    shown = alembic(project.folder, "current").output
    assert "brooq_0001 (head)" in shown
    assert "app_0001 (head)" in shown

    alembic(project.folder, "downgrade", "brooq@base")
    assert tables(empty) == ["alembic_version", "orders"]
    alembic(project.folder, "upgrade", "heads")
    assert describe(empty) == as_made_by_upgrade
    alembic(project.folder, "downgrade", "base")
    assert tables(empty) == ["alembic_version"]


def test_options_in_the_projects_file(project: Project, empty: Engine, alembic: Run) -> None:
    """The consumer's alembic.ini names the table, for every command alike (M3)."""
    project.configure(BOTH_BRANCHES + "brooq_table = background_job\n")
    alembic(project.folder, "upgrade", "brooq@head")
    assert tables(empty) == ["alembic_version", "background_job", "background_job_pause", "background_job_worker"]
    alembic(project.folder, "downgrade", "brooq@base")
    assert tables(empty) == ["alembic_version"]


def test_foreign_table_in_the_projects_database(project: Project, empty: Engine, alembic: Run) -> None:
    """A table `job` of the consumer's own is left alone, and the error names the option (M3)."""
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job (title TEXT)"))
    failed = alembic(project.folder, "upgrade", "brooq@head", code=1)
    assert "brooq_table in alembic.ini" in failed.output
    assert [column["name"] for column in inspect(empty).get_columns("job")] == ["title"]


def test_failure_halfway_in_the_projects_environment(project: Project, empty: Engine, alembic: Run) -> None:
    """Also under a plain environment a failed upgrade leaves nothing of ours, on SQLite too (M1, M2)."""
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job_key_idx (x INTEGER)"))
    alembic(project.folder, "upgrade", "brooq@head", code=1)
    assert "job" not in tables(empty)
    with empty.begin() as connection:
        connection.execute(text("DROP TABLE job_key_idx"))
    alembic(project.folder, "upgrade", "brooq@head")
    assert "job" in tables(empty)


def heads(project: Project) -> set[str]:
    config = Config(str(project.folder / "alembic.ini"))
    return set(ScriptDirectory.from_config(config).get_heads())


def test_separator_that_hides_the_branch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry holds with newlines between entries, and is lost with colons, as the documentation warns (M2)."""
    monkeypatch.chdir(project.folder.parent)  # the halves of the entry are read as folders of the current one
    assert heads(project) == {"app_0001", "brooq_0001"}
    colons = "version_locations = %(here)s/migrations/versions:brooq_sa:migrations/versions\n"
    project.configure("path_separator = :\n" + colons)
    assert heads(project) == {"app_0001"}


COMPARING = """\
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from sqlalchemy.pool import NullPool

metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
{more}
engine = create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=NullPool)
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, include_name=include_name)
    with context.begin_transaction():
        context.run_migrations()
"""
SHARED = """\
from brooq_sa.schema import job_table
job_table(metadata)
include_name = None
"""
FILTERED = """\
QUEUE_TABLES = {"job", "job_worker", "job_pause"}


def include_name(name, type_, parent_names):
    return type_ != "table" or name not in QUEUE_TABLES
"""


@pytest.mark.parametrize("more", [SHARED, FILTERED], ids=["shared", "filtered"])
def test_autogenerate_leaves_the_queue_alone(project: Project, empty: Engine, alembic: Run, more: str) -> None:
    """With the table in the consumer's MetaData or with the filter, only their own changes are seen (M4)."""
    (project.folder / "migrations" / "env.py").write_text(COMPARING.format(more=more), encoding="utf-8")
    alembic(project.folder, "upgrade", "heads")
    assert "No new upgrade operations" in alembic(project.folder, "check").output

    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE forgotten (x INTEGER)"))
    changed = alembic(project.folder, "check", code=1)
    assert "forgotten" in changed.output
    assert "job" not in changed.output


STEP = """\
from alembic import op
from brooq_sa.migrations import steps

revision = "app_0002"
down_revision = "app_0001"
branch_labels = None
depends_on = None


def upgrade():
    steps.upgrade_step(op, "brooq_0001"{where})


def downgrade():
    steps.downgrade_step(op, "brooq_0001"{where})
"""


def test_step_in_a_revision_of_ones_own(
    project: Project, empty: Engine, alembic: Run, as_made_by_upgrade: dict[str, object]
) -> None:
    """Called from a consumer's revision, our step makes the same, and their history keeps one head (M2)."""
    project.configure("path_separator = os\n")
    project.revise("app_0002", STEP.format(where=""))
    alembic(project.folder, "upgrade", "head")
    assert describe(empty) == as_made_by_upgrade
    alembic(project.folder, "downgrade", "-1")
    assert tables(empty) == ["alembic_version", "orders"]


def test_step_takes_a_name(project: Project, empty: Engine, alembic: Run) -> None:
    """A step names its table itself, or reads it from the options (M3)."""
    project.configure("path_separator = os\nbrooq_table = from_options\n")
    project.revise("app_0002", STEP.format(where=', table="nightly"'))
    alembic(project.folder, "upgrade", "head")
    assert tables(empty) == ["alembic_version", "nightly", "nightly_pause", "nightly_worker", "orders"]
    alembic(project.folder, "downgrade", "base")

    project.revise("app_0002", STEP.format(where=""))
    alembic(project.folder, "upgrade", "head")
    assert tables(empty) == ["alembic_version", "from_options", "from_options_pause", "from_options_worker", "orders"]


def test_step_that_does_not_exist(project: Project, alembic: Run) -> None:
    """A misspelt revision is refused by name (M2)."""
    project.configure("path_separator = os\n")
    project.revise("app_0002", STEP.format(where="").replace("brooq_0001", "brooq_1000"))
    failed = alembic(project.folder, "upgrade", "head", code=1)
    assert "brooq_1000" in failed.output
