"""Autogenerate and `alembic check` leave the queue's tables alone, with nothing configured for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, create_engine, text

from brooq_sa import migrations
from migrations.conftest import Run
from migrations.consumer import ORDERS, SHARED, Consumer

CLEAN = "No new upgrade operations"
IN_QUEUE = SHARED.replace(
    "metadata = metadata", "metadata = metadata\n    schema = 'queue'\n    table_name = 'background'"
)
TO_METADATA = (
    ORDERS
    + """\
from brooq_sa import JobBase
class AppJob(JobBase): pass
for table in AppJob.metadata.tables.values():
    table.to_metadata(metadata)
"""
)
PARTLY_MAPPED = (
    ORDERS
    + """\
sa.Table("job", metadata, sa.Column("id", sa.Uuid, primary_key=True), sa.Column("state", sa.Text))
"""
)


@pytest.fixture
def project(make_consumer: Callable[..., Consumer], empty_url: str, alembic: Run, brooq_sa_command: Run) -> Consumer:
    """A project with a table of its own and our branch, both migrated."""
    made = make_consumer(empty_url)
    made.revise_orders()
    brooq_sa_command(made.folder, "alembic", "init", "--yes")
    alembic(made.folder, "upgrade", "heads")
    return made


@pytest.mark.parametrize(
    "models", [ORDERS, SHARED, TO_METADATA, PARTLY_MAPPED], ids=["apart", "shared", "copy", "part"]
)
def test_nothing_of_ours_is_proposed(project: Consumer, empty: Engine, alembic: Run, models: str) -> None:
    """Whether the job table is in the consumer's MetaData or not, only what they dropped themselves is seen (M4)."""
    project.declare(models)
    assert CLEAN in alembic(project.folder, "check").output

    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE forgotten (x INTEGER)"))
    changed = alembic(project.folder, "check", code=1).output
    assert "forgotten" in changed
    assert "job" not in changed

    alembic(project.folder, "revision", "--autogenerate", "--head", "app@head", "-m", "x")
    [made] = (project.scripts / "versions").glob("*_x.py")
    assert "forgotten" in made.read_text()
    assert "job" not in made.read_text()


def test_in_a_process_of_its_own(project: Consumer, alembic_command: Run) -> None:
    """Alembic's own command loads the plugin of its own accord (M4)."""
    project.declare()
    assert CLEAN in alembic_command(project.folder, "check").output


def test_before_the_branch_is_up(make_consumer: Callable[..., Consumer], empty_url: str, alembic: Run) -> None:
    """A job table that is in the MetaData and not in the database is the branch's to make, not autogenerate's (M4)."""
    project = make_consumer(empty_url)
    project.declare(SHARED)
    proposed = alembic(project.folder, "check", code=1).output
    assert "orders" in proposed
    assert "job" not in proposed


@pytest.mark.parametrize("models", [ORDERS, IN_QUEUE], ids=["apart", "shared"])
@pytest.mark.parametrize("schemas", ["", "include_schemas=True, "], ids=["default", "all"])
def test_in_a_schema_of_its_own(
    make_consumer: Callable[..., Consumer],
    empty_pg_url: str,
    alembic: Run,
    brooq_sa_command: Run,
    models: str,
    schemas: str,
) -> None:
    """In a schema of its own and under another name it is left alone as well, with include_schemas or without (M4)."""
    project = make_consumer(empty_pg_url)
    project.revise_orders()
    brooq_sa_command(project.folder, "alembic", "init", "--yes", "--schema", "queue", "--table", "background")
    alembic(project.folder, "upgrade", "heads")
    project.declare(models)
    project.edit(project.scripts / "env.py", "connection=connection, ", f"connection=connection, {schemas}")
    assert CLEAN in alembic(project.folder, "check").output


@pytest.mark.parametrize("schema", [None, "queue"])
def test_tables_of_our_own_command(
    make_consumer: Callable[..., Consumer], empty_pg_url: str, alembic: Run, schema: str | None
) -> None:
    """Tables that `brooq-sa migrate` made, of any name, are known by the version table beside them (M4)."""
    engine = create_engine(empty_pg_url)
    migrations.upgrade(engine, table="nightly", schema=schema)
    engine.dispose()
    project = make_consumer(empty_pg_url)
    project.revise_orders()
    alembic(project.folder, "upgrade", "heads")
    project.declare()
    project.edit(project.scripts / "env.py", "connection=connection, ", "connection=connection, include_schemas=True, ")
    assert CLEAN in alembic(project.folder, "check").output


def test_somebody_elses_job_table(
    make_consumer: Callable[..., Consumer], empty: Engine, empty_url: str, alembic: Run
) -> None:
    """A table `job` that only has the name is as visible as any other, where brooq-sa is merely installed (M4)."""
    project = make_consumer(empty_url)
    project.declare("import sqlalchemy as sa\nmetadata = sa.MetaData()")
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job (title TEXT)"))
        connection.execute(text("CREATE TABLE job_worker (x TEXT)"))
    proposed = alembic(project.folder, "check", code=1).output
    assert "'job'" in proposed
    assert "'job_worker'" in proposed


def test_it_can_be_turned_off(project: Consumer, alembic: Run) -> None:
    """Like any of Alembic's plugins it can be left out by name (M4)."""
    project.declare()
    out = 'autogenerate_plugins=["alembic.autogenerate.*", "~alembic.autogenerate.brooq_sa"], '
    project.edit(project.scripts / "env.py", "connection=connection, ", f"connection=connection, {out}")
    assert "'job'" in alembic(project.folder, "check", code=1).output


def test_importing_alembic_costs_next_to_nothing() -> None:
    """Where Alembic is imported, the plugin comes along and brings none of our modules (I9)."""
    source = """
import sys, alembic.command
print(sorted(name for name in sys.modules if name.startswith("brooq_sa")))
"""
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "['brooq_sa', 'brooq_sa.adoption', 'brooq_sa.adoption.plugin']"


def test_importing_us_imports_no_alembic() -> None:
    """Enqueuing and working import neither Alembic nor what goes with it (I9)."""
    source = """
import sys, brooq_sa
for name in brooq_sa.__all__:
    getattr(brooq_sa, name)
print([name for name in sys.modules if name.partition(".")[0] == "alembic" or "adoption" in name])
"""
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
