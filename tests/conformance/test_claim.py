"""What a claim takes, in which order, and never more than it was asked for."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from brooq_sa import NewJob, RawJob, enqueue_many
from brooq_sa.exc import PayloadError
from brooq_sa.jobs import decode
from brooq_sa.schema import ATTEMPTS_CEILING
from brooq_sa.states import State
from conformance.samples import (
    ERA,
    LEASE,
    STORE,
    TOPIC,
    AppJob,
    Email,
    Urgent,
    claim,
    claim_in,
    claim_one,
    ended,
    finish,
    put,
    put_one,
    reap,
    released,
    settle,
)
from databases import Database


def numbers(db: Database, room: int = 100) -> list[int]:
    """The numbers of the jobs that a claim takes, in the order they are to start."""
    return [decode(AppJob.registry, job.topic, job.payload).number for job in claim(db, room=room)]


def test_a_claim_charges_an_attempt_and_leases(db: Database) -> None:
    """A claimed job is processing, has both halves of a lease, and counts its taking (I1, I6)."""
    job_id = put_one(db, Email(number=7), key="key")
    job = claim_one(db, worker="worker-7", lease=timedelta(minutes=5))
    row = db.row(job_id)
    assert (job.id, job.topic, job.attempt, job.key) == (job_id, TOPIC, 1, "key")
    assert (row["state"], row["attempts"], row["locked_by"]) == ("processing", 1, "worker-7")
    assert timedelta(minutes=5) - (row["locked_until"] - row["updated_at"]) < timedelta(milliseconds=2)


def test_a_leased_job_is_not_taken_again(db: Database) -> None:
    """Once claimed, a job is nobody else's until its lease is over (I2)."""
    put(db, Email(), Email())
    first, second = claim_one(db, worker="worker-1"), claim_one(db, worker="worker-2")
    assert first.id != second.id
    assert claim(db, worker="worker-3") == []
    db.shift_clock(ERA)
    assert claim(db, worker="worker-3") == []  # only the reaper gives it back


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELED])
def test_a_terminal_job_is_not_taken(db: Database, state: State) -> None:
    """What is done, dead or canceled is never claimed (I3)."""
    put_one(db)
    finish(db, state)
    db.shift_clock(ERA)
    assert claim(db) == []


def test_attempts_count_every_taking(db: Database) -> None:
    """The attempt's number starts at 1, grows with each taking, and is the row's own (I6)."""
    put_one(db)
    attempts = []
    for _ in range(3):
        job = claim_one(db)
        attempts.append((job.attempt, db.row()["attempts"]))
        assert settle(db, job, ended(job, State.FAILED, delay=timedelta(0)))
    assert attempts == [(1, 1), (2, 2), (3, 3)]


def test_order_is_priority_then_ready_time_then_enqueuing(db: Database) -> None:
    """In a topic the smaller priority goes first, then what was ready earlier, then what was enqueued earlier (I10)."""
    put(
        db,
        NewJob(Email(number=4), delay="2s"),
        NewJob(Email(number=3), delay="1s"),
        NewJob(Email(number=6), priority=5),
        NewJob(Email(number=1), priority=-5, delay="3s"),
        NewJob(Email(number=2)),
        NewJob(Email(number=5), delay="2s"),
        NewJob(Email(number=0), priority=-5),
    )
    db.shift_clock(timedelta(hours=1))
    assert numbers(db) == [0, 1, 2, 3, 4, 5, 6]


def test_order_holds_from_one_claim_to_the_next(db: Database) -> None:
    """Taken one at a time, jobs of one moment come in the order of their enqueuing (I10)."""
    put(db, *[Email(number=number) for number in range(20)])
    assert [number for _ in range(20) for number in numbers(db, room=1)] == list(range(20))


def test_a_job_scheduled_for_later_holds_up_none(db: Database) -> None:
    """A job of a smaller priority that is not due yet is stepped over."""
    put(db, *[NewJob(Email(number=9), delay="1h", priority=-number) for number in range(10)], Email(number=1))
    assert numbers(db) == [1]


def test_a_delayed_job_is_taken_when_it_is_due(db: Database) -> None:
    """Before its time a job is not claimed; after it, it is, by the database's clock (I13)."""
    put(db, NewJob(Email(number=1), delay="1h"))
    db.shift_clock(timedelta(minutes=59, seconds=50))
    assert claim(db) == []
    db.shift_clock(timedelta(seconds=11))
    [job] = claim(db)
    assert 0.9 < job.waited < 10


@pytest.mark.parametrize(
    "want, room, expected",
    [
        ({"a": 2}, 100, ["a", "a"]),
        ({"a": 100}, 3, ["a", "a", "a"]),
        ({"a": 1, "b": 2, "c": 0}, 100, ["a", "b", "b"]),
        ({"b": 3, "a": 3}, 4, ["a", "b", "b", "b"]),
        ({"a": 5, "b": 5}, 0, []),
        ({}, 5, []),
        ({"nobody": 5}, 5, []),
    ],
    ids=str,
)
def test_a_claim_takes_no_more_than_it_wants(
    db: Database, want: dict[str, int], room: int, expected: list[str]
) -> None:
    """Neither a topic's number nor the number in all is exceeded; earlier topics go first."""
    with db.engine.begin() as connection:
        enqueue_many(connection, [RawJob(topic, None) for topic in "aaaaabbbbbccccc"])
        taken = claim_in(connection, want or {"none": 0}, room=room)
    assert sorted(job.topic for job in taken) == expected
    assert len(db.rows(state="processing")) == len(expected)


def test_order_does_not_come_from_the_index_alone(pg: Database) -> None:
    """A claim that is planned without the index takes the same jobs: those that were ready first (I10)."""
    put(pg, *[NewJob(Email(number=number), delay=f"{10 - number}m") for number in range(10)])
    pg.shift_clock(timedelta(hours=1))
    with pg.engine.connect() as connection:
        for switch in ("indexscan", "indexonlyscan", "bitmapscan"):
            connection.execute(text(f"SET enable_{switch} = off"))
        taken = claim_in(connection, room=3)
        connection.rollback()
        connection.invalidate()
    assert [decode(AppJob.registry, job.topic, job.payload).number for job in taken] == [9, 8, 7]


NESTED_LOOPS = ("hashjoin", "mergejoin", "hashagg", "sort", "material", "indexscan", "bitmapscan")


@pytest.mark.parametrize("analysed", [False, True], ids=["unknown", "analysed"])
def test_no_plan_takes_more_than_its_limit(pg: Database, analysed: bool) -> None:
    """With the planner's switches turned against it, claim, reaper and retention keep to their limits (I2, U1, U2)."""
    with pg.engine.connect() as connection:
        for switch in NESTED_LOOPS:
            connection.execute(text(f"SET enable_{switch} = off"))
        connection.execute(
            text(
                "INSERT INTO job (topic, payload, available_at) SELECT :topic, '{}', now() - g * interval '1 ms'"
                " FROM generate_series(1, 10000) g"
            ),
            {"topic": TOPIC},
        )
        connection.commit()
        if analysed:
            connection.execute(text("ANALYZE job"))
            connection.commit()
        for limit in (1, 5):
            assert len(claim_in(connection, room=limit)) == limit
            assert _changed(connection, "state = 'processing'") == limit
            connection.rollback()
            connection.execute(
                text("UPDATE job SET state='processing', locked_by='x', locked_until=now() - interval '1 s'")
            )
            assert len(STORE.reap(connection, limit=limit)) == limit
            assert _changed(connection, "state = 'pending'") == limit
            connection.rollback()
            connection.execute(text("UPDATE job SET state='done', updated_at = now() - interval '1 day'"))
            assert len(STORE.purge(connection, ttl=timedelta(hours=1), limit=limit)) == limit
            assert _changed(connection, "state = 'done'") == 10_000 - limit
            connection.rollback()
        connection.invalidate()


def _changed(connection: Connection, condition: str) -> int:
    return int(connection.execute(text(f"SELECT count(*) FROM job WHERE {condition}")).scalar_one())


def test_workers_that_claim_at_once_share_without_doubles(db: Database) -> None:
    """Jobs taken by four at the same time are each taken once (I2)."""
    put(db, *[Email(number=number) for number in range(120)])
    start = threading.Barrier(4)
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(worker: int) -> None:
        start.wait(timeout=30)
        while jobs := claim(db, room=3, worker=f"worker-{worker}"):
            taken[worker] += [decode(AppJob.registry, job.topic, job.payload).number for job in jobs]

    threads = [threading.Thread(target=take, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(number for each in taken for number in each) == list(range(120))
    assert {row["attempts"] for row in db.rows()} == {1}


def test_a_locked_row_is_stepped_over(pg: Database) -> None:
    """A job whose row somebody has locked does not hold up the claim of the next."""
    first, second = put(pg, Email(), Email())
    with pg.engine.begin() as other, pg.engine.begin() as connection:
        other.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": first})
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert [job.id for job in claim_in(connection)] == [second]
    assert [job.id for job in claim(pg)] == [first]


def test_a_row_that_refers_to_a_job_does_not_hide_it(pg: Database) -> None:
    """A foreign key's share lock on a job lets it be claimed and settled: the lock is FOR NO KEY UPDATE (I2)."""
    job_id = put_one(pg)
    with pg.engine.begin() as other:  # what checking a foreign key takes
        other.execute(text("SELECT 1 FROM job WHERE id = :id FOR KEY SHARE"), {"id": job_id})
        assert [job.id for job in claim(pg)] == [job_id]


@pytest.mark.parametrize("attempts", [30, 31, 63, 64, 1023, 1024, 4999, ATTEMPTS_CEILING - 1, ATTEMPTS_CEILING])
def test_any_number_of_attempts_can_be_claimed(db: Database, attempts: int) -> None:
    """An attempt counter of any size fails no claim, and the outcome is recorded (R1)."""
    put(db, Email(), Email())
    db.execute("UPDATE job SET attempts = :attempts", attempts=attempts)
    for job in claim(db):
        assert job.attempt == min(attempts + 1, ATTEMPTS_CEILING)
        assert settle(db, job, ended(job, State.FAILED, delay=timedelta(seconds=1), error="it broke"))
    assert db.states() == ["failed", "failed"]


IMPOSSIBLE = [
    "state = 'processing'",
    "state = 'processing', locked_by = 'somebody'",
    "state = 'processing', locked_until = available_at",
    "state = 'waiting'",
    "state = NULL",
    "priority = NULL",
    "attempts = -1",
    "attempts = NULL",
    "topic = ''",
    "topic = NULL",
    "payload = NULL",
    "available_at = NULL",
    "available_at = '1969-12-31 23:59:59+00:00'",
    "available_at = '9999-01-01 00:00:00+00:00'",
    "locked_until = '9999-12-31 00:00:00+00:00'",
    "updated_at = '0001-01-01 00:00:00+00:00'",
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_an_impossible_row_is_refused_by_the_table(db: Database, change: str) -> None:
    """What a claim could not survive cannot be written, by hand either (I1)."""
    put_one(db)
    with pytest.raises(IntegrityError):
        db.execute(f"UPDATE job SET {change}")
    assert [job.attempt for job in claim(db)] == [1]


ODD = [
    "attempts = 2147483647",
    "locked_by = 'somebody'",
    "locked_until = '2001-01-01 00:00:00+00:00'",
    "locked_by = 'somebody', locked_until = '2001-01-01 00:00:00+00:00'",
    "priority = -32768",
    "available_at = '1970-01-01 00:00:00+00:00'",
    "last_error = 'odd'",
    "state = 'failed', attempts = 0",
    "payload = 'null'",
    "payload = '[]'",
    "idempotency_key = ''",
]


@pytest.mark.parametrize("change", ODD)
def test_an_odd_row_holds_up_nobody(db: Database, change: str) -> None:
    """A row that is odd but allowed is claimed with the rest, and every one of them can be settled (I3)."""
    first = put_one(db)
    db.execute(f"UPDATE job SET {change}")
    others = put(db, *[Email() for _ in range(20)])
    jobs = claim(db)
    assert {job.id for job in jobs} == {first, *others}
    assert all(settle(db, job, ended(job, State.DONE)) for job in jobs)
    assert {(row["state"], row["locked_by"], row["locked_until"]) for row in db.rows()} == {("done", None, None)}


@pytest.mark.parametrize(
    "payload", ["null", "[]", '{"number": "one"}', '{"numbers": 1, "number": null}', '"text"', "17"]
)
def test_a_payload_that_cannot_be_read_is_one_jobs_own_fault(db: Database, payload: str) -> None:
    """The claim of ten is not spoiled by the first one's payload: decoding it raises, and the nine others decode."""
    first, *_ = put(db, *[Email(number=number) for number in range(10)])
    as_json = "CAST(:payload AS jsonb)" if db.name == "postgresql" else ":payload"
    as_number = "CAST(payload ->> 'number' AS integer)"
    db.execute(f"UPDATE job SET payload = {as_json} WHERE {as_number} = 0", payload=payload)
    bad, *rest = claim(db)
    assert bad.id == first
    with pytest.raises(PayloadError) as caught:
        decode(AppJob.registry, bad.topic, bad.payload)
    assert caught.value.topic == TOPIC
    assert [decode(AppJob.registry, job.topic, job.payload).number for job in rest] == list(range(1, 10))


def test_a_topic_without_a_class_decodes_to_a_raw_job(db: Database) -> None:
    """A claim of a topic that nobody declared gives the payload as it is (I5)."""
    put(db, RawJob("nobody.knows", {"a": [1, None]}))
    [job] = claim(db, {"nobody.knows": 1})
    assert decode(AppJob.registry, job.topic, job.payload) == RawJob("nobody.knows", {"a": [1, None]})


def test_kinds_of_one_base_are_claimed_together(db: Database) -> None:
    """Several topics go in one claim, each as its own class."""
    put(db, Email(number=1), Urgent(number=2))
    jobs = claim(db, {TOPIC: 5, "email.urgent": 5})
    assert [decode(AppJob.registry, job.topic, job.payload) for job in jobs] == [Urgent(number=2), Email(number=1)]


def test_a_released_job_comes_back_first(db: Database) -> None:
    """A release gives the job back at once with its attempt, and keeps its place (I6)."""
    first, second = put(db, Email(), Email())
    job = claim_one(db)
    assert settle(db, job, released(job))
    assert (db.row(first)["state"], db.row(first)["attempts"]) == ("pending", 0)
    again = claim(db)
    assert {each.id: each.attempt for each in again} == {first: 1, second: 1}


def test_a_reaped_job_keeps_its_attempts(db: Database) -> None:
    """After a crash the next claim is the next attempt, and the crashed one stays counted (I6, I7, U1)."""
    put_one(db)
    claim_one(db)
    db.shift_clock(LEASE + timedelta(seconds=1))
    assert len(reap(db)) == 1
    assert (db.row()["state"], db.row()["attempts"]) == ("pending", 1)
    assert claim_one(db).attempt == 2
