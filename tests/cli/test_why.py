"""``brooq-sa why`` tells what a job waits for; the answers themselves are shown in tests/conformance."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

HOSTILE = "\x1b[2J [red]x[/red]"
JOBS = """
from brooq_sa import JobBase

class AppJob(JobBase): ...

class Send(AppJob, topic="email.send"):
    number: int
"""


def test_a_sentence_and_notes(brooq: Any, put: Any) -> None:
    """The sentence is the first line, each note another, and the last one says what to do."""
    job_id = str(put("email.send", 1, delay="1h").id)
    result = brooq("why", job_id)
    assert result.exit_code == 0
    first, second, third = result.stdout.splitlines()
    assert re.fullmatch(r"It is not due yet: due in (1h|59m\d+s), at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", first)
    assert "No live worker serves its topic email.send." in second
    assert third == f"To do: None, if that was meant; `brooq-sa run-now {job_id}` does not wait."


def test_a_document(brooq: Any, put: Any) -> None:
    """With --json, the answer is one object."""
    job_id = str(put("email.send").id)
    [document] = brooq.documents("why", job_id)
    assert document.keys() == {"id", "reason", "sentence", "notes", "facts", "cure"}
    assert (document["id"], document["reason"]) == (job_id, "no worker serves its topic")
    assert document["facts"]["topic"] == "email.send"


def test_no_such_job(brooq: Any) -> None:
    """An id that no job has is told on standard output all the same, and is exit code 1."""
    result = brooq("why", str(uuid.uuid4()))
    assert (result.exit_code, result.stdout.startswith("There is no job ")) == (1, True)
    assert brooq("why", "17").exit_code == 2


def test_with_a_base(brooq: Any, put: Any, tmp_path: Path) -> None:
    """With --base, the payload is read with its class."""
    (tmp_path / "why_jobs.py").write_text(JOBS, encoding="utf-8")
    job_id = str(put("email.send", {"number": "seven"}).id)
    assert "An attempt will fail: PayloadError" not in brooq("why", job_id).output
    assert "An attempt will fail: PayloadError" in brooq("why", job_id, "--base", "why_jobs:AppJob").output
    assert brooq("why", job_id, "--base", "why_jobs:AppJob", "--table", "job").exit_code == 2


def test_no_control_character_gets_out(brooq: Any, db: Any, put: Any) -> None:
    """What a job or a worker brought along cannot command the terminal."""
    job_id = str(put("email.send").id)
    db.execute("UPDATE job SET state = 'dead', last_error = :error", error=HOSTILE)
    output = brooq("why", job_id).stdout
    assert "[red]x[/red]" in output
    assert re.findall(r"[^\n\x20-\x7e]", output) == []
