"""Jobs live as the contract says, whatever is done to them in whatever order.

Hypothesis makes up histories: enqueues, claims of two workers, outcomes in time and too late, renewals, the reaper, an
operator's moves, retention, rollbacks and the passing of time. A model in plain Python says after each step what every
row must be, and the invariants are checked against the table itself.

Time in the model is in whole seconds, and the clock is moved by whole minutes. Delays, leases and the time to live are
odd half minutes, so that the moments which the test itself takes decide nothing.

``BROOQ_LIVES`` in the environment asks for that many histories, random ones.
"""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, MetaData

from brooq_sa import CancelResult, JobBase, NewJob, RetryResult, cancel, enqueue, enqueue_many, retry
from brooq_sa.states import ACTIVE, READY, TERMINAL, State
from brooq_sa.store import TOO_MANY_CRASHES, Claimed, JobStore, Outcome
from databases import JOB, Database

HISTORIES = int(os.environ.get("BROOQ_LIVES", "0"))
PROFILE = settings(
    max_examples=HISTORIES or 30,
    stateful_step_count=100 if HISTORIES else 40,
    derandomize=not HISTORIES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    print_blob=True,
)

STORE = JobStore(JOB)
LEASE, TTL = 90, 90
TOLERANCE = 25

Draw = Callable[..., Any]


class Base(JobBase):
    metadata = MetaData()


class A(Base, topic="a"):
    pass


class B(Base, topic="b", priority=1):
    pass


KINDS = {"a": A, "b": B}


@dataclass(frozen=True)
class Row:
    """What the model knows of a row; instants in seconds of its own clock."""

    topic: str
    key: str | None
    priority: int
    available_at: int
    state: State = State.PENDING
    attempts: int = 0
    locked_by: str | None = None
    locked_until: int | None = None
    error: str | None = None
    changed_at: int = 0
    crashes: int = 0
    may_be_dead: bool = False


@dataclass(frozen=True)
class Holding:
    """A claim as its worker remembers it, however long ago."""

    job: Claimed
    worker: str


ACTIONS = (
    *("enqueue", "enqueue_many"),
    *("claim", "claim", "claim"),
    *("settle", "settle", "settle"),
    *("renew", "reap", "reap", "purge"),
    *("cancel", "cancel_in_plain_sql", "retry", "retry"),
    *("time_passes", "time_passes"),
)

keys = st.sampled_from([None, "", " ", "k1", "k2"])
topics = st.sampled_from(["a", "b"])
workers = st.sampled_from(["worker-1", "worker-2"])
delays = st.sampled_from([0, 0, 30, 90])
priorities = st.sampled_from([None, -1, 0, 1])
rolled_back = st.integers(0, 9).map(lambda number: number == 0)
ways = st.sampled_from(["done", "failed", "dead", "canceled", "preserve", "release"])


class LifeOfJobs(RuleBasedStateMachine):
    """The table, and the model beside it."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self.db = db
        self.now = 0
        self.rows: dict[uuid.UUID, Row] = {}
        self.jobs: list[uuid.UUID] = []
        self.claims: list[Holding] = []
        self.before: dict[uuid.UUID, dict[str, Any]] = {}
        self.may_leave_terminal: set[uuid.UUID] = set()
        db.execute("DELETE FROM job")

    @contextmanager
    def transaction(self, *, undone: bool = False) -> Iterator[Connection]:
        """A caller's transaction, which may be rolled back."""
        with self.db.engine.connect() as connection:
            yield connection
            if undone:
                connection.rollback()
            else:
                connection.commit()

    def change(self, job_id: uuid.UUID, **columns: Any) -> None:
        """The row is written by the model: outcomes and operators touch `updated_at` too."""
        self.rows[job_id] = replace(self.rows[job_id], changed_at=self.now, **columns)

    def holder_of(self, topic: str, key: str | None) -> uuid.UUID | None:
        """The job that has the key."""
        return next((each for each, row in self.rows.items() if key and (row.topic, row.key) == (topic, key)), None)

    # --- enqueuing

    @initialize()
    def begin_with_some_jobs(self) -> None:
        """There is something to take from the first step on."""
        with self.transaction() as connection:
            ids = [enqueue(connection, KINDS[topic]()).id for topic in "aaabb"]
        for job_id, topic in zip(ids, "aaabb", strict=True):
            self.add(job_id, self.new_row(topic, None, 0, None))

    def add(self, job_id: uuid.UUID, row: Row) -> None:
        """The job is in the table from now on."""
        self.jobs.append(job_id)
        self.rows[job_id] = row

    def new_row(self, topic: str, key: str | None, delay: int, priority: int | None) -> Row:
        kinds_own = {"a": 0, "b": 1}[topic]
        return Row(
            topic, key or None, kinds_own if priority is None else priority, self.now + delay, changed_at=self.now
        )

    def enqueue(self, draw: Draw) -> None:
        topic, key, delay, priority, undone = (draw(each) for each in (topics, keys, delays, priorities, rolled_back))
        with self.transaction(undone=undone) as connection:
            answer = enqueue(connection, KINDS[topic](), key=key, delay=timedelta(seconds=delay), priority=priority)
        holder = self.holder_of(topic, key)
        assert answer.created == (holder is None)
        if holder is not None:
            assert answer.id == holder
        elif not undone:
            self.add(answer.id, self.new_row(topic, key, delay, priority))

    def enqueue_many(self, draw: Draw) -> None:
        topic, batch = draw(topics), draw(st.lists(st.tuples(keys, delays), min_size=1, max_size=4))
        news = [NewJob(KINDS[topic](), key, delay=timedelta(seconds=delay)) for key, delay in batch]
        with self.transaction() as connection:
            answers = enqueue_many(connection, news)
        for (key, delay), answer in zip(batch, answers, strict=True):
            holder = self.holder_of(topic, key)
            assert answer.created == (holder is None)
            if holder is None:
                self.add(answer.id, self.new_row(topic, key, delay, None))
            else:
                assert answer.id == holder

    # --- a worker's moves

    def claim(self, draw: Draw) -> None:
        want = draw(st.dictionaries(topics, st.integers(1, 3), min_size=1))
        worker, room, undone = draw(workers), draw(st.integers(1, 4)), draw(rolled_back)
        expected = self.expected_claim(want, room)
        with self.transaction(undone=undone) as connection:
            taken = STORE.claim(connection, want, room=room, worker=worker, lease=timedelta(seconds=LEASE))
        assert {job.id for job in taken} == expected
        assert len(taken) == len(expected)
        for job in taken:
            assert job.attempt == self.rows[job.id].attempts + 1
            if not undone:
                self.claims.append(Holding(job, worker))
                lease = {"locked_by": worker, "locked_until": self.now + LEASE}
                self.change(job.id, state=State.PROCESSING, attempts=job.attempt, **lease)

    def expected_claim(self, want: dict[str, int], room: int) -> set[uuid.UUID]:
        """The due jobs of each topic in order of the real row's priority, ready time and id."""
        chosen: list[uuid.UUID] = []
        for topic, most in want.items():
            due = [
                row
                for row in self.db.rows(topic=topic)
                if self.rows[row["id"]].state in READY and self.rows[row["id"]].available_at <= self.now
            ]
            due.sort(key=lambda row: (row["priority"], row["available_at"], row["id"]))
            chosen += [row["id"] for row in due[: min(most, room - len(chosen))]]
        return set(chosen)

    def is_held(self, holding: Holding) -> bool:
        """Whether a claim still holds its job."""
        row = self.rows.get(holding.job.id)
        return row is not None and (row.state, row.locked_by, row.attempts) == (
            State.PROCESSING,
            holding.worker,
            holding.job.attempt,
        )

    def settle(self, draw: Draw) -> None:
        """A worker reports, perhaps long after it lost the jobs."""
        if not self.claims:
            return
        chosen = st.tuples(st.sampled_from(self.claims), ways)
        holdings = draw(st.lists(chosen, min_size=1, max_size=4, unique_by=lambda each: each[0].job.id))
        worker = holdings[0][0].worker
        self.settle_all([each for each in holdings if each[0].worker == worker], draw(delays), draw(rolled_back))

    def settle_all(self, holdings: list[tuple[Holding, str]], delay: int, undone: bool) -> None:
        outcomes = [self.outcome(holding, way, delay) for holding, way in holdings]
        expected = {holding.job.holding for holding, _ in holdings if self.is_held(holding)}
        with self.transaction(undone=undone) as connection:
            assert STORE.settle(connection, holdings[0][0].worker, outcomes) == expected
        if undone:
            return
        for (holding, way), outcome in zip(holdings, outcomes, strict=True):
            if holding.job.holding in expected:
                self.apply(outcome, died=way == "dead")

    def outcome(self, holding: Holding, way: str, delay: int) -> Outcome:
        job = holding.job
        after = timedelta(seconds=delay)
        match way:
            case "preserve":
                return Outcome(job.id, job.attempt, State.FAILED, after, "preserved", give_back=True)
            case "release":
                return Outcome(job.id, job.attempt, State.PENDING, timedelta(0), give_back=True)
            case "failed":
                return Outcome(job.id, job.attempt, State.FAILED, after, f"failure {job.attempt}")
            case "done":
                return Outcome(job.id, job.attempt, State.DONE)
            case _:
                return Outcome(job.id, job.attempt, State(way), None, f"{way} at {job.attempt}")

    def apply(self, outcome: Outcome, *, died: bool) -> None:
        row = self.rows[outcome.id]
        delay = None if outcome.delay is None else int(outcome.delay.total_seconds())
        self.change(
            outcome.id,
            state=outcome.state,
            attempts=row.attempts - outcome.give_back,
            available_at=row.available_at if delay is None else self.now + delay,
            error=outcome.error or row.error,
            locked_by=None,
            locked_until=None,
            may_be_dead=died,
        )

    def renew(self, draw: Draw) -> None:
        worker = draw(workers)
        mine = [each for each in self.claims if each.worker == worker and draw(st.booleans())]
        # A worker asks for one attempt of a job, the last that it knows of.
        last = {each.job.id: each for each in sorted(mine, key=lambda each: each.job.attempt)}
        expected = {each.job.holding for each in last.values() if self.is_held(each)}
        with self.transaction() as connection:
            renewal = STORE.renew(
                connection, worker, [each.job.holding for each in last.values()], timedelta(seconds=LEASE)
            )
        assert (renewal.renewed, renewal.kept) == (expected, set())
        canceled = {job_id for job_id, row in self.rows.items() if row.state is State.CANCELED}
        assert {job_id for job_id, _ in renewal.canceled} <= canceled
        for job_id, _ in expected:
            self.rows[job_id] = replace(self.rows[job_id], locked_until=self.now + LEASE)

    # --- upkeep and operators

    def reap(self, draw: Draw) -> None:
        limit, ceilings, undone = draw(st.integers(1, 3)), draw(st.sampled_from([{}, {}, {"a": 2}])), draw(rolled_back)
        lapsed = {
            job_id
            for job_id, row in self.rows.items()
            if row.state is State.PROCESSING and (row.locked_until or 0) < self.now
        }
        with self.transaction(undone=undone) as connection:
            reaped = STORE.reap(connection, limit=limit, ceilings=ceilings)
        assert {each.id for each in reaped} <= lapsed
        assert len(reaped) == min(limit, len(lapsed))
        for each in reaped:
            row = self.rows[each.id]
            is_parked = row.crashes + 1 >= ceilings.get(row.topic, math.inf)
            state = State.DEAD if is_parked else State.PENDING
            assert each == (each.id, row.topic, row.attempts, row.crashes + 1, state)
            if not undone:
                self.change(
                    each.id,
                    state=state,
                    crashes=each.crashes,
                    error=TOO_MANY_CRASHES if is_parked else row.error,
                    may_be_dead=is_parked,
                    available_at=self.now,
                    locked_by=None,
                    locked_until=None,
                )

    def purge(self, draw: Draw) -> None:
        limit = draw(st.integers(1, 3))
        old = [row for row in self.db.rows() if self.is_old(self.rows[row["id"]])]
        old.sort(key=lambda row: row["updated_at"])
        with self.transaction() as connection:
            topics = STORE.purge(connection, ttl=timedelta(seconds=TTL), limit=limit)
        left = {row["id"] for row in self.db.rows()}
        gone = self.rows.keys() - left
        oldest = Counter(row["updated_at"] for row in old[:limit])
        assert Counter(row["updated_at"] for row in old if row["id"] in gone) == oldest
        assert sorted(topics) == sorted(self.rows[job_id].topic for job_id in gone)
        for job_id in gone:
            del self.rows[job_id]

    def is_old(self, row: Row) -> bool:
        return row.state in TERMINAL and row.changed_at < self.now - TTL

    def some_job(self, draw: Draw, *states: State) -> uuid.UUID:
        """Mostly a job in one of the states; any that there ever was, otherwise."""
        fitting = [job_id for job_id, row in self.rows.items() if row.state in states]
        job_id: uuid.UUID = draw(st.sampled_from(fitting if fitting and draw(st.integers(0, 3)) else self.jobs))
        return job_id

    def cancel(self, draw: Draw) -> None:
        job_id, undone = self.some_job(draw, *ACTIVE), draw(rolled_back)
        row = self.rows.get(job_id)
        with self.transaction(undone=undone) as connection:
            answer = cancel(connection, Base, job_id)
        if row is None:
            assert answer == CancelResult.NOT_FOUND
        elif row.state in TERMINAL:
            assert answer == CancelResult.TOO_LATE
        else:
            assert answer == (CancelResult.TOLD_TO_STOP if row.state is State.PROCESSING else CancelResult.CANCELED)
            if not undone:
                self.change(job_id, state=State.CANCELED, locked_by=None, locked_until=None)

    def cancel_in_plain_sql(self, draw: Draw) -> None:
        """An operator at the console changes the state, and nothing else."""
        job_id = self.some_job(draw, State.PROCESSING)
        row = self.rows.get(job_id)
        if row is not None and row.state not in TERMINAL:
            text = str(job_id) if self.db.name == "postgresql" else job_id.hex
            self.db.execute(f"UPDATE job SET state = 'canceled' WHERE id = '{text}'")
            self.rows[job_id] = replace(row, state=State.CANCELED)

    def retry(self, draw: Draw) -> None:
        job_id, undone = self.some_job(draw, State.FAILED, State.DEAD, State.CANCELED), draw(rolled_back)
        row = self.rows.get(job_id)
        with self.transaction(undone=undone) as connection:
            answer = retry(connection, Base, job_id)
        if row is None:
            assert answer == RetryResult.NOT_FOUND
        elif row.state is State.DONE:
            assert answer == RetryResult.REFUSED
        elif row.state in (State.PENDING, State.PROCESSING):
            assert answer == RetryResult.NOT_NEEDED
        else:
            assert answer == RetryResult.RETRIED
            if not undone:
                self.may_leave_terminal.add(job_id)
                self.change(
                    job_id, state=State.PENDING, available_at=self.now, locked_by=None, locked_until=None, crashes=0
                )

    def time_passes(self, draw: Draw) -> None:
        minutes = draw(st.integers(1, 3))
        self.db.shift_clock(timedelta(minutes=minutes))
        self.now += minutes * 60

    # --- one step, and what must be true after it

    # Actions are drawn within one rule: of many rules, Hypothesis leaves half out in each history, and the histories
    # that need several of them would hardly ever come about.
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One of the moves, the common ones more often."""
        action = data.draw(st.sampled_from(ACTIONS), label="action")
        getattr(self, action)(data.draw)

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        real = {row["id"]: row for row in self.db.rows()}
        assert real.keys() == self.rows.keys()
        for job_id, row in self.rows.items():
            self.check_row(real[job_id], row)
        self.check_promises(real)
        self.before = real
        self.may_leave_terminal = set()

    def check_row(self, real: dict[str, Any], row: Row) -> None:
        names = ("topic", "state", "attempts", "crashes", "priority", "locked_by", "last_error", "idempotency_key")
        expected = (row.topic, row.state, row.attempts, row.crashes, row.priority, row.locked_by, row.error, row.key)
        assert tuple(real[name] for name in names) == expected
        self.check_instant(real["available_at"], row.available_at)
        self.check_instant(real["locked_until"], row.locked_until)
        self.check_instant(real["updated_at"], row.changed_at)

    def check_instant(self, real: datetime | None, expected: int | None) -> None:
        assert (real is None) == (expected is None)
        if real is not None and expected is not None:
            left = (real - datetime.now(UTC)).total_seconds()
            assert abs(left - (expected - self.now)) < TOLERANCE

    def check_promises(self, real: dict[uuid.UUID, dict[str, Any]]) -> None:
        for job_id, row in real.items():
            if row["state"] == State.PROCESSING:  # I1
                assert row["locked_by"] is not None
                assert row["locked_until"] is not None
            was = self.before.get(job_id)
            if was and was["state"] in TERMINAL and row["state"] != was["state"]:  # I3
                assert job_id in self.may_leave_terminal
            if row["state"] == State.DEAD:  # I7
                assert self.rows[job_id].may_be_dead
        held = Counter(
            (row["topic"], row["idempotency_key"]) for row in real.values() if row["idempotency_key"] is not None
        )
        assert all(count == 1 for count in held.values())  # I8
        assert ("a", "") not in held
        assert ("b", "") not in held


def test_life_of_jobs(db: Database) -> None:
    """Under every history, I1, I2, I3, I6, I7, I8 and I12 hold after each step, and each row is what it must be.

    (I1) (I2) (I3) (I6) (I7) (I8) (I12)
    """
    make: Any = functools.partial(LifeOfJobs, db)
    run_state_machine_as_test(make, settings=PROFILE)
