"""Moves of many jobs: those that fit the filter and are still in the state seen, and no others."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, text

from brooq_sa import JobBase, NewJob, OptionError, RawJob, SchemaError, State, wake
from brooq_sa import bulk as module
from brooq_sa.bulk import Bulk, Move, MoveResult, Tally, move_one
from brooq_sa.functions import now
from conformance.samples import TOPIC, AppJob, claim, claim_one, ended, put, put_one, settle
from databases import JOB, Database
from waiting import wait_until

OTHER = "other.topic"


@pytest.fixture
def crowd(db: Database) -> Database:
    """Three jobs in each state, of which one is of another topic; those that ended badly with an error each."""
    for state in State:
        put(db, *(RawJob(topic, str(state)) for topic in (TOPIC, TOPIC, OTHER)))
        if state is State.PENDING:
            continue
        for number, job in enumerate(claim(db, {TOPIC: 2, OTHER: 1}, worker=f"w-{state}")):
            if state is not State.PROCESSING:
                error = None if state is State.DONE else f"ValueError: 100% of case_{number}"
                assert settle(db, job, ended(job, state, error=error, delay=timedelta(hours=1)), worker=f"w-{state}")
    return db


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few jobs take many batches and windows."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "WINDOW", 3)


def states(db: Database, **columns: object) -> Counter[str]:
    return Counter(row["state"] for row in db.rows(**columns))


def make(db: Database, move: Move, **filters: Any) -> Bulk:
    return Bulk(db.engine, AppJob, move, **filters)


EVERY = {"topics": [TOPIC, OTHER]}


def test_the_crowd_is_as_described(crowd: Database) -> None:
    """What the other tests start from."""
    assert states(crowd) == {str(state): 3 for state in State}
    assert states(crowd, topic=OTHER) == {str(state): 1 for state in State}


@pytest.mark.parametrize(
    "move, taken, after",
    [
        (Move.RETRY, {"failed": 3, "dead": 3}, "pending"),
        (Move.CANCEL, {"pending": 3, "failed": 3, "processing": 3}, "canceled"),
        (Move.DELETE, {"done": 3, "dead": 3, "canceled": 3}, None),
        (Move.RUN_NOW, {"failed": 3}, "failed"),
    ],
)
def test_a_move_takes_its_states(crowd: Database, move: Move, taken: dict[str, int], after: str | None) -> None:
    """Without states named, a move takes its own, and says beforehand how many; the others stay as they are (I3)."""
    before = states(crowd)
    bulk = make(crowd, move, **EVERY)
    assert bulk.preview().counts == taken
    assert states(crowd) == before
    total = sum(taken.values())
    assert bulk.run() == Tally(total, 0)
    expected = before - Counter(taken) + (Counter({after: total}) if after else Counter())
    assert states(crowd) == expected
    assert make(crowd, move, **EVERY).run() == Tally(0, 0)


def test_a_retry_is_that_of_one_job(crowd: Database) -> None:
    """Jobs that are sent round again are due now, keep their attempts, and have their crashes forgiven (I6)."""
    crowd.execute("UPDATE job SET crashes = 4")
    before = [row["id"] for row in crowd.rows(state="canceled")]
    make(crowd, Move.RETRY, states=[State.CANCELED]).run()
    rows = [row for row in crowd.rows(state="pending") if row["id"] in before]
    assert [(row["attempts"], row["crashes"], row["locked_by"]) for row in rows] == [(1, 0, None)] * 3


def test_run_now_makes_due(crowd: Database) -> None:
    """Jobs that were scheduled or wait for a retry are claimed at once; their states and attempts stay."""
    put(crowd, NewJob(RawJob(TOPIC, "later"), delay="1h"))
    waited = {row["id"] for row in crowd.rows(state="failed", topic=TOPIC)}
    assert make(crowd, Move.RUN_NOW, topics=[TOPIC]).preview().counts == {"pending": 1, "failed": 2}
    assert make(crowd, Move.RUN_NOW, topics=[TOPIC]).run() == Tally(3, 0)
    taken = {job.id: job for job in claim(crowd)}
    assert [job.attempt for job in taken.values() if job.payload == '"later"'] == [1]
    assert [taken[job_id].attempt for job_id in waited] == [2, 2]


@pytest.mark.parametrize(
    "filters, count",
    [
        ({"topics": [OTHER]}, 1),
        ({"topics": [TOPIC], "states": [State.DEAD]}, 2),
        ({"states": [State.DEAD]}, 3),
        ({"error": "ValueError: 100%", "states": [State.DEAD]}, 3),
        ({"error": "%case%", "states": [State.DEAD]}, 0),
        ({"error": "case_0", "states": [State.DEAD]}, 1),
        ({"error": "case00", "states": [State.DEAD]}, 0),
        ({"older_than": "1h", "states": [State.DEAD]}, 0),
        ({"newer_than": "1h", "states": [State.DEAD]}, 3),
        ({"newer_than": "0s", "states": [State.DEAD]}, 0),
        ({"topics": ["nothing.here"], "states": [State.DEAD]}, 0),
    ],
)
def test_filters(crowd: Database, filters: dict[str, Any], count: int) -> None:
    """Every filter given must fit; the text of an error is taken literally."""
    states = filters.pop("states", [State.DEAD])
    bulk = make(crowd, Move.RETRY, states=states, **filters)
    assert bulk.preview().total == count
    assert bulk.run() == Tally(count, 0)


def test_ages(crowd: Database) -> None:
    """Ages count from the last change, by the database's clock."""
    crowd.shift_clock(timedelta(hours=2))
    put_one(crowd, RawJob(TOPIC, "young", AppJob))
    assert make(crowd, Move.CANCEL, topics=[TOPIC], states=[State.PENDING], older_than="1h").preview().total == 2
    assert make(crowd, Move.CANCEL, topics=[TOPIC], states=[State.PENDING], newer_than="1h").preview().total == 1


def test_a_sample_shows_some(crowd: Database) -> None:
    """The preview has a few jobs with what tells whether they are meant."""
    preview = make(crowd, Move.RETRY, topics=[TOPIC]).preview(sample=3)
    assert (preview.total, len(preview.sample)) == (4, 3)
    assert {row["state"] for row in preview.sample} <= {"failed", "dead"}
    assert {row["topic"] for row in preview.sample} == {TOPIC}
    assert all(row["last_error"].startswith("ValueError") for row in preview.sample)


def test_it_goes_on_where_it_ended(crowd: Database) -> None:
    """A run that is interrupted keeps its batches; the same again moves the rest."""

    class Interrupted(Exception): ...

    def interrupt(tally: Tally) -> None:
        if tally.moved >= 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        make(crowd, Move.DELETE, **EVERY).run(interrupt)
    moved = 18 - states(crowd).total()
    assert 4 <= moved < 9
    assert make(crowd, Move.DELETE, **EVERY).run() == Tally(9 - moved, 0)


def test_what_comes_after_the_look_is_left(db: Database) -> None:
    """A job that came to fit after the preview, or went through another attempt since, was not meant (I3)."""
    put(db, *(RawJob(TOPIC, number, AppJob) for number in range(3)))
    for job in claim(db, {TOPIC: 3}):
        settle(db, job, ended(job, State.FAILED, error="ValueError: x"))
    bulk = make(db, Move.RETRY, topics=[TOPIC])
    assert bulk.preview().counts == {State.FAILED: 3}
    _let_time_pass(db)
    again = claim_one(db)
    settle(db, again, ended(again, State.DEAD, error="ValueError: y"))
    assert bulk.run() == Tally(2, 0)
    assert [row["state"] for row in db.rows(id=again.id)] == ["dead"]


def test_a_run_over_a_topic_that_others_fill_ends(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast jobs come in, those that were there at the first look are moved, and that is all."""
    monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(module, "WINDOW", 1)
    first = put(db, *(RawJob(TOPIC, number, AppJob) for number in range(3)))
    bulk = make(db, Move.CANCEL, topics=[TOPIC])
    bulk.preview()
    _let_time_pass(db)
    assert bulk.run(lambda _tally: put_one(db, RawJob(TOPIC, 9, AppJob))) == Tally(3, 0)
    assert {row["id"] for row in db.rows(state="canceled")} == set(first)


def _let_time_pass(db: Database) -> None:
    """Until the database's clock has moved on by more than its step."""
    with db.engine.connect() as connection:
        begun = connection.execute(select(now())).scalar_one()
        wait_until(lambda: connection.execute(select(now())).scalar_one() > begun + 2 * module.TICK)


@pytest.mark.parametrize("age", ["9000000d", "99999999d"])
def test_an_age_beyond_all_time(db: Database, age: str) -> None:
    """An age that reaches back further than Python's time is older than every job."""
    put_one(db, RawJob(TOPIC, 1, AppJob))
    assert make(db, Move.CANCEL, topics=[TOPIC], older_than=age).preview().total == 0
    assert make(db, Move.CANCEL, topics=[TOPIC], newer_than=age).preview().total == 1


def test_a_job_that_changed_is_left(crowd: Database) -> None:
    """What somebody else moved between the look and the batch is left as it is, and counted (I3)."""
    changed: list[uuid.UUID] = []

    def interfere(_tally: Tally) -> None:
        if not changed:
            row = crowd.rows(state="canceled")[-1]
            changed.append(row["id"])
            crowd.execute("UPDATE job SET state = 'pending' WHERE state = 'canceled'")

    tally = make(crowd, Move.DELETE, states=[State.DEAD, State.CANCELED], topics=[TOPIC]).run(interfere)
    assert tally.moved + tally.left <= 4
    assert tally.moved >= 2
    assert [row["state"] for row in crowd.rows(id=changed[0])] == ["pending"]


def test_each_batch_is_a_transaction(crowd: Database) -> None:
    """A batch is committed before the next begins, so that nobody waits for all of them."""
    committed: list[int] = []
    make(crowd, Move.DELETE, states=[State.DONE]).run(lambda _tally: committed.append(states(crowd)["done"]))
    assert committed == [1, 0]


def test_a_locked_row_is_left(pg: Database) -> None:
    """A row that somebody has locked is passed over and counted, and the others are moved."""
    first, *_ = put(pg, *(RawJob(TOPIC, number) for number in range(5)))
    with pg.engine.connect() as connection:
        connection.execute(text("SELECT 1 FROM job WHERE id = :id FOR UPDATE"), {"id": first})
        assert make(pg, Move.CANCEL, topics=[TOPIC]).run() == Tally(4, 1)
        connection.rollback()
    assert make(pg, Move.CANCEL, topics=[TOPIC]).run() == Tally(1, 0)


def test_rows_that_refer_to_a_job(crowd: Database) -> None:
    """A job that a foreign key refers to is left, and the others are deleted."""
    kept = crowd.rows(state="dead")[1]["id"]
    kind = "uuid" if crowd.name == "postgresql" else "char(32)"
    crowd.execute(f"CREATE TABLE receipt (job_id {kind} REFERENCES job (id))")
    crowd.execute("INSERT INTO receipt VALUES (:id)", id=kept if crowd.name == "postgresql" else kept.hex)
    if crowd.name == "sqlite":
        event.listen(crowd.engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
        crowd.engine.dispose()
    assert make(crowd, Move.DELETE, states=[State.DEAD]).run() == Tally(2, 1)
    assert [row["id"] for row in crowd.rows(state="dead")] == [kept]
    crowd.execute("DROP TABLE receipt")


def test_many_with_one_instant(db: Database) -> None:
    """Jobs that all changed at the same moment are each seen once."""
    put(db, *(RawJob(TOPIC, number) for number in range(20)))
    db.execute("UPDATE job SET state = 'dead', updated_at = '2020-01-01 00:00:00.000000'")
    assert make(db, Move.DELETE, topics=[TOPIC]).run() == Tally(20, 0)


class Listening:
    """A worker, as far as wake-ups go."""

    def __init__(self) -> None:
        self.jobs = 0
        self.canceled: list[uuid.UUID] = []

    def jobs_enqueued(self) -> None:
        self.jobs += 1

    def job_canceled(self, job_id: uuid.UUID) -> None:
        self.canceled.append(job_id)


def test_workers_are_told(crowd: Database) -> None:
    """Workers are woken for jobs that became due, and told of those that were canceled while they ran (T5)."""
    ear = Listening()
    wake.listen(JOB, ear)
    make(crowd, Move.RETRY, topics=[OTHER]).run()
    assert ear.jobs == 2
    make(crowd, Move.RUN_NOW, **EVERY).run()
    assert ear.jobs > 2
    running = {row["id"] for row in crowd.rows(state="processing")}
    make(crowd, Move.CANCEL, states=[State.PROCESSING]).run()
    assert set(ear.canceled) == running


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"states": [State.DONE]},
        {"older_than": "1"},
        {"topics": [TOPIC], "newer_than": "soon"},
        {"older_than": "1h", "newer_than": "60m"},
    ],
)
def test_what_cannot_be_meant_is_refused(db: Database, filters: dict[str, Any]) -> None:
    """No filter at all, a state that the move does not take, and an age without a unit are refused at once."""
    with pytest.raises(OptionError):
        make(db, Move.RETRY, **filters)


def test_a_running_job_is_not_deleted(db: Database) -> None:
    """Jobs that run are canceled before they are deleted, so that their workers hear of it."""
    with pytest.raises(OptionError, match="State processing cannot be taken by delete"):
        make(db, Move.DELETE, states=[State.PROCESSING])


@pytest.mark.parametrize(
    "move, state, answer",
    [
        (Move.DELETE, State.DONE, MoveResult.MOVED),
        (Move.DELETE, State.PENDING, MoveResult.MOVED),
        (Move.DELETE, State.PROCESSING, MoveResult.REFUSED),
        (Move.RUN_NOW, State.FAILED, MoveResult.MOVED),
        (Move.RUN_NOW, State.PENDING, MoveResult.NOT_NEEDED),
        (Move.RUN_NOW, State.DEAD, MoveResult.REFUSED),
    ],
)
def test_one_job(crowd: Database, move: Move, state: State, answer: MoveResult) -> None:
    """The same moves of a single job say what they did."""
    job_id = crowd.rows(state=str(state))[0]["id"]
    with crowd.engine.begin() as connection:
        assert move_one(JOB, move, connection, job_id) == answer
        assert move_one(JOB, move, connection, uuid.uuid4()) == MoveResult.NOT_FOUND


def test_a_missing_table_is_named(db: Database) -> None:
    """Where the table is not there, the error says how to make it."""

    class Elsewhere(JobBase):
        table_name = "elsewhere"

    with pytest.raises(SchemaError, match="no table 'elsewhere'"):
        Bulk(db.engine, Elsewhere, Move.RETRY, topics=[TOPIC]).preview()
