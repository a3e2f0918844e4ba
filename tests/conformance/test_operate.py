"""Cancel and retry do what they say, once, and say what they did."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from brooq_sa import AccessError, CancelResult, OptionError, RetryResult, State, cancel, retry
from conformance.samples import AppJob, claim, claim_one, ended, finish, put_one, settle
from databases import Database


def bring_to(db: Database, state: State) -> uuid.UUID:
    """A job in that state; its id."""
    job_id = put_one(db)
    if state is State.PROCESSING:
        claim_one(db)
    elif state is not State.PENDING:
        finish(db, state)
    return job_id


def do_cancel(db: Database, job_id: uuid.UUID) -> CancelResult:
    with db.engine.begin() as connection:
        return cancel(connection, AppJob, job_id)


def do_retry(db: Database, job_id: uuid.UUID) -> RetryResult:
    with db.engine.begin() as connection:
        return retry(connection, AppJob, job_id)


@pytest.mark.parametrize(
    "state, answer",
    [
        (State.PENDING, CancelResult.CANCELED),
        (State.FAILED, CancelResult.CANCELED),
        (State.PROCESSING, CancelResult.TOLD_TO_STOP),
        (State.DONE, CancelResult.TOO_LATE),
        (State.DEAD, CancelResult.TOO_LATE),
        (State.CANCELED, CancelResult.TOO_LATE),
    ],
)
def test_cancel_reaches_what_has_not_finished(db: Database, state: State, answer: CancelResult) -> None:
    """Cancel ends pending, failed and processing jobs, and leaves terminal ones as they are (I3, T5)."""
    job_id = bring_to(db, state)
    before = db.row()
    assert do_cancel(db, job_id) == answer
    if answer is CancelResult.TOO_LATE:
        assert db.row() == before
    else:
        row = db.row()
        assert (row["state"], row["locked_by"], row["locked_until"]) == ("canceled", None, None)
        assert row["attempts"] == before["attempts"]
        assert claim(db) == []


@pytest.mark.parametrize("state", [State.DONE, State.FAILED, State.DEAD, State.CANCELED, State.PENDING])
def test_a_canceled_jobs_holder_writes_nothing(db: Database, state: State) -> None:
    """What was canceled while it ran stays canceled, however the run ends (I3, T5)."""
    job_id = put_one(db)
    job = claim_one(db)
    do_cancel(db, job_id)
    before = db.row()
    assert not settle(db, job, ended(job, state, delay=timedelta(0)))
    assert db.row() == before


@pytest.mark.parametrize(
    "state, answer",
    [
        (State.FAILED, RetryResult.RETRIED),
        (State.DEAD, RetryResult.RETRIED),
        (State.CANCELED, RetryResult.RETRIED),
        (State.PENDING, RetryResult.NOT_NEEDED),
        (State.PROCESSING, RetryResult.NOT_NEEDED),
        (State.DONE, RetryResult.REFUSED),
    ],
)
def test_retry_sends_round_again_what_did_not_succeed(db: Database, state: State, answer: RetryResult) -> None:
    """Retry makes failed, dead and canceled jobs due now, attempts kept, and leaves the others alone (I3, I6)."""
    job_id = bring_to(db, state)
    before = db.row()
    assert do_retry(db, job_id) == answer
    if answer is RetryResult.RETRIED:
        row = db.row()
        assert (row["state"], row["attempts"], row["last_error"]) == ("pending", 1, "it broke")
        assert claim_one(db).attempt == 2
    else:
        assert db.row() == before


@pytest.mark.parametrize("operate", [do_cancel, do_retry])
def test_a_job_that_is_not_there_is_not_found(db: Database, operate: object) -> None:
    """An id that no job has is a normal answer (I3)."""
    put_one(db)
    assert operate(db, uuid.uuid4()) == "not found"  # type: ignore[operator]


def test_an_operator_acts_in_the_callers_transaction(db: Database) -> None:
    """A cancel or retry that the caller rolls back did nothing (I9)."""
    job_id = put_one(db)
    with db.engine.connect() as connection:
        assert cancel(connection, AppJob, job_id) == CancelResult.CANCELED
        assert retry(connection, AppJob, job_id) == RetryResult.RETRIED
        assert cancel(connection, AppJob, job_id) == CancelResult.CANCELED
        connection.rollback()
    assert db.states() == ["pending"]


def test_a_retried_job_keeps_its_key(db: Database) -> None:
    """A dead job that is sent round again still holds its key (I8)."""
    job_id = put_one(db, key="key")
    finish(db, State.DEAD)
    assert do_retry(db, job_id) == RetryResult.RETRIED
    assert db.row()["idempotency_key"] == "key"


STUBBORN = {
    "postgresql": (
        "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER stay BEFORE UPDATE ON job FOR EACH ROW EXECUTE FUNCTION stay()",
    ),
    "sqlite": ("CREATE TRIGGER stay BEFORE UPDATE ON job BEGIN SELECT RAISE(IGNORE); END",),
}


@pytest.mark.parametrize("state, move", [(State.PENDING, cancel), (State.PROCESSING, cancel), (State.FAILED, retry)])
def test_rows_that_the_database_keeps_as_they_are(db: Database, state: State, move: Callable[..., object]) -> None:
    """Where a trigger lets no update through, a move gives up and says where to look."""
    job_id = bring_to(db, state)
    with db.engine.connect() as connection:
        for statement in STUBBORN[db.name]:
            connection.execute(text(statement))
        with pytest.raises(AccessError, match=rf"{job_id} could not be .* it is {state}\. Look for a trigger"):
            move(connection, AppJob, job_id)
        connection.rollback()


def test_an_id_may_be_its_text(db: Database) -> None:
    """A web handler has ids as text: cancel and retry take them, and refuse by name what is no id."""
    job_id = put_one(db)
    with db.engine.begin() as connection:
        assert cancel(connection, AppJob, str(job_id)) == CancelResult.CANCELED
        assert retry(connection, AppJob, job_id.hex) == RetryResult.RETRIED
        for wrong in ("xyz", 17, (job_id, True)):
            with pytest.raises(OptionError, match=r"The job id is .* Give the `id` of an Enqueued"):
                cancel(connection, AppJob, wrong)  # type: ignore[arg-type]
