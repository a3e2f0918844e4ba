"""Why a job is where it is: every reason there is, as the database shows it."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from psycopg.pq import ConnStatus, PGconn
from sqlalchemy import Connection, create_engine, event, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from brooq_sa import JobBase, NewJob, RawJob, SchemaError, State, enqueue, functions, pause, resume
from brooq_sa import sqlite as sqlite_setup
from brooq_sa.standing import IN_NO_TIME, OLD_SNAPSHOT, Reason, Why, _prepared, _process, why
from brooq_sa.statements import presence, standing
from conformance.samples import TOPIC, AppJob, Email, claim, claim_one, ended, put, put_one, settle
from databases import JOB, Database
from waiting import wait_until


def ask(db: Database, job_id: uuid.UUID, base: type[JobBase] = AppJob) -> Why:
    """The answer, whose facts JSON can carry."""
    with db.engine.connect() as connection:
        answer = why(connection, base, job_id)
    json.dumps(answer.facts)
    return answer


def announce(
    db: Database,
    worker: str,
    *topics: str,
    slots: int = 1,
    believed: float = 60.0,
    reaps_in: float | None = 20.0,
) -> None:
    """Let a worker be known."""
    terms = {
        "its_id": worker,
        "its_host": "host-1",
        "its_pid": 7,
        "its_version": "1",
        "its_slots": slots,
        "topics": list(topics),
        "running": 0,
        "believed": believed,
        "reaps_in": reaps_in,
    }
    with db.engine.begin() as connection:
        connection.execute(presence.announce(JOB, db.name), terms)


@contextmanager
def another(db: Database, name: str = "psql at three in the morning") -> Iterator[Connection]:
    """A connection of somebody else's, in a transaction that is rolled back."""
    engine = create_engine(db.url, connect_args={"application_name": name} if db.name == "postgresql" else {})
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_not_due_yet(db: Database) -> None:
    """A job that is scheduled for later says when."""
    [job_id] = put(db, NewJob(Email(), delay="1h"))
    announce(db, "w-1", TOPIC)
    answer = ask(db, job_id)
    assert (answer.reason, answer.notes) == (Reason.NOT_DUE, ())
    assert answer.sentence.startswith("It is not due yet: due in ")
    assert 3500 < answer.facts["due_in_seconds"] < 3601


def test_not_due_and_nobody_there_either(db: Database) -> None:
    """What it will have to wait for next is said too."""
    [job_id] = put(db, NewJob(Email(), delay="1h"))
    answer = ask(db, job_id)
    assert answer.reason == Reason.NOT_DUE
    assert answer.notes == (
        f"Once it is due, this is in its way: No live worker serves its topic {TOPIC}. None is live at all.",
    )


def test_waiting_for_a_retry(db: Database) -> None:
    """A failed job says after which attempt, with which error, and when the next one is due."""
    job_id = put_one(db)
    settle(
        db,
        job := claim_one(db),
        ended(job, State.FAILED, error="ValueError: no such order\n  File x", delay=timedelta(hours=2)),
    )
    answer = ask(db, job_id)
    assert answer.reason == Reason.WAITING_FOR_RETRY
    assert answer.sentence.startswith("It waits for a retry, due in ")
    assert answer.sentence.endswith("after 1 attempt, the last with ValueError: no such order.")


def test_no_live_worker_serves_it(db: Database) -> None:
    """Who is live is named with what they serve; one that was not seen for long does not count."""
    job_id = put_one(db)
    assert ask(db, job_id).sentence == f"No live worker serves its topic {TOPIC}. None is live at all."
    announce(db, "gone", TOPIC, believed=-1)
    answer = ask(db, job_id)
    assert answer.reason == Reason.NO_WORKER
    assert "None is live; gone (host host-1, process 7) was seen 0s ago." in answer.sentence
    announce(db, "w-1", "a", "b")
    announce(db, "w-2")
    answer = ask(db, job_id)
    assert answer.sentence.endswith(
        "Live: w-1 (host host-1, process 7) serves a, b; w-2 (host host-1, process 7) is stopping."
    )
    assert answer.facts["live_workers"] == {"w-1": ["a", "b"], "w-2": []}


def test_all_slots_are_busy(db: Database) -> None:
    """Busy slots are those of the workers that serve the topic; with what and since when is said."""
    put(db, Email(), Email(), RawJob("other.topic", 1))
    claim(db, {TOPIC: 2, "other.topic": 1}, worker="w-1")
    db.shift_clock(timedelta(seconds=30))
    ahead, job_id = put(db, Email(), Email())
    announce(db, "w-1", TOPIC, "other.topic", slots=3)
    announce(db, "idle", "other.topic", slots=5)
    answer = ask(db, job_id)
    assert answer.reason == Reason.ALL_BUSY
    assert answer.sentence.startswith("All 3 slots that serve it have been busy for 3")
    assert answer.sentence.endswith(f"with 2 of {TOPIC}; 1 of other.topic.")
    assert answer.facts["free_slots"] == 0
    assert answer.notes == ("1 due job of its topic goes first.",)
    assert ask(db, ahead).notes == ()


def test_to_be_taken_next(db: Database) -> None:
    """A due job that a free slot serves is in nobody's way."""
    put_one(db)
    claim_one(db, worker="w-1")
    job_id = put_one(db)
    announce(db, "w-1", TOPIC, slots=3)
    answer = ask(db, job_id)
    assert answer.reason == Reason.NEXT
    assert answer.sentence.endswith("2 slots are free: w-1 will take it at the next look.")


def test_free_slots_that_a_worker_has_not_told_of(db: Database) -> None:
    """A job that no one takes although slots look free may wait for the handler of a canceled one: that is told."""
    job_id = put_one(db)
    announce(db, "w-1", TOPIC)
    db.shift_clock(timedelta(seconds=IN_NO_TIME + 5))
    announce(db, "w-1", TOPIC)
    assert ask(db, job_id).notes == ()
    db.execute("UPDATE job_worker SET running = slots")
    answer = ask(db, job_id)
    assert answer.reason == Reason.NEXT
    assert re.match(r"When w-1 was last seen, \S+ ago, all of its slots were taken\.", answer.notes[0])


def test_a_file_that_somebody_has_locked(sqlite: Database) -> None:
    """Nothing in a SQLite file tells who writes to it; what to look for is told where nobody takes a job in time."""
    job_id = put_one(sqlite)
    sqlite.shift_clock(timedelta(seconds=IN_NO_TIME + 5))
    announce(sqlite, "w-1", TOPIC)
    assert '"database is locked" in a log' in ask(sqlite, job_id).cure
    crashed_unnoticed(sqlite, "w-1", TOPIC)
    answer = ask(sqlite, job_id)
    assert answer.reason == Reason.WORKERS_LATE
    assert '"database is locked" in a log' in answer.cure


def crashed_unnoticed(db: Database, worker: str, *topics: str, slots: int = 1) -> None:
    """A worker that is believed for 45 seconds after its last word, and was last heard of 30 seconds ago."""
    announce(db, worker, *topics, slots=slots, believed=45.0, reaps_in=-1.0)
    db.execute("UPDATE job_worker SET seen_at = :seen, live_until = :until", **_moments(db))


def _moments(db: Database) -> dict[str, object]:
    with db.engine.connect() as connection:
        now = connection.execute(select(functions.now())).scalar_one()
    moments = {"seen": now - timedelta(seconds=30), "until": now + timedelta(seconds=15)}
    return {name: f"{at:%F %T.%f}" if db.name == "sqlite" else at for name, at in moments.items()}


def test_a_worker_that_is_late(db: Database) -> None:
    """A worker that crashed is believed to be live for a while; meanwhile nothing is promised in its name."""
    put_one(db)
    claim_one(db, worker="w-1")
    job_id = put_one(db)
    db.shift_clock(timedelta(seconds=IN_NO_TIME + 5))
    crashed_unnoticed(db, "w-1", TOPIC, slots=2)
    answer = ask(db, job_id)
    assert answer.reason == Reason.WORKERS_LATE
    assert "w-1 (host host-1, process 7): it has not been seen for 3" in answer.sentence
    crashed_unnoticed(db, "w-1", TOPIC, slots=1)
    db.execute("UPDATE job_worker SET slots = 1")
    answer = ask(db, job_id)
    assert answer.reason == Reason.ALL_BUSY
    assert answer.notes[0].startswith("w-1 is late: it has not been seen for 3")


def test_a_reaper_that_is_late(db: Database) -> None:
    """A lease that ran out is not said to be returned by a worker that has fallen silent, if another is there."""
    job_id = put_one(db)
    claim_one(db, worker="w-1", lease=timedelta(seconds=-3))
    crashed_unnoticed(db, "w-1", TOPIC)
    answer = ask(db, job_id)
    assert re.search(r"the reaper of w-1 was to return it, and it has not been seen for 3\ds\.", answer.sentence)
    assert "else start a worker" in answer.cure
    announce(db, "w-2", "other", reaps_in=20.0)
    assert "the reaper of w-2 is due in " in ask(db, job_id).sentence


def test_every_answer_says_what_to_do(db: Database) -> None:
    """Whatever is in a job's way, the command that takes it away is named, with its id or topic."""
    [job_id] = put(db, NewJob(Email(), delay="1h"))
    announce(db, "w-1", TOPIC)
    assert f"`brooq-sa run-now {job_id}`" in ask(db, job_id).cure
    job_id = put_one(db)
    with db.engine.begin() as connection:
        pause(connection, AppJob, TOPIC)
    assert f"`brooq-sa resume {TOPIC}`" in ask(db, job_id).cure
    with db.engine.begin() as connection:
        resume(connection, AppJob, TOPIC)
    job = claim_one(db, worker="w-1")
    assert f"`brooq-sa cancel {job_id}`" in ask(db, job_id).cure
    settle(db, job, ended(job, State.FAILED, error="x", delay=timedelta(hours=2)), worker="w-1")
    answer = ask(db, job_id)
    assert f"`brooq-sa run-now {job_id}`" in answer.cure
    assert str(answer).endswith(f"To do: {answer.cure}")
    for state in ("dead", "canceled"):
        db.execute(f"UPDATE job SET state = '{state}'")
        assert f"`brooq-sa retry {job_id}`" in ask(db, job_id).cure
    db.execute("UPDATE job SET state = 'done'")
    assert ask(db, job_id).cure == ""


def test_leased(db: Database) -> None:
    """A running job says to whom it is leased, until when, and which attempt it is."""
    job_id = put_one(db)
    claim_one(db, worker="w-1", lease=timedelta(minutes=5))
    announce(db, "w-1", TOPIC)
    answer = ask(db, job_id)
    assert (answer.reason, answer.notes) == (Reason.LEASED, ())
    assert answer.sentence.startswith("It is leased to w-1 (host host-1, process 7) until 20")
    assert "attempt 1, begun 0" in answer.sentence
    assert answer.facts["worker"] == "w-1"


@pytest.mark.parametrize("is_known", [True, False])
def test_leased_to_one_that_is_gone(db: Database, is_known: bool) -> None:
    """A holder that was not seen for long is said to be so."""
    job_id = put_one(db)
    claim_one(db, worker="w-1", lease=timedelta(minutes=5))
    if is_known:
        announce(db, "w-1", TOPIC, believed=-1)
    [note] = ask(db, job_id).notes
    assert ("has not been seen for" if is_known else "has announced itself nowhere") in note


def test_a_lease_that_ran_out(db: Database) -> None:
    """The next reaper is named, and when it is due; or that there is none."""
    job_id = put_one(db)
    claim_one(db, worker="crashed", lease=timedelta(seconds=-12))
    answer = ask(db, job_id)
    assert answer.reason == Reason.LEASE_EXPIRED
    assert answer.sentence.endswith("ago; no live worker is there to reap it.")
    announce(db, "w-1", reaps_in=100.0)
    announce(db, "w-2", reaps_in=20.0)
    answer = ask(db, job_id)
    assert re.match(r"Its lease to crashed ran out 1\ds ago; the reaper of w-2 is due in (1\ds|20s)", answer.sentence)
    assert 15 < answer.facts["reaper_due_in_seconds"] < 21
    announce(db, "w-1", reaps_in=-3.0)
    assert ask(db, job_id).sentence.endswith("the reaper of w-1 is due now.")


def test_paused(db: Database) -> None:
    """A paused topic comes before workers and slots; who paused it and why is said."""
    job_id = put_one(db)
    with db.engine.begin() as connection:
        pause(connection, AppJob, TOPIC, reason="the mail server is down", by="anna")
    answer = ask(db, job_id)
    assert answer.reason == Reason.PAUSED
    assert answer.sentence.startswith(f"Its topic {TOPIC} has been paused for 0")
    assert answer.sentence.endswith("by anna: the mail server is down.")


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELED])
def test_terminal_states(db: Database, state: State) -> None:
    """A job that has ended says how, when, and with which error."""
    job_id = put_one(db)
    settle(db, job := claim_one(db), ended(job, state, error=None if state is State.DONE else "ValueError: no"))
    answer = ask(db, job_id)
    assert answer.reason == str(state)
    assert "1 attempt" in answer.sentence
    assert ("ValueError: no." in answer.sentence) == (state is not State.DONE)


def unreadable(db: Database) -> uuid.UUID:
    job_id = put_one(db, RawJob(TOPIC, {"number": "seven"}, AppJob))
    announce(db, "w-1", TOPIC)
    return job_id


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD])
def test_a_payload_that_cannot_be_read(db: Database, state: State) -> None:
    """What the job class cannot read is said, with the place in the payload, whatever the last error was."""
    job_id = unreadable(db)
    job = claim_one(db)
    settle(db, job, ended(job, state, error="brooq_sa.exc.PayloadError: x", delay=timedelta(hours=1)))
    answer = ask(db, job_id)
    assert answer.reason == Reason.UNDECODABLE
    assert "Expected `int`, got `str` - at `$.number`" in answer.sentence


def test_a_payload_that_nobody_here_knows(db: Database) -> None:
    """Without the job class, what the attempt found is told."""

    class Bare(JobBase): ...

    job_id = unreadable(db)
    job = claim_one(db)
    settle(db, job, ended(job, State.DEAD, error="brooq_sa.exc.PayloadError: Payload of topic 'x': odd - at `$`"))
    answer = ask(db, job_id, Bare)
    assert answer.reason == Reason.UNDECODABLE
    assert answer.sentence.endswith("brooq_sa.exc.PayloadError: Payload of topic 'x': odd - at `$`.")


def test_a_payload_that_will_not_be_read(db: Database) -> None:
    """Before the first attempt it is a note beside what is in the way now."""
    answer = ask(db, unreadable(db))
    assert answer.reason == Reason.NEXT
    assert answer.notes[0].startswith("An attempt will fail: PayloadError: ")


def test_not_found(db: Database) -> None:
    """An id that no job has says what may be behind it."""
    job_id = uuid.uuid4()
    answer = ask(db, job_id)
    assert answer.reason == Reason.NOT_FOUND
    assert answer.sentence.startswith(f"There is no job {job_id}: it was never committed, ")
    assert len(answer.notes) == 1


def test_an_enqueue_that_has_not_committed(pg: Database) -> None:
    """The open transactions that wrote to the table are named with process, role and age."""
    with another(pg) as connection:
        job_id = enqueue(connection, Email()).id
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        answer = ask(pg, job_id)
        assert answer.reason == Reason.NOT_FOUND
        [note] = answer.notes
        assert note.startswith("1 open transaction has written to table 'job', and may be about to commit it: ")
        assert f"process {pid} of postgres (psql at three in the morning), open for " in note
        assert [each["pid"] for each in answer.facts["writers"]] == [pid]
        connection.rollback()
    assert "No other transaction that is open has written" in ask(pg, job_id).notes[0]


def test_a_row_that_somebody_has_locked(pg: Database) -> None:
    """A due job that claims pass over, since an open transaction has its row, names that transaction."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC, slots=2)
    with another(pg) as connection:
        connection.execute(text("SELECT 1 FROM job FOR UPDATE"))
        assert claim(pg) == []
        answer = ask(pg, job_id)
        assert answer.reason == Reason.LOCKED
        assert "(psql at three in the morning), open for " in answer.sentence
        connection.rollback()
    assert ask(pg, job_id).reason == Reason.NEXT


@pytest.mark.parametrize("overdue, reason", [(IN_NO_TIME + 5, Reason.HELD_BACK), (0, Reason.NEXT)])
def test_a_snapshot_that_holds_back_vacuum(
    pg: Database, monkeypatch: pytest.MonkeyPatch, overdue: float, reason: Reason
) -> None:
    """An old snapshot is named as a note, and as the reason once the job ought to have been taken."""
    monkeypatch.setattr("brooq_sa.standing.OLD_SNAPSHOT", -1.0)
    assert OLD_SNAPSHOT == 60.0
    job_id = put_one(pg)
    pg.shift_clock(timedelta(seconds=overdue))
    announce(pg, "w-1", TOPIC, slots=2)
    with another(pg) as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        connection.execute(text("SELECT 1"))
        answer = ask(pg, job_id)
        assert answer.reason == reason
        assert "A snapshot holds back vacuum" in str(answer)
        assert "(psql at three in the morning), open for " in str(answer)
        connection.rollback()


def test_a_young_snapshot_is_nothing(pg: Database) -> None:
    """Transactions come and go; only one that stays is told of."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg) as connection:
        connection.execute(text("SELECT 1"))
        assert ask(pg, job_id).notes == ()


def test_a_transaction_without_a_snapshot_holds_back_vacuum_too(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has written, and is idle since, has no snapshot, and is in vacuum's way all the same."""
    monkeypatch.setattr("brooq_sa.standing.OLD_SNAPSHOT", -1.0)
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg) as connection:
        connection.execute(text("SELECT pg_current_xact_id()"))
        assert "(psql at three in the morning), open for " in str(ask(pg, job_id))


@contextmanager
def standby(pg: Database, slot: str = "") -> Iterator[None]:
    """A standby with hot_standby_feedback, as far as a primary can tell (manual, "Streaming Replication Protocol")."""
    with pg.engine.connect() as connection:
        start = connection.execute(text("SELECT pg_current_wal_flush_lsn()")).scalar_one()
        oldest = int(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    url = make_url(pg.url)
    terms = f"host={url.host} port={url.port} user={url.username} replication=true application_name=reports"
    receiver = PGconn.connect(terms.encode())
    assert receiver.status == ConnStatus.OK, receiver.error_message
    receiver.exec_(f"START_REPLICATION {slot and f'SLOT {slot}'} {start}".encode())
    receiver.put_copy_data(b"h" + struct.pack("!qIIII", 0, oldest, 0, 0, 0))
    receiver.flush()
    senders = "SELECT pid FROM pg_stat_replication"
    told = (
        "SELECT slot_name FROM pg_replication_slots WHERE xmin IS NOT NULL"
        if slot
        else f"{senders} WHERE backend_xmin IS NOT NULL"
    )
    # A transaction each: PostgreSQL keeps what it has said of other sessions until the transaction ends.
    wait_until(lambda: len(pg.execute(told)) == 1)
    try:
        yield
    finally:
        receiver.finish()
        wait_until(lambda: pg.execute(senders) == [])


def test_a_replication_slot_that_holds_back_vacuum(pg: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot whose standby has gone away keeps dead rows, and is named with how to drop it; a standby that is far
    behind is named too. A logical slot, which holds back the catalogs alone, is in no claim's way.
    """
    job_id = put_one(pg)
    pg.shift_clock(timedelta(seconds=IN_NO_TIME + 5))
    announce(pg, "w-1", TOPIC)
    pg.execute("SELECT pg_create_physical_replication_slot('left_behind', true)")
    try:
        assert ask(pg, job_id).reason == Reason.NEXT
        with standby(pg, "left_behind"):
            assert ask(pg, job_id).reason == Reason.NEXT
            monkeypatch.setattr("brooq_sa.standing.FAR_BEHIND", -1)
            assert "replication slot left_behind, in use, " in ask(pg, job_id).sentence
            monkeypatch.undo()
        answer = ask(pg, job_id)
        assert answer.reason == Reason.HELD_BACK
        assert "replication slot left_behind, used by nobody, " in answer.sentence
        assert "SELECT pg_drop_replication_slot('left_behind')" in answer.cure
    finally:
        pg.execute("SELECT pg_drop_replication_slot('left_behind')")
    monkeypatch.setattr("brooq_sa.standing.FAR_BEHIND", -1)
    with standby(pg):
        answer = ask(pg, job_id)
        assert "standby reports, " in answer.sentence
        assert "hot_standby_feedback" in answer.cure
    assert ask(pg, job_id).reason == Reason.NEXT


def test_a_row_that_several_share(pg: Database) -> None:
    """Where more than one transaction has locked the row, all of them are named."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg, "first") as first, another(pg, "second") as second:
        for each in (first, second):
            each.execute(text("SELECT 1 FROM job FOR SHARE"))
        assert claim(pg) == []
        answer = ask(pg, job_id)
        assert answer.reason == Reason.LOCKED
        assert answer.sentence.startswith("Its row is locked by 2 transactions that have not committed: ")
        assert "(first)" in answer.sentence
        assert "(second)" in answer.sentence
        first.rollback()
        second.rollback()
    assert ask(pg, job_id).reason == Reason.NEXT


def test_a_number_that_is_no_list_is_not_looked_up(pg: Database) -> None:
    """No plan can look a transaction's number up as a list, which would raise: the argument itself leaves it out."""
    terms = {"xmax": "4000000", "table": "job"}
    with pg.engine.connect() as connection:
        assert connection.execute(standing.row_lockers(), terms).all() == []
        [plan] = connection.execute(
            text(f"EXPLAIN (VERBOSE, FORMAT JSON) {standing.row_lockers().text}"), terms
        ).scalars()
    [call] = re.findall(r"'Function Call': ['\"](pg_get_multixact_members\(.*?)['\"][,}]", str(plan))
    assert call.startswith("pg_get_multixact_members(CASE WHEN ")
    assert "mxid_age(pg_class.relminmxid)" in call


def test_a_row_that_a_prepared_transaction_has_locked(pg: Database) -> None:
    """A transaction without a process is named by its name, and how to end it."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg) as connection:
        connection.execute(text("SELECT 1 FROM job FOR UPDATE"))
        connection.execute(text("PREPARE TRANSACTION 'left ''behind'"))
    try:
        answer = ask(pg, job_id)
        assert answer.reason == Reason.LOCKED
        assert 'the prepared "left \'behind" of postgres.' in answer.sentence
        assert "ROLLBACK PREPARED 'left ''behind'" in answer.cure
    finally:
        with pg.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ROLLBACK PREPARED 'left ''behind'"))


def test_a_table_that_is_locked(pg: Database) -> None:
    """Who keeps claims out is named; and if nobody may read, the answer comes all the same, and at once."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg, "indexing") as connection:
        connection.execute(text("LOCK TABLE job IN SHARE MODE"))
        answer = ask(pg, job_id)
        assert (answer.reason, "(indexing)" in answer.sentence) == (Reason.TABLE_LOCKED, True)
        connection.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        answer = ask(pg, job_id)
        assert (answer.reason, "(indexing)" in answer.sentence) == (Reason.TABLE_LOCKED, True)
        assert answer.cure == f"End what began it; else SELECT pg_terminate_backend({pid})."
        connection.rollback()
    assert ask(pg, job_id).reason == Reason.NEXT


def test_a_table_that_somebody_waits_for(pg: Database) -> None:
    """Whoever waits for the table alone holds up everybody else; it and who is in its way are named."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC)
    with another(pg, "reading") as reader, another(pg, "migrating") as migration:
        reader.execute(text("SELECT 1 FROM job"))
        pid = reader.execute(text("SELECT pg_backend_pid()")).scalar_one()
        waiting = threading.Thread(target=migration.execute, args=(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"),))
        waiting.start()
        with pg.engine.connect() as looking:
            wait_until(lambda: looking.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar() == 1)
        answer = ask(pg, job_id)
        reader.rollback()
        waiting.join()
        migration.rollback()
    assert answer.reason == Reason.TABLE_LOCKED
    assert "waits behind process " in answer.sentence
    assert answer.sentence.endswith(f"that process {pid} keeps from it.")
    assert answer.cure.startswith(f"End one of them: SELECT pg_terminate_backend({pid}), or ")


def test_transactions_in_words() -> None:
    """A transaction is named by what the role may see of it, be that its process alone; a prepared one by its name."""
    hidden = {"pid": 7, "user": None, "application": None, "seconds": None, "state": None}
    assert _process(hidden) == "process 7"
    whole = {"pid": 7, "user": "anna", "application": "psql", "seconds": 90.2, "state": "idle in transaction"}
    assert _process(whole) == "process 7 of anna (psql), open for 1m30s, idle in transaction"
    assert (
        _prepared({"name": "left behind", "user": "anna", "seconds": 90}) == "'left behind' of anna, prepared 1m30s ago"
    )


def test_what_the_role_may_see(pg: Database) -> None:
    """A role without pg_read_all_stats is told of others' transactions too, by process and role."""
    job_id = put_one(pg)
    announce(pg, "w-1", TOPIC, slots=2)
    pg.execute("CREATE ROLE brooq_nosy LOGIN")
    pg.execute("GRANT SELECT ON job, job_worker, job_pause TO brooq_nosy")
    nosy = create_engine(make_url(pg.url).set(username="brooq_nosy"))
    try:
        with another(pg) as connection, nosy.connect() as asking:
            connection.execute(text("UPDATE job SET priority = 1"))
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            assert why(asking, AppJob, job_id).facts["locked_by_transaction"]["pid"] == pid
            assert f"process {pid} of postgres" in str(why(asking, AppJob, uuid.uuid4()))
            connection.rollback()
    finally:
        nosy.dispose()
        pg.execute("DROP OWNED BY brooq_nosy")
        pg.execute("DROP ROLE brooq_nosy")


def test_async(db: Database) -> None:
    """An async connection asks by the same call, awaited."""
    job_id = put_one(db)
    engine = create_async_engine(db.url.replace("sqlite:", "sqlite+aiosqlite:"))
    if db.name == "sqlite":
        sqlite_setup.configure(engine)

    async def main() -> Why:
        async with engine.connect() as connection:
            answer = await why(connection, AppJob, str(job_id))
        await engine.dispose()
        return answer

    assert asyncio.run(main()).reason == Reason.NO_WORKER


def test_a_missing_table_is_named(db: Database) -> None:
    """Where the tables are not there, the error says how to make them."""

    class Elsewhere(JobBase):
        table_name = "elsewhere"

    with pytest.raises(SchemaError, match="no table 'elsewhere"):
        ask(db, uuid.uuid4(), Elsewhere)


@pytest.mark.parametrize("bring", [put_one, lambda db: uuid.uuid4()], ids=["found", "not_found"])
def test_it_only_reads(db: Database, bring: Callable[[Database], uuid.UUID]) -> None:
    """No statement of it writes, so that a viewer may ask, and a standby can answer."""
    job_id = bring(db)
    sent: list[str] = []
    event.listen(db.engine, "before_cursor_execute", lambda *given: sent.append(given[2].strip()))
    ask(db, job_id)
    assert sent
    assert [sql for sql in sent if not sql.startswith(("SELECT", "BEGIN"))] == []
