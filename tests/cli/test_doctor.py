"""``brooq-sa doctor`` tells what is wrong, and its exit code whether anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url, text

from brooq_sa import migrations
from brooq_sa.doctor import CHECKS
from databases import Database


def test_a_file_that_is_well(brooq: Any, sqlite_url: str) -> None:
    """Where all is well each check says so in a line, and the exit code is 0."""
    result = brooq("doctor", "--url", sqlite_url)
    assert result.exit_code == 0, result.output
    told = [check for check in CHECKS if "sqlite" in check.databases]
    assert len(result.stdout.splitlines()) == len(told) + 1
    assert result.stdout.splitlines()[-1] == f"{len(told)} ok, 0 note, 0 warning, 0 fault"
    assert brooq("doctor", "--quiet", "--url", sqlite_url).stdout.splitlines() == [result.stdout.splitlines()[-1]]


def test_a_fresh_queue_is_well(call: Any, make_pg_database: Any, tmp_path: Path) -> None:
    """What `migrate upgrade` has just made is in order, on both databases; that of the tests has no autovacuum."""
    for url in (make_pg_database(), f"sqlite:///{tmp_path / 'fresh.db'}"):
        assert call("migrate", "upgrade", "--url", url).exit_code == 0
        findings = json.loads(call("doctor", "--quiet", "--json", "--url", url).stdout)["findings"]
        assert [each["what"] for each in findings if each["check"] != "autovacuum"] == []


def test_nothing_is_changed(brooq: Any, sqlite: Database, tmp_path: Path) -> None:
    """A look leaves a file's journal mode as it is, and tells of it."""
    plain = create_engine(sqlite.url)
    with plain.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(text("PRAGMA journal_mode = DELETE")).scalar() == "delete"
        result = brooq("doctor", "--url", sqlite.url)
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "delete"
    plain.dispose()
    assert (result.exit_code, "warning  journal: The file's journal mode is delete" in result.stdout) == (3, True)


def test_findings(brooq: Any, put: Any) -> None:
    """A finding has what, why and what to do; warnings and faults are exit code 3, on both databases."""
    put("email.send")
    result = brooq("doctor")
    assert result.exit_code == 3
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("fault    unserved: Nobody serves email."))
    assert lines[at + 1].startswith("         These jobs wait, unharmed")
    assert lines[at + 2].startswith("         To do: Start a worker")


def test_a_document(brooq: Any, put: Any, db: Database) -> None:
    """With --json, one object has every finding; each check that applies is among them."""
    put("email.send")
    document = json.loads(brooq("doctor", "--json").stdout)
    assert document["worst"] == "fault"
    assert {each["check"] for each in document["findings"]} == {
        check.name for check in CHECKS if db.name in check.databases
    }
    assert document["findings"][0].keys() == {"check", "level", "what", "why", "cure", "facts"}


def test_a_stranger(brooq: Any, pg: Database) -> None:
    """A role without any rights gets through all checks, and hears what it could not see."""
    pg.execute("CREATE ROLE doctor_nobody LOGIN")
    try:
        url = make_url(pg.url).set(username="doctor_nobody").render_as_string(hide_password=False)
        result = brooq("doctor", "--url", url)
    finally:
        pg.execute("DROP ROLE doctor_nobody")
    assert result.exit_code == 3, result.output
    assert "grants: Role doctor_nobody may not look" in result.stdout
    assert "This could not be seen: permission denied" in result.stdout


def test_no_database(brooq: Any, tmp_path: Path) -> None:
    """A database that is out of reach is exit code 1, and one line."""
    result = brooq("doctor", "--url", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")
    assert result.exit_code == 1
    assert result.stdout == ""


def test_a_schema_of_its_own(brooq: Any, make_pg_database: Any) -> None:
    """A table elsewhere than in the default schema is examined there."""
    url = make_pg_database()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA jobs"))
    migrations.upgrade(engine, schema="jobs")
    engine.dispose()
    document = json.loads(brooq("doctor", "--url", url, "--schema", "jobs", "--json").stdout)
    told = {each["check"]: (each["level"], each["what"]) for each in document["findings"]}
    server = "Autovacuum is switched off on this server."
    assert {check: said for check, said in told.items() if said[0] != "ok"} == {"autovacuum": ("warning", server)}
    missing = json.loads(brooq("doctor", "--url", url, "--json").stdout)
    assert "There is no table job." in {each["what"] for each in missing["findings"]}
