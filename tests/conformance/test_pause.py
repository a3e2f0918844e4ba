"""A paused topic is left alone by every claim, and nothing else is changed by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import create_async_engine

from brooq_sa import JobBase, OptionError, RawJob, SchemaError, State, pause, resume, wake
from brooq_sa import sqlite as sqlite_setup
from brooq_sa.schema import pause_table
from brooq_sa.statements.pause import paused
from conformance.samples import STORE, TOPIC, AppJob, Email, Urgent, claim, claim_one, ended, put, put_one
from databases import JOB, Database

URGENT = "email.urgent"


def do_pause(db: Database, topic: str = TOPIC, **notes: Any) -> bool:
    with db.engine.begin() as connection:
        return pause(connection, AppJob, topic, **notes)


def do_resume(db: Database, topic: str = TOPIC) -> bool:
    with db.engine.begin() as connection:
        return resume(connection, AppJob, topic)


def test_a_paused_topic_is_not_claimed_from(db: Database) -> None:
    """From the pause's commit on no claim takes a job of the topic; from the resume's on they are taken again."""
    job_id = put_one(db)
    assert do_pause(db)
    assert claim(db, worker="worker-1") == claim(db, worker="worker-2") == []
    assert db.row()["attempts"] == 0
    assert do_resume(db)
    assert claim_one(db).id == job_id


def test_other_topics_go_on(db: Database) -> None:
    """A pause concerns one topic; jobs of others are taken by the same claim, with the room that it leaves."""
    put(db, Email(), Urgent(), Email(), Urgent())
    do_pause(db, URGENT)
    assert [job.topic for job in claim(db, {URGENT: 2, TOPIC: 2}, room=2)] == [TOPIC, TOPIC]


def test_an_uncommitted_pause_holds_for_nobody_else(db: Database) -> None:
    """A pause that is rolled back was none (I9)."""
    put_one(db)
    with db.engine.connect() as connection:
        assert pause(connection, AppJob, TOPIC)
        connection.rollback()
    assert len(claim(db)) == 1


def test_what_runs_goes_on(db: Database) -> None:
    """A job that was taken before the pause is settled as ever (I3)."""
    put_one(db)
    job = claim_one(db)
    do_pause(db)
    with db.engine.begin() as connection:
        assert STORE.settle(connection, "worker-1", [ended(job, State.DONE)]) == {job.holding}


def test_pausing_twice_keeps_the_first(db: Database) -> None:
    """Both say what they did: a second pause nothing, and the first one's reason stays."""
    assert do_pause(db, reason="the mail server is down", by="anna")
    assert not do_pause(db, reason="why not")
    with db.engine.connect() as connection:
        [row] = connection.execute(paused(JOB)).mappings()
    assert (row["topic"], row["reason"], row["paused_by"]) == (TOPIC, "the mail server is down", "anna")
    assert row["paused_at"] is not None
    assert (do_resume(db), do_resume(db)) == (True, False)


def test_resume_wakes_the_workers_of_this_process(db: Database) -> None:
    """Whoever listens is told as the resume commits, and not before."""

    class Listening:
        heard = 0

        def jobs_enqueued(self) -> None:
            self.heard += 1

        def job_canceled(self, job_id: object) -> None: ...

    ear = Listening()
    wake.listen(JOB, ear)
    do_pause(db)
    with db.engine.connect() as connection:
        resume(connection, AppJob, TOPIC)
        assert ear.heard == 0
        connection.commit()
    assert ear.heard == 1


def test_resume_notifies_other_processes(pg: Database) -> None:
    """On PostgreSQL the workers of other processes hear of a resume."""
    do_pause(pg)
    with pg.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f'LISTEN "{wake.channel(JOB)}"')
        do_resume(pg)
        driver: Any = connection.connection.driver_connection
        assert [each.payload for each in driver.notifies(timeout=10, stop_after=1)] == [f"jobs:{TOPIC}"]


def test_async(db: Database) -> None:
    """An async connection pauses and resumes by the same calls, awaited."""
    engine = create_async_engine(db.url.replace("sqlite:", "sqlite+aiosqlite:"))
    if db.name == "sqlite":
        sqlite_setup.configure(engine)

    async def main() -> tuple[bool, bool, bool]:
        async with engine.begin() as connection:
            answers = (await pause(connection, AppJob, TOPIC), await resume(connection, AppJob, TOPIC))
            again = await resume(connection, AppJob, TOPIC)
        await engine.dispose()
        return (*answers, again)

    assert asyncio.run(main()) == (True, True, False)


@pytest.mark.parametrize(
    "topic, notes",
    [("", {}), ("No Topic", {}), (TOPIC, {"reason": 5}), (TOPIC, {"reason": "a\0b"}), (TOPIC, {"by": "x" * 1001})],
)
def test_what_cannot_be_stored_is_refused_before_it_is_sent(db: Database, topic: str, notes: dict[str, Any]) -> None:
    """A topic that is none, or a note that no column holds, is an OptionError, and nothing is paused."""
    with pytest.raises(OptionError):
        do_pause(db, topic, **notes)
    with db.engine.connect() as connection:
        assert connection.execute(select(pause_table(JOB))).all() == []


def test_a_missing_table_is_named(db: Database) -> None:
    """Without the table of pauses, pausing says how to make it."""

    class Elsewhere(JobBase):
        table_name = "elsewhere"

    with db.engine.connect() as connection, pytest.raises(SchemaError, match="no table 'elsewhere_pause'"):
        pause(connection, Elsewhere, TOPIC)


def test_a_paused_topic_costs_no_look_at_its_jobs(sqlite: Database) -> None:
    """On SQLite a claim of a paused topic is one statement, which finds no priority to look at."""
    put(sqlite, *(RawJob(TOPIC, number) for number in range(50)))
    do_pause(sqlite)
    sent: list[str] = []
    event.listen(sqlite.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    assert claim(sqlite) == []
    assert len([sql for sql in sent if "job" in sql]) == 1
