"""``brooq-sa pause`` and ``resume``, and who shows it."""

from __future__ import annotations

import re
from typing import Any

import pytest

HOSTILE = "\x1b[2J [red]x[/red]"


def test_pause_and_resume_say_what_they_did(brooq: Any) -> None:
    """Each topic has a line; doing it again is no error."""
    assert brooq("pause", "a", "b.c").output == "a  paused\nb.c  paused\n"
    assert brooq.documents("pause", "a") == [{"topic": "a", "result": "paused already"}]
    assert brooq.documents("resume", "a", "z") == [
        {"topic": "a", "result": "resumed"},
        {"topic": "z", "result": "not paused"},
    ]
    assert brooq("resume", "b.c").exit_code == 0


def test_a_paused_topic_is_left_alone(brooq: Any, put: Any) -> None:
    """The jobs of a paused topic are taken by nobody until it is resumed."""
    put("a")
    brooq("pause", "a")
    assert brooq("consume", "a", "--exec", "true", "--stop-when-empty").exit_code == 0
    assert [row["state"] for row in brooq.documents("jobs")] == ["pending"]
    brooq("resume", "a")
    assert brooq("consume", "a", "--exec", "true", "--stop-when-empty").exit_code == 0
    assert [row["state"] for row in brooq.documents("jobs")] == ["done"]


def test_stats_and_jobs_show_it(brooq: Any, put: Any) -> None:
    """stats names each paused topic, be it without jobs, with who, since when and why; jobs marks what waits for it."""
    put("a")
    put("b")
    brooq("pause", "a", "without.jobs", "--reason", f"the mail server is down {HOSTILE}")
    [stats] = brooq.documents("stats")
    by_topic = {each["topic"]: each["paused"] for each in stats["topics"]}
    assert by_topic.keys() == {"a", "b", "without.jobs"}
    assert by_topic["b"] is None
    assert by_topic["a"]["reason"] == f"the mail server is down {HOSTILE}"
    assert "@" in by_topic["a"]["paused_by"]
    output = brooq("stats").stdout
    assert re.search(r"^paused +since +by +reason *$", output, re.MULTILINE)
    assert re.search(r"^without\.jobs +\S.* the mail server is down", output, re.MULTILINE)
    assert re.findall(r"[^\n\x20-\x7e]", output) == []
    lines = {line.split()[1]: line for line in brooq("jobs").stdout.splitlines()[1:]}
    assert "paused" in lines["a"]
    assert "paused" not in lines["b"]


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_topic_that_is_none(brooq: Any, command: str) -> None:
    """What is no topic is wrong usage, and then nothing is paused."""
    assert brooq(command).exit_code == 2
    assert brooq(command, "fine", "Not A Topic").exit_code == 2
    assert brooq.documents("stats")[0]["topics"] == []
