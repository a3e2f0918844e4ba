"""The moves of a job, run on a connection that the caller provides.

One place runs the statements of `brooq_sa.statements`, for the worker, the pull style, the command line and the tests
alike. It opens nothing, begins nothing and commits nothing. What the two databases do differently (a claim is one
statement on PostgreSQL and a few on SQLite) is known here and nowhere above.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, Table

from . import wake
from .exc import AccessError
from .schema import PRIORITIES
from .statements import claim, enqueue, inspect, lease, operate, pause, progress, settle, upkeep
from .statements.claim import Place
from .states import CancelResult, RetryResult, State

TOO_MANY_CRASHES = "parked: its worker crashed while it ran, as often as max_crashes allows"
"""The `last_error` of a job that kept killing its worker."""

_ROUNDS = 10
"""How often a move that met no row is tried again, since the job may have changed in between."""

Holding = tuple[uuid.UUID, int]
"""A job's id and the attempt that holds it: what a fence is about."""


class Claimed(NamedTuple):
    """A job as a claim takes it, in the column order of `brooq_sa.statements.claim.returned`.

    Attributes:
        payload: JSON text.
        attempt: this taking's number, from 1.
        waited: seconds from ready to claimed.
        instant: of readiness, in microseconds since 1970; None on SQLite.
    """

    id: uuid.UUID
    topic: str
    payload: str
    attempt: int
    priority: int
    waited: float
    key: str | None
    instant: int | None = None

    @property
    def holding(self) -> Holding:
        return self.id, self.attempt


class Outcome(NamedTuple):
    """How an attempt ended.

    Attributes:
        id: of the job.
        attempt: that ended.
        state: the job's next one; PENDING is a release.
        delay: until the job is available again; None leaves it.
        error: for `last_error`; None leaves it.
        give_back: whether the attempt is not charged after all.
    """

    id: uuid.UUID
    attempt: int
    state: State
    delay: timedelta | None = None
    error: str | None = None
    give_back: bool = False

    @property
    def holding(self) -> Holding:
        return self.id, self.attempt


class Reaped(NamedTuple):
    """A job that came back from a worker which let its lease run out."""

    id: uuid.UUID
    topic: str
    attempts: int
    crashes: int
    state: State

    @property
    def is_parked(self) -> bool:
        """Whether it is dead, for having crashed too often."""
        return self.state is State.DEAD


class Renewal(NamedTuple):
    """What became of the leases that a worker asked to renew; those in none of these sets are lost.

    Attributes:
        renewed: hold for another lease.
        kept: are still held, but their rows were locked by somebody for the moment.
        canceled: their jobs have been canceled.
    """

    renewed: set[Holding]
    kept: set[Holding]
    canceled: set[Holding]


class JobStore:
    """The moves of the jobs in one table."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def claim(
        self,
        connection: Connection,
        want: Mapping[str, int],
        *,
        room: int,
        worker: str,
        lease: timedelta,
        places: Mapping[str, Place] | None = None,
    ) -> list[Claimed]:
        """Take due jobs under a lease.

        Args:
            want: how many to take at most, by topic; earlier topics first.
            room: how many to take at most in all.
            places: where to begin in a topic, which spares PostgreSQL the dead entries before it; by default at the
                start.

        Returns:
            The jobs in the order they are to start: priority, ready time, id.
        """
        terms = {"worker": worker, "lease": lease.total_seconds()}
        if connection.dialect.name == "sqlite":
            rows: Sequence[Any] = list(self._claim_by_level(connection, want, room, terms))
        else:
            listed = [claim.wanted(topic, most, (places or {}).get(topic)) for topic, most in want.items()]
            rows = connection.execute(claim.claim(self.table), {"want": listed, "room": room, **terms}).all()
        return sorted(map(Claimed._make, rows), key=_turn)

    def _claim_by_level(
        self, connection: Connection, want: Mapping[str, int], room: int, terms: dict[str, Any]
    ) -> Iterable[Any]:
        """SQLite's claim: one statement a topic and priority, all inside the caller's BEGIN IMMEDIATE."""
        for topic, most in want.items():
            left = min(most, room)
            level = PRIORITIES.start - 1
            while left:
                place = {"of_topic": topic, "above": level}
                level = connection.execute(claim.next_priority(self.table), place).scalar_one()
                if level is None:
                    break
                taking = {"of_topic": topic, "level": level, "room": left, **terms}
                rows = connection.execute(claim.claim_level(self.table), taking).all()
                yield from rows
                left -= len(rows)
                room -= len(rows)

    def settle(self, connection: Connection, worker: str, outcomes: Collection[Outcome]) -> set[Holding]:
        """Write outcomes, each only if `worker` still holds the job by that attempt.

        Returns:
            Those written. The others had lost their lease, and nothing of them was written.
        """
        successes: dict[int, list[Holding]] = defaultdict(list)
        others: dict[uuid.UUID, Outcome] = {}
        for outcome in outcomes:
            if outcome.state is State.DONE:
                successes[outcome.attempt].append(outcome.holding)
            elif outcome.id not in others or others[outcome.id].attempt < outcome.attempt:
                others[outcome.id] = outcome  # of two attempts of one job, only the later can hold it
        written: set[Holding] = set()
        for attempt, holdings in successes.items():
            terms = {"ids": [job_id for job_id, _ in holdings], "worker": worker, "attempt": attempt}
            result = connection.execute(settle.settle_done(self.table), terms)
            if result.rowcount == len(holdings) and connection.dialect.name == "postgresql":
                result.close()  # without reading which: all of them
                written.update(holdings)
            else:
                written.update((job_id, attempt) for (job_id,) in result.all())
        if others:
            entries = {job_id: _entry(outcome) for job_id, outcome in others.items()}
            terms = {"ids": list(others), "worker": worker, "entries": entries}
            rows = connection.execute(settle.settle_otherwise(self.table), terms)
            written.update(others[job_id].holding for (job_id,) in rows)
        return written

    def settled(self, connection: Connection, outcomes: Collection[Outcome]) -> set[Holding]:
        """Those of the outcomes that stand in their rows.

        For when the connection broke before the database answered: what `settle` then does not find may have been
        written the first time.
        """
        ids = [outcome.id for outcome in outcomes]
        standing = {row[:3] for row in connection.execute(lease.look(self.table), {"ids": ids})}
        return {
            outcome.holding
            for outcome in outcomes
            if (outcome.id, outcome.attempt - int(outcome.give_back), outcome.state) in standing
        }

    def renew(self, connection: Connection, worker: str, held: Collection[Holding], lease_for: timedelta) -> Renewal:
        """Renew the leases of what `worker` holds."""
        terms = {
            "ids": [job_id for job_id, _ in held],
            "entries": {job_id: {"attempt": attempt} for job_id, attempt in held},
            "worker": worker,
            "lease": lease_for.total_seconds(),
        }
        renewed = {(job_id, attempt) for job_id, attempt in connection.execute(lease.renew(self.table), terms)}
        missing = set(held) - renewed
        return Renewal(renewed, *self._look(connection, worker, missing)) if missing else Renewal(renewed, set(), set())

    def report(self, connection: Connection, worker: str, told: Mapping[Holding, str]) -> None:
        """Write how far those of them that `worker` still holds have come, each as JSON text."""
        terms = {
            "ids": [job_id for job_id, _ in told],
            "entries": {job_id: {"attempt": attempt, "progress": text} for (job_id, attempt), text in told.items()},
            "worker": worker,
        }
        connection.execute(progress.report(self.table), terms)

    def release_unknown(self, connection: Connection, worker: str, known: Collection[uuid.UUID]) -> list[uuid.UUID]:
        """Give back, uncharged, what `worker` holds without knowing: a claim took it whose answer never came."""
        terms = {"worker": worker, "ids": list(known)}
        return list(connection.execute(lease.release_unknown(self.table), terms).scalars())

    def _look(self, connection: Connection, worker: str, missing: set[Holding]) -> tuple[set[Holding], set[Holding]]:
        """Of the holdings that were not renewed: those still held, and those whose job has been canceled."""
        kept, canceled = set(), set()
        for job_id, attempts, state, holder in connection.execute(
            lease.look(self.table), {"ids": [job_id for job_id, _ in missing]}
        ):
            holding = (job_id, attempts)
            if state == State.PROCESSING and holder == worker and holding in missing:
                kept.add(holding)
            elif state == State.CANCELED and holding in missing:
                canceled.add(holding)
        return kept, canceled

    def reap(self, connection: Connection, *, limit: int, ceilings: Mapping[str, int] | None = None) -> list[Reaped]:
        """Return up to `limit` jobs whose lease ran out to `pending`.

        Args:
            ceilings: by topic, the number of crashes that leaves a job dead instead.
        """
        terms = {"limit": limit, "ceilings": dict(ceilings or {}), "reason": TOO_MANY_CRASHES}
        rows = connection.execute(upkeep.reap(self.table), terms)
        return [
            Reaped(job_id, topic, attempts, crashes, State(state)) for job_id, topic, attempts, crashes, state in rows
        ]

    def purge(
        self, connection: Connection, *, ttl: timedelta, limit: int, but: Collection[uuid.UUID] = ()
    ) -> list[str]:
        """Delete up to `limit` terminal jobs older than `ttl`, oldest first; their topics.

        Args:
            but: jobs to leave alone.
        """
        terms = {"ttl": ttl.total_seconds(), "limit": limit, "ids": list(but)}
        return list(connection.execute(upkeep.purge(self.table), terms).scalars())

    def expired(
        self, connection: Connection, *, ttl: timedelta, limit: int, but: Collection[uuid.UUID] = ()
    ) -> list[uuid.UUID]:
        """The jobs that `purge` would try to delete."""
        terms = {"ttl": ttl.total_seconds(), "limit": limit, "ids": list(but)}
        return list(connection.execute(upkeep.expired(self.table), terms).scalars())

    def purge_these(self, connection: Connection, job_ids: Collection[uuid.UUID]) -> list[str]:
        """Delete those of the jobs that are terminal; their topics."""
        return list(connection.execute(upkeep.purge_these(self.table), {"ids": list(job_ids)}).scalars())

    def ready_topics(self, connection: Connection) -> list[str]:
        """The topics that have ready jobs."""
        return list(connection.execute(inspect.ready_topics(self.table)).scalars())

    def cancel(self, connection: Connection, job_id: uuid.UUID) -> CancelResult:
        """Cancel a job that waits or is leased.

        Raises:
            AccessError: the database keeps the job as it is.
        """
        for _ in range(_ROUNDS):
            if self._moved(connection, operate.cancel_waiting(self.table), job_id):
                return CancelResult.CANCELED
            if self._moved(connection, operate.cancel_processing(self.table), job_id):
                notify(connection, self.table, f"{wake.CANCELED}{job_id}")
                wake.tell_of_cancel(connection, self.table, job_id)
                return CancelResult.TOLD_TO_STOP
            match self._state(connection, job_id):
                case None:
                    return CancelResult.NOT_FOUND
                case State.DONE | State.DEAD | State.CANCELED:
                    return CancelResult.TOO_LATE
                case _:
                    continue  # it changed hands between the two statements
        raise self._kept(connection, job_id, "canceled")

    def retry(self, connection: Connection, job_id: uuid.UUID) -> RetryResult:
        """Send a failed, dead or canceled job round again, now.

        Raises:
            AccessError: the database keeps the job as it is.
        """
        for _ in range(_ROUNDS):
            if self._moved(connection, operate.retry(self.table), job_id):
                notify(connection, self.table, wake.JOBS)
                wake.tell_of_jobs(connection, self.table)
                return RetryResult.RETRIED
            match self._state(connection, job_id):
                case None:
                    return RetryResult.NOT_FOUND
                case State.DONE:
                    return RetryResult.REFUSED
                case State.PENDING | State.PROCESSING:
                    return RetryResult.NOT_NEEDED
                case _:
                    continue
        raise self._kept(connection, job_id, "retried")

    def pause(self, connection: Connection, topic: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Let no claim take jobs of the topic; whether it was open until now."""
        terms = {"new_topic": topic, "new_reason": reason, "new_paused_by": by}
        return connection.execute(pause.pause(self.table, connection.dialect.name), terms).first() is not None

    def resume(self, connection: Connection, topic: str) -> bool:
        """Let claims take jobs of the topic again; whether it was paused until now."""
        if connection.execute(pause.resume(self.table), {"topic": topic}).first() is None:
            return False
        notify(connection, self.table, wake.JOBS + topic)
        wake.tell_of_jobs(connection, self.table)
        return True

    def _kept(self, connection: Connection, job_id: uuid.UUID, moved: str) -> AccessError:
        state = self._state(connection, job_id)
        return AccessError(
            f"Job {job_id} could not be {moved}: {_ROUNDS} updates changed no row, and it is {state or 'gone'}. Look"
            f" for a trigger or a row security policy on table {self.table.fullname!r} that keeps updates out.",
            (),
        )

    @staticmethod
    def _moved(connection: Connection, statement: Executable, job_id: uuid.UUID) -> bool:
        return connection.execute(statement, {"job_id": job_id}).first() is not None

    def _state(self, connection: Connection, job_id: uuid.UUID) -> State | None:
        state = connection.execute(operate.state_of(self.table), {"job_id": job_id}).scalar()
        return None if state is None else State(state)


def _turn(job: Claimed) -> tuple[int, float, int]:
    """Where a job stands in the order in which jobs are to start."""
    return job.priority, -job.waited if job.instant is None else job.instant, job.id.int


def notify(connection: Connection, table: Table, hint: str) -> None:
    """Send a hint to the workers of a table when the transaction commits, on PostgreSQL."""
    if wake.can_notify(connection):
        connection.execute(enqueue.notify(), {"channel": wake.channel(table), "hint": hint}).close()


def _entry(outcome: Outcome) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "attempt": outcome.attempt,
        "state": outcome.state,
        "given_back": int(outcome.give_back),
    }
    if outcome.delay is not None:
        entry["delay"] = outcome.delay.total_seconds()
    if outcome.error is not None:
        entry["error"] = outcome.error
    return entry
