"""``brooq-sa migrate``: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, inspect, text

from brooq_sa import migrations
from brooq_sa.cli.database import blocking_url, normalized_url
from brooq_sa.cli.migrate import migrate


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no .env of whoever runs the tests


def run(*arguments: str, url: str | None = None, answer: str | None = None) -> Result:
    return CliRunner().invoke(migrate, arguments, env={"DATABASE_URL": url}, input=answer)


def tables(engine: Engine) -> list[str]:
    return sorted(inspect(engine).get_table_names())


def test_up_current_down(empty: Engine, empty_url: str) -> None:
    """Upgrade, current and downgrade say what they did, on a plain URL from the environment (M1)."""
    url = empty_url.replace("+psycopg", "")
    assert run("upgrade", url=url).output == "job: brooq_0001, was none\n"
    assert tables(empty) == ["job", "job_brooq_version", "job_pause", "job_worker"]
    assert run("upgrade", url=url).output == "job: brooq_0001 already\n"
    assert run("current", url=url).output == "job: brooq_0001, newest is brooq_0001\n"
    assert run("downgrade", "base", "--yes", url=url).output == "job: none, was brooq_0001\n"
    assert tables(empty) == []


def test_current_as_json(empty_url: str) -> None:
    """With --json the answer is an object, and with --check the exit code tells old from new."""
    before = run("current", "--json", "--check", "--table", "nightly", "--url", empty_url)
    assert json.loads(before.stdout) == {"table": "nightly", "schema": None, "revision": None, "head": "brooq_0001"}
    assert before.exit_code == 3
    run("upgrade", "--table", "nightly", "--url", empty_url)
    after = run("current", "--json", "--check", "--table", "nightly", "--url", empty_url)
    assert json.loads(after.stdout)["revision"] == migrations.head()
    assert after.exit_code == 0


def test_schema_option(empty_pg_url: str) -> None:
    """--schema puts the table there (M3)."""
    assert run("upgrade", "--schema", "queue", "--url", empty_pg_url).exit_code == 0
    assert "brooq_0001," in run("current", "--schema", "queue", "--url", empty_pg_url).output
    assert "none," in run("current", "--url", empty_pg_url).output


def test_downgrade_asks(empty: Engine, empty_url: str) -> None:
    """Without --yes nothing is dropped before someone has agreed."""
    run("upgrade", url=empty_url)
    refused = run("downgrade", "base", url=empty_url, answer="n\n")
    assert refused.exit_code == 1
    assert "Jobs may be lost" in refused.output
    assert "job" in tables(empty)
    assert run("downgrade", "base", url=empty_url, answer="y\n").exit_code == 0
    assert tables(empty) == []


@pytest.mark.parametrize("arguments", [("upgrade", "--sql"), ("downgrade", "base", "--sql")])
def test_sql_is_printed_and_not_run(empty: Engine, empty_url: str, arguments: tuple[str, ...]) -> None:
    """--sql prints a script and leaves the database alone (M1)."""
    printed = run(*arguments, url=empty_url)
    assert printed.exit_code == 0
    assert 'TABLE "job"' in printed.output
    assert tables(empty) == []


def test_foreign_table(empty: Engine, empty_url: str) -> None:
    """The command refuses a foreign table in one line that names the option (M3)."""
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job (title TEXT)"))
    refused = run("upgrade", url=empty_url)
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: Table 'job' exists already")
    assert "--table" in refused.output


def test_current_knows_a_table_that_it_did_not_make(empty: Engine, empty_url: str) -> None:
    """A table made under Alembic is not reported as absent."""
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE job (title TEXT)"))
    shown = run("current", url=empty_url)
    assert shown.stdout == "job: none, newest is brooq_0001\n"
    assert "did not make it" in shown.stderr


@pytest.mark.parametrize(
    "url, code, why",
    [
        (None, 2, "DATABASE_URL"),
        ("u:secret", 2, "Give one such as"),
        ("nonsense://u:secret@host/name", 2, "nonsense"),
        ("postgresql://u:secret@127.0.0.1:1/name", 1, "u:***@127.0.0.1:1/name"),
    ],
)
def test_unusable_url(url: str | None, code: int, why: str) -> None:
    """A URL that is missing, no URL, of no known database or of no server: each is told, without its password."""
    failed = run("upgrade", url=url)
    assert failed.exit_code == code
    assert why in failed.output
    assert "secret" not in failed.output


def test_url_from_the_env_file(tmp_path: Path) -> None:
    """DATABASE_URL may stand in a file .env of the current folder (U3)."""
    (tmp_path / ".env").write_text("DATABASE_URL=sqlite:///from_env_file.db\n", encoding="utf-8")
    assert run("upgrade").exit_code == 0
    assert (tmp_path / "from_env_file.db").exists()


def test_looking_makes_no_file(tmp_path: Path) -> None:
    """Neither current nor downgrade makes the SQLite file whose name was misspelt."""
    url = f"sqlite:///{tmp_path / 'mispelt.db'}"
    assert run("current", "--check", url=url).exit_code == 3
    assert run("downgrade", "base", url=url).output == "job: none already\n"
    assert not (tmp_path / "mispelt.db").exists()


def test_help_lists_the_exit_codes() -> None:
    """The help of each command says what its exit codes mean."""
    for command in ("upgrade", "downgrade", "current"):
        shown = run(command, "--help").output
        assert "Exit codes" in shown
        assert "wrong usage" in shown


def test_unwritable_file(tmp_path: Path) -> None:
    """A SQLite file that cannot be made is an error that names it."""
    failed = run("upgrade", url=f"sqlite:///{tmp_path / 'absent' / 'jobs.db'}")
    assert failed.exit_code == 1
    assert "jobs.db: unable to open database file" in failed.output


@pytest.mark.parametrize(
    "text, driver",
    [
        ("postgres://u@h/d", "postgresql+psycopg"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg2://u@h/d", "postgresql+psycopg2"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg"),
        ("sqlite:///jobs.db", "sqlite"),
    ],
)
def test_plain_postgresql_urls_choose_psycopg(text: str, driver: str) -> None:
    """Plain URLs get psycopg, with all else kept; a URL that names a driver keeps it."""
    url = normalized_url(text + "?a=b")
    assert url.drivername == driver
    assert url.render_as_string(hide_password=False).partition(":")[2] == text.partition(":")[2] + "?a=b"


def test_blocking_drivers() -> None:
    """A command on an async application's URL uses a driver that needs no event loop."""
    assert blocking_url("postgresql+asyncpg://u@h/d").drivername == "postgresql+psycopg"
    assert blocking_url("sqlite+aiosqlite:///jobs.db").drivername == "sqlite"
    assert blocking_url("postgres://u@h/d").drivername == "postgresql+psycopg"
