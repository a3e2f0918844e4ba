"""``brooq-sa enqueue``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from databases import Database

JOBS = """
from brooq_sa import JobBase

class AppJob(JobBase):
    pass

class Send(AppJob, topic="email.send", priority=7):
    to: str
"""


@pytest.fixture
def _jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    Path("own_enqueue.py").write_text(JOBS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_enqueue", None)


def test_puts_a_job(brooq: Any, db: Database) -> None:
    """The job is in the table, with its options, and its id is printed."""
    result = brooq("enqueue", "email.send", '{"to": "a@b.c"}', "--key", "k", "--priority", "-3", "--delay", "1h")
    row = db.row()
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{row['id']}  created\n"
    assert (row["topic"], row["payload"], row["priority"]) == ("email.send", {"to": "a@b.c"}, -3)
    assert row["available_at"] - row["created_at"] >= timedelta(minutes=59)


def test_key_that_is_taken(brooq: Any, db: Database) -> None:
    """A key that is taken gives the id of the job that has it, and is no error (I8)."""
    [first] = brooq.documents("enqueue", "a", "1", "--key", "k")
    [second] = brooq.documents("enqueue", "a", "2", "--key", "k")
    assert first == {"id": str(db.row()["id"]), "created": True}
    assert second == {"id": first["id"], "created": False}
    assert brooq("enqueue", "a", "3", "--key", "k").stdout == f"{first['id']}  has that key already\n"


def test_payload_from_standard_input(brooq: Any, db: Database) -> None:
    """- takes JSON from standard input."""
    assert brooq("enqueue", "a", "-", stdin='{"name": "naïve"}').exit_code == 0
    assert db.row()["payload"] == {"name": "naïve"}


def test_bytes(brooq: Any, db: Database) -> None:
    """--bytes takes the very bytes, from standard input or the argument (S3)."""
    assert brooq("enqueue", "a", "-", "--bytes", stdin=b"\x00\xff\n").exit_code == 0
    assert brooq("enqueue", "b", "text", "--bytes").exit_code == 0
    assert db.rows(topic="a")[0]["payload"] == {"$bytes": "AP8K"}
    assert db.rows(topic="b")[0]["payload"] == {"$bytes": "dGV4dA=="}


def test_available_at(brooq: Any, db: Database) -> None:
    """An instant with an offset is taken; a naive one is refused (I13)."""
    assert brooq("enqueue", "a", "1", "--available-at", "2040-01-31T15:00:00+05:30").exit_code == 0
    assert db.row()["available_at"] == datetime(2040, 1, 31, 9, 30, tzinfo=UTC)
    naive = brooq("enqueue", "a", "1", "--available-at", "2040-01-31T15:00:00")
    assert naive.exit_code == 2
    assert "naive" in naive.stderr


@pytest.mark.usefixtures("_jobs")
def test_base_checks_the_payload(brooq: Any, db: Database) -> None:
    """With --base the payload is checked against the job class, whose priority holds."""
    base = ("--base", "own_enqueue:AppJob")
    assert brooq("enqueue", "email.send", '{"to": "a@b.c"}', *base).exit_code == 0
    row = db.row()
    assert (row["payload"]["to"], row["priority"]) == ("a@b.c", 7)

    wrong = brooq("enqueue", "email.send", '{"to": 5}', *base)
    assert wrong.exit_code == 2
    assert wrong.stderr == "Error: Payload of topic 'email.send': Expected `str`, got `int` - at `$.to`\n"

    unknown = brooq("enqueue", "email.sent", "{}", *base)
    assert unknown.exit_code == 2
    assert "no job class of topic 'email.sent'. Its topics: email.send." in unknown.stderr

    both = brooq("enqueue", "email.send", '{"to": "a"}', *base, "--table", "job")
    assert both.exit_code == 2
    assert len(db.rows()) == 1


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("a", "nope"), "not JSON: Expecting value at line 1, column 1"),
        (("a", "[1,\n2"), "line 2, column 2"),
        (("a", '{"x": NaN}'), "nan is not a number that JSON has - at `$.x`"),
        (("a", "1e999"), "inf is not a number"),
        (("a", '"\\u0000"'), "NUL"),
        (("a", "9" * 30), "an integer beyond 64 bits"),
        (("a", "9" * 5000), "could read"),
        (("a", "[" * 20_000 + "]" * 20_000), "nobody could read"),
        (("Email.Send", "1"), "Topic 'Email.Send' is not lowercase"),
        (("a", "1", "--delay", "5"), "delay: Duration '5' has no unit"),
        (("a", "1", "--delay", "1h", "--available-at", "2040-01-31T15:00:00Z"), "both given"),
        (("a", "1", "--available-at", "tomorrow"), "'tomorrow' is no instant"),
        (("a", "1", "--priority", "40000"), "priority is 40000"),
        (("a", "1", "--priority", "high"), "'high' is not a valid integer"),
        (("a",), "Missing argument"),
    ],
)
def test_what_breaks_a_rule_is_wrong_usage(brooq: Any, db: Database, arguments: tuple[str, ...], message: str) -> None:
    """A payload or option that breaks its rule is told in a sentence, with exit code 2; nothing is put."""
    result = brooq("enqueue", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert db.rows() == []


def test_standard_input_that_is_not_text(brooq: Any) -> None:
    """JSON on standard input must be UTF-8."""
    result = brooq("enqueue", "a", "-", stdin=b'"\xff"')
    assert result.exit_code == 2
    assert "Standard input is not UTF-8: invalid start byte at byte 1." in result.stderr


def test_own_table(call: Any, tmp_path: Path) -> None:
    """--table says which job table; one that is missing is told apart, with the way to make it (M3)."""
    url = f"sqlite:///{tmp_path}/own.db"
    assert call("migrate", "upgrade", "--url", url, "--table", "nightly").exit_code == 0
    assert call("enqueue", "a", "1", "--url", url, "--table", "nightly").exit_code == 0
    result = call("enqueue", "a", "1", "--url", url)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The database has no table 'job'.")
    assert "migrate" in result.stderr
    shown = json.loads(call("jobs", "--url", url, "--table", "nightly", "--json").stdout)
    assert uuid.UUID(shown["id"]).version == 7
