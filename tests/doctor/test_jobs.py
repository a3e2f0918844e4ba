"""The doctor's checks of the jobs: each finds its condition on both databases, and nothing before it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from brooq_sa import RawJob, __version__, enqueue
from brooq_sa.doctor import Level
from brooq_sa.statements import presence
from brooq_sa.store import JobStore
from databases import JOB, Database


def levels(findings: Any) -> list[Level]:
    return [each.level for each in findings]


def announce(db: Database, *topics: str, version: str = __version__, slots: int = 2, name: str = "worker") -> None:
    """A live worker."""
    constant = {"its_id": name, "its_host": "host", "its_pid": 1, "its_version": version, "its_slots": slots}
    current = {"topics": list(topics), "running": 0, "believed": 60.0, "reaps_in": 5.0}
    with db.engine.begin() as connection:
        connection.execute(presence.announce(JOB, db.name), constant | current)


def put(db: Database, topic: str, **options: Any) -> None:
    with db.engine.begin() as connection:
        enqueue(connection, RawJob(topic, 1), **options)


def test_unserved_topics(check: Any, db: Database) -> None:
    """Due jobs that nobody serves: a fault with no worker at all, a warning with others; those not due are a note."""
    assert levels(check(db.engine, "unserved")) == [Level.OK]
    put(db, "mail")
    assert levels(check(db.engine, "unserved")) == [Level.FAULT]
    announce(db, "report")
    put(db, "later", delay="1h")
    due, later = check(db.engine, "unserved")
    assert (due.level, list(due.facts["topics"])) == (Level.WARNING, ["mail"])
    assert (later.level, later.facts["topics"]) == (Level.NOTE, ["later"])
    announce(db, "mail", "later")
    assert levels(check(db.engine, "unserved")) == [Level.OK]


def test_paused_topics(check: Any, db: Database) -> None:
    """A paused topic is a note with who and why, and counts as unserved no more."""
    put(db, "mail")
    with db.engine.begin() as connection:
        JobStore(JOB).pause(connection, "mail", reason="the server is down", by="ann")
    [found] = check(db.engine, "paused")
    assert found.level is Level.NOTE
    assert "by ann: the server is down" in found.what
    assert levels(check(db.engine, "unserved")) == [Level.OK]


def test_leases_that_nobody_reaps(check: Any, db: Database) -> None:
    """A lease that ran out a while ago is a fault; one that runs is none."""
    put(db, "mail")
    with db.engine.begin() as connection:
        JobStore(JOB).claim(connection, {"mail": 1}, room=1, worker="gone", lease=timedelta(seconds=30))
    assert levels(check(db.engine, "leases")) == [Level.OK]
    db.shift_clock(timedelta(minutes=5))
    [found] = check(db.engine, "leases")
    assert (found.level, found.facts["leases"]) == (Level.FAULT, 1)


def test_suspects(check: Any, db: Database) -> None:
    """A job that has crashed its workers more than once is named."""
    put(db, "mail")
    assert levels(check(db.engine, "suspects")) == [Level.OK]
    db.execute("UPDATE job SET crashes = 3")
    [found] = check(db.engine, "suspects")
    assert (found.level, found.facts["jobs"][0]["crashes"]) == (Level.WARNING, 3)
    assert str(db.row()["id"]) in found.what


def test_retention(check: Any, db: Database) -> None:
    """An ended job older than its time is found, unless jobs are kept for ever."""
    put(db, "mail")
    db.execute("UPDATE job SET state = 'done'")
    assert levels(check(db.engine, "retention", retention_ttl=timedelta(hours=1))) == [Level.OK]
    db.shift_clock(timedelta(hours=5))
    assert levels(check(db.engine, "retention", retention_ttl=timedelta(hours=1))) == [Level.WARNING]
    assert levels(check(db.engine, "retention", retention_ttl=timedelta(0))) == [Level.OK]
    assert levels(check(db.engine, "retention")) == [Level.OK]


def test_versions(check: Any, db: Database) -> None:
    """Live workers of two versions are a warning; all of one that is not ours, a note."""
    announce(db, "mail", version="9.9", name="new")
    assert levels(check(db.engine, "versions")) == [Level.NOTE]
    announce(db, "mail", name="old")
    [found] = check(db.engine, "versions")
    assert (found.level, found.facts["versions"]) == (Level.WARNING, {"9.9": 1, __version__: 1})


@pytest.mark.parametrize("ahead, word", [(-90, "behind"), (90, "ahead of")])
def test_clocks(check: Any, db: Database, ahead: float, word: str) -> None:
    """A host whose clock is off by more than a second is told by how much, and in which direction."""
    assert levels(check(db.engine, "clock")) == [Level.OK]
    [found] = check(db.engine, "clock", host_clock=lambda: time.time() + ahead)
    assert found.level is Level.WARNING
    assert f"{word} the database's" in found.what
    assert abs(abs(found.facts["seconds"]) - 90) < 2
