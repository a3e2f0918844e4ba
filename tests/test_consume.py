"""The pull style: jobs from a plain iterator, one by one and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from apps.embedding import base_of, job_class, put, put_many, refuse_session
from brooq_sa import (
    CancelJob,
    JobBase,
    OptionError,
    PreserveAttempt,
    RawJob,
    RetryAfter,
    SchemaError,
    SettingsError,
    StopCause,
    UsageError,
    Worker,
    consume,
)
from brooq_sa.store import JobStore
from databases import Database
from processes import Processes
from waiting import wait_until

FAST: dict[str, Any] = {"poll_interval": "20ms", "lease": "3s", "backoff_base": "0s", "backoff_max": "0s"}


class Jobs(JobBase):
    """A base without job classes: its topics carry RawJobs."""


def consuming(db: Database, *topics: str, base: type[JobBase] = Jobs, **options: Any) -> Generator[Any, None, None]:
    """Claims of what is due, to the last."""
    return consume(db.engine, base, topics or ("work",), stop_when_empty=True, **FAST | options)


def payloads(db: Database, *topics: str, **options: Any) -> list[Any]:
    taken = []
    for claim in consuming(db, *topics, **options):
        with claim as job:
            taken.append(job.payload)
    return taken


class TestTaking:
    def test_bytes_in_order(self, db: Database) -> None:
        """Bytes that were put in come out one by one, in the order they were put in, and are done then (S3, I10)."""
        messages = [bytes([number]) * 3 for number in range(5)]
        for message in messages:
            put(db, RawJob("work", message))
        assert payloads(db) == messages
        assert db.states() == ["done"] * 5

    def test_one_at_a_time(self, db: Database) -> None:
        """While one job is worked on no other is leased (S3)."""
        put_many(db, [RawJob("work", number) for number in range(3)])
        for claim in consuming(db):
            with claim:
                assert len(db.rows(state="processing")) == 1

    def test_a_topic_with_a_class(self, db: Database) -> None:
        """A topic that has a job class gives its instances, and its kind's options hold (S3)."""
        job = job_class(lambda job, claim: None, max_attempts=1)
        put(db, job(number=4))
        for claim in consuming(db, base=base_of(job)):
            with claim as taken:
                assert (taken, claim.max_attempts, claim.attempt, claim.topic) == (job(number=4), 1, 1, "work")
                raise ValueError("no")
        assert db.states() == ["dead"]

    def test_priorities_and_topics(self, db: Database) -> None:
        """Priority goes first within a topic; topics take turns (I10)."""
        for number, priority in enumerate([0, -1, 0]):
            put(db, RawJob("a", f"a{number}"), priority=priority)
        put_many(db, [RawJob("b", "b0"), RawJob("b", "b1")])
        assert payloads(db, "a", "b") == ["a1", "b0", "a0", "b1", "a2"]

    def test_only_the_topics_asked_for(self, db: Database) -> None:
        """Jobs of other topics are left alone."""
        put_many(db, [RawJob("work", 1), RawJob("other", 2)])
        assert payloads(db) == [1]
        assert [row["state"] for row in db.rows(topic="other")] == ["pending"]

    def test_it_waits_for_more(self, db: Database) -> None:
        """Without `stop_when_empty` the loop waits for jobs to come."""
        taken: list[Any] = []

        def take() -> None:
            for claim in consume(db.engine, Jobs, ["work"], **FAST):
                with claim as job:
                    taken.append(job.payload)
                if taken[-1] == "last":
                    break

        thread = threading.Thread(target=take)
        thread.start()
        put(db, RawJob("work", "first"))
        wait_until(lambda: taken == ["first"], what="the first job")
        put(db, RawJob("work", "last"))
        thread.join(20)
        assert (taken, db.states()) == (["first", "last"], ["done", "done"])

    def test_consumers_share(self, db: Database) -> None:
        """Of several consumers exactly one gets each job (I2, S2)."""
        put_many(db, [RawJob("work", number) for number in range(60)])
        taken: list[Any] = []
        threads = [threading.Thread(target=lambda: taken.extend(payloads(db))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(taken) == list(range(60))
        assert {(row["state"], row["attempts"]) for row in db.rows()} == {("done", 1)}

    def test_beside_workers(self, db: Database) -> None:
        """A consumer and a worker on one topic share its jobs."""
        ran: list[int] = []
        job = job_class(lambda job, claim: ran.append(job.number))
        put_many(db, [job(number=number) for number in range(40)])
        with Worker(db.engine, base_of(job), poll_interval="20ms", wake=False):
            for claim in consuming(db, base=base_of(job)):
                with claim as taken:
                    ran.append(taken.number)
            wait_until(lambda: set(db.states()) == {"done"}, what="all being done")
        assert sorted(ran) == list(range(40))


class TestSettling:
    def test_an_error_is_recorded_and_the_loop_goes_on(self, db: Database) -> None:
        """An exception fails its job and goes no further; the next job is taken (R3, S3)."""
        put_many(db, [RawJob("work", number) for number in range(3)])
        taken = []
        for claim in consuming(db, max_attempts=2):
            with claim as job:
                taken.append((job.payload, claim.attempt))
                if job.payload == 1:
                    raise ValueError("not this one")
        assert sorted(taken) == [(0, 1), (1, 1), (1, 2), (2, 1)]
        assert db.states() == ["done", "dead", "done"]
        assert db.rows()[1]["last_error"].startswith("ValueError: not this one")

    @pytest.mark.parametrize("wrapped", [False, True], ids=["raised", "as a cause"])
    def test_signals(self, db: Database, wrapped: bool) -> None:
        """Signals choose the outcome as they do for handlers (R2)."""
        signals = [RetryAfter("1h"), PreserveAttempt(), CancelJob()]
        put_many(db, [RawJob("work", number) for number in range(3)])
        for claim in consuming(db, backoff_base="1h", backoff_max="1h"):
            with claim as job:
                if wrapped:
                    raise ValueError("outside") from signals[job.payload]
                raise signals[job.payload]
        rows = db.rows()
        assert [row["state"] for row in rows] == ["failed", "failed", "canceled"]
        assert [row["attempts"] for row in rows] == [1, 0, 1]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_the_end_of_the_program(self, db: Database, error: type[BaseException]) -> None:
        """What ends a program gives the job back, its attempt uncharged, and goes on (I6)."""
        put(db, RawJob("work", 1))

        def work() -> None:
            for claim in consuming(db):
                with claim:
                    raise error

        with pytest.raises(error):
            work()
        row = db.row()
        assert (row["state"], row["attempts"], row["locked_by"], row["last_error"]) == ("pending", 0, None, None)

    @pytest.mark.parametrize("with_session", [False, True])
    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_the_end_of_the_program_while_success_is_written(
        self, db: Database, monkeypatch: pytest.MonkeyPatch, moment: str, with_session: bool
    ) -> None:
        """Ctrl-C while success is being committed gives the job back, unless it was committed already (I6)."""
        put(db, RawJob("work", 1))
        settle = JobStore.settle

        def interrupted(store: JobStore, connection: Any, worker: str, outcomes: Any) -> Any:
            if not any(outcome.state == "done" for outcome in outcomes):
                return settle(store, connection, worker, outcomes)
            if moment == "after":
                settle(store, connection, worker, outcomes)
                connection.commit()
            raise KeyboardInterrupt

        monkeypatch.setattr(JobStore, "settle", interrupted)

        def work() -> None:
            for claim in consuming(db):
                with claim:
                    if with_session:
                        claim.session.execute(text("SELECT 1"))

        with pytest.raises(KeyboardInterrupt):
            work()
        row = db.row()
        expected = ("pending", 0, None) if moment == "before" else ("done", 1, None)
        assert (row["state"], row["attempts"], row["locked_by"]) == expected

    @pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
    def test_the_end_of_the_program_in_a_commit(self, db: Database, moment: str) -> None:
        """Ctrl-C in the commit of the claim's session keeps the block's writes and the job's success together (I11)."""
        db.execute("CREATE TABLE effect (x int)")
        put(db, RawJob("work", 1))

        def interrupt(_session: Any) -> None:
            raise KeyboardInterrupt

        def work() -> None:
            for claim in consuming(db):
                with claim:
                    claim.session.execute(text("INSERT INTO effect VALUES (1)"))
                    event.listen(claim.session, moment, interrupt)

        with pytest.raises(KeyboardInterrupt):
            work()
        row, effects = db.row(), len(db.execute("SELECT x FROM effect"))
        expected = ("pending", 0, None, 0) if moment == "before_commit" else ("done", 1, None, 1)
        assert (row["state"], row["attempts"], row["locked_by"], effects) == expected

    def test_writes_commit_with_the_outcome(self, db: Database) -> None:
        """The claim's session commits with success and rolls back with failure (I11, S3)."""
        db.execute("CREATE TABLE effect (x int)")
        put_many(db, [RawJob("work", number) for number in range(3)])
        for claim in consuming(db, max_attempts=1):
            with claim as job:
                claim.session.execute(text(f"INSERT INTO effect VALUES ({job.payload})"))
                if job.payload == 1:
                    raise ValueError("no")
        assert db.states() == ["done", "dead", "done"]
        assert [row["x"] for row in db.execute("SELECT x FROM effect ORDER BY x")] == [0, 2]

    def test_chaining(self, db: Database) -> None:
        """A chained job comes with success (S1)."""
        put_many(db, [RawJob("work", 0), RawJob("work", 1)])
        for claim in consuming(db, max_attempts=1):
            with claim as job:
                claim.chain(RawJob("next", job.payload))
                if job.payload:
                    raise ValueError("no")
        assert [row["payload"] for row in db.rows(topic="next")] == [0]

    @pytest.mark.parametrize("how", ["taken", "canceled"])
    @pytest.mark.parametrize("ending", ["success", "failure", "with a session"])
    def test_a_lost_lease_writes_nothing(self, db: Database, how: str, ending: str) -> None:
        """If the job is another's by now, or canceled, nothing is written and the loop goes on (I12, I3)."""
        db.execute("CREATE TABLE effect (x int)")
        put_many(db, [RawJob("work", 0), RawJob("work", 1)])
        lost = {"taken": "locked_by = 'another', attempts = 2", "canceled": "state = 'canceled'"}
        taken = []
        for claim in consuming(db, lease="1h"):
            with claim as job:
                taken.append(job.payload)
                if job.payload == 0:
                    db.execute(f"UPDATE job SET {lost[how]} WHERE locked_by = :me", me=claim.worker)
                    before = db.row(claim.id)
                    if ending == "with a session":
                        claim.session.execute(text("INSERT INTO effect VALUES (1)"))
                    if ending == "failure":
                        raise ValueError("no")
        assert taken == [0, 1]
        assert db.rows()[0] == before
        assert (db.rows()[1]["state"], db.execute("SELECT x FROM effect")) == ("done", [])

    def test_a_long_block_keeps_its_lease(self, db: Database) -> None:
        """While the block runs its lease is renewed, however long it takes (T4, S3)."""
        put(db, RawJob("work", 1))
        for claim in consuming(db, lease="1s"):
            with claim:
                assert claim.should_stop.wait(2.2) is False
        row = db.row()
        assert (row["state"], row["attempts"]) == ("done", 1)

    def test_a_block_hears_of_a_cancel(self, db: Database) -> None:
        """A running block is told that its job was canceled, by `should_stop` (T5, T2)."""
        put(db, RawJob("work", 1))
        for claim in consuming(db, lease="600ms"):
            with claim:
                db.execute("UPDATE job SET state = 'canceled'")
                assert claim.should_stop.wait(10)
                assert claim.cause is StopCause.CANCELED
        assert db.states() == ["canceled"]

    def test_an_undecodable_payload(self, db: Database) -> None:
        """A payload that cannot be read fails its own job with a reason; the loop never sees it (I5)."""
        job = job_class(lambda job, claim: None, max_attempts=1)
        ids = put_many(db, [job(number=number) for number in range(3)])
        bad = ids[0].hex if db.name == "sqlite" else ids[0]
        db.execute("UPDATE job SET payload = '{\"number\": []}' WHERE id = :id", id=bad)
        taken = []
        for claim in consuming(db, base=base_of(job)):
            with claim as each:
                taken.append(each.number)
        assert (taken, db.states()) == ([1, 2], ["dead", "done", "done"])
        assert "at `$.number`" in db.row(ids[0])["last_error"]


class TestLeaving:
    def test_breaking_off_between_jobs(self, db: Database) -> None:
        """A loop that is left holds nothing, and none of its threads runs on (I9)."""
        put_many(db, [RawJob("work", number) for number in range(3)])
        before = set(threading.enumerate())
        for claim in consuming(db):
            with claim:
                pass
            break
        wait_until(lambda: set(threading.enumerate()) <= before, what="its threads having ended")
        assert db.states() == ["done", "pending", "pending"]

    def test_breaking_off_inside_the_block(self, db: Database) -> None:
        """Leaving the block by ``break`` is leaving it: the job is done (S3)."""
        put_many(db, [RawJob("work", number) for number in range(2)])
        for claim in consuming(db):
            with claim:
                break
        assert db.states() == ["done", "pending"]

    def test_leaving_before_entering(self, db: Database) -> None:
        """A claim that was never entered goes back as if it had not been taken (I6)."""
        put(db, RawJob("work", 1))
        with closing(consuming(db)) as claims:
            next(claims)
            assert db.states() == ["processing"]
        assert [(row["state"], row["attempts"]) for row in db.rows()] == [("pending", 0)]

    def test_a_claim_that_is_not_entered_is_a_mistake(self, db: Database) -> None:
        """Asking for the next one without having entered the last is refused; the job goes back (I6)."""
        put(db, RawJob("work", 1))
        claims = consuming(db)
        next(claims)
        with pytest.raises(UsageError, match="with claim as job"):
            next(claims)
        assert [(row["state"], row["attempts"]) for row in db.rows()] == [("pending", 0)]

    def test_a_claim_is_entered_once(self, db: Database) -> None:
        """Entering a claim again is refused: its outcome has been written."""
        put(db, RawJob("work", 1))
        for claim in consuming(db):
            with claim:
                pass
            with pytest.raises(UsageError, match="entered once"), claim:
                raise AssertionError("entered again")
            with pytest.raises(UsageError, match="is over"):
                _ = claim.session
        assert db.states() == ["done"]

    def test_connections_are_closed(self, pg: Database) -> None:
        """After the loop none of its connections is left (I9)."""
        engine = create_engine(pg.url, connect_args={"application_name": "under test"})
        put_many(pg, [RawJob("work", number) for number in range(3)])
        for claim in consume(engine, Jobs, ["work"], stop_when_empty=True, **FAST):
            with claim:
                pass
        ours = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'under test'"
        wait_until(lambda: not pg.execute(ours), what="its connections being closed")
        engine.dispose()


class TestFaults:
    @pytest.mark.parametrize(
        "topics, error, message",
        [
            ("work", UsageError, "Give a list"),
            ([], UsageError, "is empty"),
            (["Not a topic"], OptionError, "Not a topic"),
        ],
    )
    def test_topics(self, sqlite: Database, topics: Any, error: type[Exception], message: str) -> None:
        """Topics at fault are refused when the iterator is made, not when it is first asked."""
        with pytest.raises(error, match=message):
            consume(sqlite.engine, Jobs, topics)

    def test_settings(self, sqlite: Database) -> None:
        """All problems of the settings are told at once (U3)."""
        with pytest.raises(SettingsError) as caught:
            consume(sqlite.engine, Jobs, ["work"], lease="0s", poll_interval="5")
        assert len(caught.value.problems) == 2

    def test_memory(self) -> None:
        """A database in memory is refused (S2)."""
        with pytest.raises(UsageError, match="Give the engine a file"):
            consume(create_engine("sqlite://"), Jobs, ["work"])

    def test_a_session_factory_that_fails(self, db: Database) -> None:
        """What asking for the session raises fails the job, as anything in the block does."""
        put(db, RawJob("work", 1))
        for claim in consuming(db, session_factory=refuse_session, max_attempts=1):
            with claim:
                _ = claim.session
        assert "AssertionError" in db.row()["last_error"]

    def test_a_refused_text_is_replaced(self, pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the database refuses the text of an error the failure is recorded without it (R3)."""
        monkeypatch.setattr("brooq_sa.outcomes.describe", lambda error, **options: "\0")
        put(pg, RawJob("work", 1))
        for claim in consuming(pg, max_attempts=1):
            with claim:
                raise ValueError("no")
        row = pg.row()
        assert row["state"] == "dead"
        assert row["last_error"].startswith("(the database refused the text")

    def test_a_locked_row_is_waited_for(self, pg: Database) -> None:
        """If somebody keeps the job's row locked its outcome is written once they let go (I11)."""
        put(pg, RawJob("work", 1))
        holder = pg.engine.connect()
        for claim in consuming(pg, lease="60s"):
            with claim:
                holder.execute(text("UPDATE job SET priority = 1"))
                threading.Timer(0.8, holder.commit).start()
        holder.close()
        assert (pg.states(), pg.row()["attempts"]) == (["done"], 1)

    def test_a_row_locked_for_longer_than_the_lease(self, pg: Database, caplog: pytest.LogCaptureFixture) -> None:
        """Past its lease an outcome is given up, and the loop goes on; the job is run again in time (I11)."""
        put_many(pg, [RawJob("work", 0), RawJob("work", 1)])
        holder = pg.engine.connect()
        taken = []
        for claim in consuming(pg, lease="500ms", reaper_period="1h"):
            with claim as job:
                taken.append(job.payload)
                if job.payload == 0:
                    holder.execute(text("UPDATE job SET priority = 1 WHERE id = :id"), {"id": claim.id})
        holder.rollback()
        holder.close()
        assert (taken, pg.states()) == ([0, 1], ["processing", "done"])
        assert any("outcome_given_up" in record.getMessage() for record in caplog.records)

    @pytest.mark.parametrize("when", ["claiming", "settling", "settled"])
    def test_an_outage_is_waited_out(self, db: Database, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        """A database that is out of reach for a while, refusing connections too, costs no job and no loop (I11)."""
        put_many(db, [RawJob("work", number) for number in range(3)])
        broken = iter([True, False, False])  # the connection breaks, and then none can be made
        calls = [0]

        def breaking(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any, **options: Any) -> Any:
                calls[0] += 1
                result = call(*arguments, **options) if when == "settled" else None
                if calls[0] >= 2 and (invalidated := next(broken, None)) is not None:
                    if when == "settled":
                        arguments[1].commit()
                    raise out_of_reach(invalidated)
                return result if when == "settled" else call(*arguments, **options)

            return run

        name = "claim" if when == "claiming" else "settle"
        monkeypatch.setattr(JobStore, name, breaking(getattr(JobStore, name)))
        monkeypatch.setattr("brooq_sa.consumer.FIRST_PAUSE", timedelta(milliseconds=1))
        assert payloads(db) == [0, 1, 2]
        assert [(row["state"], row["attempts"]) for row in db.rows()] == [("done", 1)] * 3

    def test_a_wrong_address_is_told_at_once(self, sqlite: Database) -> None:
        """A database that was never reached is an error, and not waited for (S3)."""
        engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
        started = time.monotonic()
        with pytest.raises(DBAPIError):
            next(consume(engine, Jobs, ["work"]))
        assert time.monotonic() - started < 20

    def test_a_missing_table_is_told_at_once(self, db: Database) -> None:
        """A table that is not there is no outage."""

        class Missing(JobBase, table_name="missing"):
            pass

        with pytest.raises(SchemaError, match=r"no table 'missing'.*alembic upgrade"):
            next(consuming(db, base=Missing))


def out_of_reach(invalidated: bool) -> DBAPIError:
    """What a driver raises when the connection breaks, or when none can be made."""
    return OperationalError("SQL", {}, ConnectionRefusedError("gone"), connection_invalidated=invalidated)


class TestCrash:
    """A consumer that is killed loses nothing (S3)."""

    SCRIPT = """
        import os, signal, sys, time
        from brooq_sa import JobBase, consume, sqlite
        from sqlalchemy import create_engine, text

        class Jobs(JobBase):
            pass

        engine = create_engine(sys.argv[1])
        if engine.dialect.name == "sqlite":
            sqlite.configure(engine)
        for claim in consume(engine, Jobs, ["work"], lease="1s", poll_interval="20ms", reaper_period="100ms"):
            with claim as job:
                claim.session.execute(text(f"INSERT INTO effect VALUES ({job.payload}, {os.getpid()})"))
                if len(sys.argv) > 2 and job.payload == 10:
                    print("in the middle", flush=True)
                    time.sleep(60)
        """

    def test_kill_in_the_middle(self, db: Database, processes: Processes) -> None:
        """A consumer killed with a job in hand: the job comes back, and every effect is there once (S3, I11)."""
        db.execute("CREATE TABLE effect (x int, pid int)")
        put_many(db, [RawJob("work", number) for number in range(20)])
        first = processes.script(self.SCRIPT, db.url, "stop")
        first.wait_for_output("in the middle")
        first.kill()
        assert sorted({row["state"] for row in db.rows()}) == ["done", "pending", "processing"]
        second = processes.script(self.SCRIPT, db.url)
        wait_until(lambda: set(db.states()) == {"done"}, timeout=30, what="every job being done")
        effects = db.execute("SELECT x, pid FROM effect ORDER BY x")
        assert [row["x"] for row in effects] == list(range(20))
        assert [row["pid"] for row in effects] == [first.pid] * 10 + [second.pid] * 10
        assert [row["attempts"] for row in db.rows()] == [1] * 10 + [2] + [1] * 9
