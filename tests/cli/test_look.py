"""``brooq-sa jobs``, ``show`` and ``stats`` (W1)."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest

from brooq_sa import RawJob, enqueue
from brooq_sa.states import State
from brooq_sa.store import JobStore, Outcome
from databases import JOB, Database

STORE = JobStore(JOB)
HOSTILE = "\x1b[2J\x1b]0;owned\x07 [red]x[/red] \u202e"


@pytest.fixture
def jobs(db: Database) -> dict[str, str]:
    """A job in each state; their ids by state."""
    with db.engine.begin() as connection:
        ids = {
            str(state): enqueue(connection, RawJob(f"of.{state}", {"n": 1}), key=f"key-{state}").id for state in State
        }
        topics = [f"of.{state}" for state in State if state is not State.PENDING]
        claimed = STORE.claim(connection, dict.fromkeys(topics, 1), room=9, worker="w-1", lease=timedelta(minutes=5))
        outcomes = [
            Outcome(job.id, 1, State(job.topic[3:]), error=f"ValueError: {HOSTILE}\n  File x", delay=timedelta(hours=2))
            for job in claimed
            if job.topic != "of.processing"
        ]
        STORE.settle(connection, "w-1", outcomes)
    return {state: str(job_id) for state, job_id in ids.items()}


def test_lists_as_lines(brooq: Any, jobs: dict[str, str]) -> None:
    """Each job is a line with its whole id, and what matters about it in words."""
    result = brooq("jobs")
    assert result.exit_code == 0, result.output
    lines = {line.split()[2]: line for line in result.stdout.splitlines()[1:]}
    assert {state: line.split()[0] for state, line in lines.items()} == jobs
    assert " w-1 " in f"{lines['processing']} "
    assert re.search(r"in (2 h|1 h 59 min)", lines["failed"])
    assert "ValueError: " in lines["dead"]


@pytest.mark.parametrize(
    "filters,expected",
    [
        (("--state", "dead"), {"dead"}),
        (("--state", "dead", "--state", "failed"), {"dead", "failed"}),
        (("--topic", "of.done", "--topic", "of.dead"), {"done", "dead"}),
        (("--key", "key-canceled"), {"canceled"}),
        (("--worker", "w-1"), {"processing"}),
        (("--error", "ValueError", "--state", "dead"), {"dead"}),
        (("--error", "%"), set()),
        (("--topic", "of.done", "--state", "dead"), set()),
    ],
)
def test_filters(brooq: Any, jobs: dict[str, str], filters: tuple[str, ...], expected: set[str]) -> None:
    """Jobs are listed that fit every filter; text in an error is taken literally."""
    assert {row["state"] for row in brooq.documents("jobs", *filters)} == expected


def test_limit(brooq: Any, jobs: dict[str, str]) -> None:
    """--limit is how many at most."""
    assert len(brooq.documents("jobs", "--limit", "2")) == 2
    assert brooq("jobs", "--limit", "0").exit_code == 2


def test_documents_are_the_rows(brooq: Any, db: Database, jobs: dict[str, str]) -> None:
    """With --json, each job is an object of the table's columns, instants in ISO 8601 with an offset."""
    rows = {row["id"]: row for row in brooq.documents("jobs")}
    for row in db.rows():
        shown = rows[str(row["id"])]
        assert shown.keys() == row.keys()
        assert shown["payload"] == row["payload"]
        assert shown["created_at"] == row["created_at"].isoformat()
    assert brooq.documents("show", jobs["dead"]) == [rows[jobs["dead"]]]


@pytest.mark.parametrize(
    "arguments", [("jobs",), ("jobs", "--json"), ("stats",), ("show", "dead"), ("show", "--json", "dead")]
)
def test_no_control_character_gets_out(brooq: Any, jobs: dict[str, str], arguments: tuple[str, ...]) -> None:
    """What a job brought along cannot command the terminal: it is spelled out, markup and all."""
    result = brooq(*(jobs.get(argument, argument) for argument in arguments))
    assert result.exit_code == 0
    assert re.findall(r"[^\n\x20-\x7e]", result.stdout) == []
    if "stats" not in arguments:
        assert "[red]x[/red]" in result.stdout


def test_hostile_payload_and_worker(brooq: Any, db: Database, put: Any) -> None:
    """The same holds for payloads, keys and names of workers."""
    job_id = put("a", {"x": HOSTILE, HOSTILE: 1}, key=HOSTILE).id
    db.execute("UPDATE job SET locked_by = :name WHERE topic = 'a'", name=HOSTILE)
    for arguments in (["jobs"], ["show", str(job_id)], ["jobs", "--json"], ["stats"]):
        assert re.findall(r"[^\n\x20-\x7e]", brooq(*arguments).stdout) == []
    assert brooq.documents("show", str(job_id))[0]["payload"] == {"x": HOSTILE, HOSTILE: 1}


def test_shows_the_whole_row(brooq: Any, jobs: dict[str, str]) -> None:
    """show prints every column, the payload over lines, and the last error in full."""
    output = brooq("show", jobs["dead"]).stdout
    assert re.search(rf"^id +{jobs['dead']}$", output, re.MULTILINE)
    assert re.search(r"^state +dead$", output, re.MULTILINE)
    assert re.search(r"^created_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC, ", output, re.MULTILINE)
    assert 'payload\n  {\n    "n": 1\n  }\n' in output
    assert re.search(r"^last_error\n  ValueError: .*\n    File x$", output, re.MULTILINE)


def test_show_of_nothing(brooq: Any) -> None:
    """An id that is not there is exit code 1; what is no id is wrong usage."""
    result = brooq("show", str(uuid.uuid4()))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: There is no job ")
    assert brooq("show", "17").exit_code == 2


def test_no_jobs(brooq: Any) -> None:
    """Nothing to list is no error, and prints nothing to standard output."""
    for command in ("jobs", "stats"):
        result = brooq(command)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr
    assert brooq.documents("jobs") == []
    assert brooq.documents("stats") == [{"topics": [], "workers": [], "suspects": []}]


def test_stats(brooq: Any, db: Database, put: Any) -> None:
    """stats counts each topic's jobs by state, says how long the oldest due one has waited, and who holds what."""
    for _ in range(3):
        put("a.b")
    put("a.b", delay="1h")
    put("c")
    db.shift_clock(timedelta(minutes=10))
    with db.engine.begin() as connection:
        STORE.claim(connection, {"a.b": 1}, room=1, worker="w-1", lease=timedelta(minutes=5))
        STORE.claim(connection, {"a.b": 1}, room=1, worker="w-2", lease=timedelta(0))
    [answer] = brooq.documents("stats")
    assert [topic["topic"] for topic in answer["topics"]] == ["a.b", "c"]
    about = answer["topics"][0]
    assert about["states"] == {"pending": 2, "processing": 2, "failed": 0, "done": 0, "dead": 0, "canceled": 0}
    assert about["due"] == 1
    assert 600 <= about["oldest_due_seconds"] < 900
    assert answer["workers"] == [
        {"worker": "w-1", "jobs": 1, "lapsed": 0},
        {"worker": "w-2", "jobs": 1, "lapsed": 1},
    ]
    output = [line.rstrip() for line in brooq("stats").stdout.splitlines()]
    assert output[0].split() == ["topic", *map(str, State), "due", "oldest", "due"]
    assert output[1].split() == ["a.b", "2", "2", "0", "0", "0", "0", "1", "10", "min"]
    assert output[4:] == ["worker  jobs  lapsed", "w-1        1       0", "w-2        1       1"]


def test_cancel_and_retry(brooq: Any, jobs: dict[str, str], db: Database) -> None:
    """cancel and retry say what they did to each job, and by the exit code whether all went (T5, I3)."""
    result = brooq("cancel", jobs["pending"], jobs["processing"])
    assert (result.exit_code, result.stdout) == (
        0,
        f"{jobs['pending']}  canceled\n{jobs['processing']}  told to stop\n",
    )
    nobody = str(uuid.uuid4())
    result = brooq("cancel", jobs["done"], nobody, jobs["failed"])
    assert (result.exit_code, result.stdout) == (
        1,
        f"{jobs['done']}  too late\n{nobody}  not found\n{jobs['failed']}  canceled\n",
    )
    assert {str(row["id"]) for row in db.rows(state="canceled")} == {
        jobs[state] for state in ("pending", "processing", "failed", "canceled")
    }

    assert brooq.documents("retry", jobs["dead"], jobs["pending"]) == [
        {"id": jobs["dead"], "result": "retried"},
        {"id": jobs["pending"], "result": "retried"},
    ]
    result = brooq("retry", jobs["done"], jobs["dead"], nobody, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["result"] for line in result.stdout.splitlines()] == ["refused", "not needed", "not found"]
    assert db.row(uuid.UUID(jobs["dead"]))["attempts"] == 1


def test_ids_are_required(brooq: Any) -> None:
    """cancel and retry without an id, or with what is none, are wrong usage."""
    for command in ("cancel", "retry"):
        assert brooq(command).exit_code == 2
        assert brooq(command, "17").exit_code == 2


def test_stats_names_suspects(brooq: Any, db: Database, put: Any) -> None:
    """Jobs whose workers crashed more than once are named, most crashes first, while they are active (I7)."""
    often, twice, once, over = (put("reports", number).id for number in range(4))
    for job_id, crashes in ((often, 5), (twice, 2), (once, 1), (over, 9)):
        state = "done" if job_id == over else "pending"
        number = job_id.hex if db.name == "sqlite" else str(job_id)
        db.execute(f"UPDATE job SET crashes = {crashes}, attempts = {crashes}, state = '{state}' WHERE id = '{number}'")
    [document] = brooq.documents("stats")
    assert [(each["id"], each["crashes"]) for each in document["suspects"]] == [(str(often), 5), (str(twice), 2)]
    shown = brooq("stats").stdout
    assert str(often) in shown
    assert str(once) not in shown


def test_progress_is_shown(brooq: Any, db: Database, put: Any) -> None:
    """`show` has how far the last attempt has come, in words; the documents, as the row has it; `top`, the share."""
    job_id = put("email.send").id
    column = {"attempt": 1, "done": 30, "total": 40, "note": "\x1b[2J reading"}
    as_text = {"progress": json.dumps(column)}
    db.execute(
        "UPDATE job SET state = 'processing', attempts = 1, locked_by = 'w-1', locked_until = available_at,"
        f" progress = {'CAST(:progress AS JSONB)' if db.name == 'postgresql' else ':progress'}",
        **as_text,
    )
    assert re.search(
        r"^progress +30 of 40 \(75%\): \\x1b\[2J reading$", brooq("show", str(job_id)).stdout, re.MULTILINE
    )
    assert brooq.documents("show", str(job_id))[0]["progress"] == column
    assert re.search(rf"^  {job_id}  email.send .* 75%  w-1", brooq("top", "--once").stdout, re.MULTILINE)
    assert brooq.documents("top")[0]["running"][0]["progress"]["done"] == 30
    db.execute("UPDATE job SET attempts = 2")
    assert re.search(r"^progress$", brooq("show", str(job_id)).stdout, re.MULTILINE)
