"""Where a revision reads the table's name and schema."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from brooq_sa import migrations
from brooq_sa.migrations.options import MigrationError, Target, target


def read(config: Config) -> Target:
    """What a revision that runs under this configuration would see."""
    environment = EnvironmentContext(config, ScriptDirectory(migrations.script_location()))
    environment.configure(dialect_name="sqlite")
    return target(environment.get_context())


def config(folder: Path, *, ini: str = "", toml: str = "", x: tuple[str, ...] = (), **attributes: str) -> Config:
    ini_file, toml_file = folder / "alembic.ini", folder / "pyproject.toml"
    ini_file.write_text(f"[alembic]\n{ini}\n", encoding="utf-8")
    toml_file.write_text(f"[tool.alembic]\n{toml}\n", encoding="utf-8")
    made = Config(str(ini_file), toml_file=str(toml_file), cmd_opts=Namespace(x=list(x)))
    made.attributes.update({f"brooq.{name}": value for name, value in attributes.items()})
    return made


def test_default_is_job(tmp_path: Path) -> None:
    """Without options the table is `job` in the connection's own schema (M3)."""
    assert read(config(tmp_path)) == Target("job", None)
    assert target(MigrationContext.configure(dialect_name="sqlite")) == Target("job", None)


def test_each_place_is_read(tmp_path: Path) -> None:
    """The ini file, pyproject.toml, the command line and Python each name the table and its schema (M3)."""
    expected = Target("t", "s")
    assert read(config(tmp_path, ini="brooq_table = t\nbrooq_schema = s")) == expected
    assert read(config(tmp_path, toml='brooq_table = "t"\nbrooq_schema = "s"')) == expected
    assert read(config(tmp_path, x=("brooq_table=t", "brooq_schema=s"))) == expected
    assert read(config(tmp_path, table="t", schema="s")) == expected


def test_python_wins_over_command_line_over_file(tmp_path: Path) -> None:
    """Of several places the nearest to the call counts (M3)."""
    ini, toml, x = "brooq_table = ini", 'brooq_table = "toml"', ("brooq_table=x",)
    assert read(config(tmp_path, ini=ini, toml=toml)).table == "ini"
    assert read(config(tmp_path, ini=ini, toml=toml, x=x)).table == "x"
    assert read(config(tmp_path, ini=ini, toml=toml, x=x, table="python")).table == "python"


def test_empty_counts_as_none(tmp_path: Path) -> None:
    """An empty value is no value (M3)."""
    given = config(tmp_path, ini="brooq_table = t\nbrooq_schema =", x=("brooq_table=", "brooq_schema="))
    assert read(given) == Target("t", None)


def test_misspelt_option_is_refused(tmp_path: Path) -> None:
    """A misspelt option does not build the table in the wrong place (M3)."""
    with pytest.raises(MigrationError, match=r"brooq_shema.*brooq_table, brooq_schema, brooq_database"):
        read(config(tmp_path, x=("brooq_shema=queue",)))
    assert read(config(tmp_path, x=("url=mine",))) == Target("job", None)
