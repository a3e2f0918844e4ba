"""What an operator does to many jobs at once, a batch a transaction.

::

    bulk = Bulk(engine, AppJob, Move.RETRY, topics=["email.receipt"], error="Connection refused")
    print(bulk.preview().counts)
    print(bulk.run())

Each batch is committed by itself, and a job that was moved fits the filter no more. So a run that was interrupted is
gone on with by running the same again. What comes to fit after the first look, or changes after it, was not seen by
whoever decided, and is left alone: that also ends a run over a topic that others keep filling.
"""

from __future__ import annotations

import enum
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Table, select
from sqlalchemy.exc import IntegrityError

from . import access, wake
from .durations import parse_duration
from .exc import OptionError
from .functions import now
from .jobs import JobBase
from .session import explained
from .statements import bulk as statements
from .statements.bulk import Shape, Sweep
from .states import READY, TERMINAL, State
from .store import notify

BATCH = 500
"""How many jobs one transaction moves."""

WINDOW = 5_000
"""How many are looked for at once."""

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
"""Before every instant of a job."""

TICK = timedelta(milliseconds=1)
"""The step of SQLite's clock; what changed within the one of the first look was there to be seen."""


class Move(enum.StrEnum):
    """What is to be done to jobs."""

    RETRY = "retry"
    CANCEL = "cancel"
    DELETE = "delete"
    RUN_NOW = "run-now"

    @property
    def takes(self) -> tuple[State, ...]:
        """The states that jobs may be taken from."""
        return _TAKES[self]

    @property
    def states(self) -> tuple[State, ...]:
        """The states that they are taken from unless others are named."""
        return _UNLESS_NAMED.get(self, self.takes)


_TAKES = {
    Move.RETRY: (State.FAILED, State.DEAD, State.CANCELED),
    Move.CANCEL: (State.PENDING, State.FAILED, State.PROCESSING),
    # A job that runs is canceled first: its worker then hears of it.
    Move.DELETE: (State.PENDING, State.FAILED, *TERMINAL),
    Move.RUN_NOW: READY,
}
_UNLESS_NAMED = {Move.RETRY: (State.FAILED, State.DEAD), Move.DELETE: TERMINAL}
_STATEMENTS: dict[Move, Callable[[Table, State], Executable]] = {
    Move.RETRY: statements.retry,
    Move.CANCEL: statements.cancel,
    Move.DELETE: statements.remove,
    Move.RUN_NOW: statements.run_now,
}


class MoveResult(enum.StrEnum):
    """What a move did to one job."""

    MOVED = "moved"
    NOT_NEEDED = "not needed"
    REFUSED = "refused"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would be about.

    Attributes:
        counts: how many jobs fit, by state; states without any are left out.
        sample: some of them: id, topic, state, updated_at, last_error.
    """

    counts: dict[State, int]
    sample: list[dict[str, Any]]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(slots=True)
class Tally:
    """How far a run has come.

    Attributes:
        moved: how many jobs it has moved.
        left: how many it has left as they were: changed since they were seen, locked, or referred to by other tables.
    """

    moved: int = 0
    left: int = 0


class Bulk:
    """One move of all jobs that fit every filter. Building it opens no connection.

    Args:
        engine: where the jobs are; batches are committed on it.
        base: whose table they are in, or the table.
        topics: of these.
        states: in these; by default those of the move.
        error: whose last error contains this text, taken literally.
        older_than: last changed longer ago than that, a timedelta or a string with a unit.
        newer_than: last changed not as long ago as that.

    Raises:
        OptionError: no filter at all, a state that the move does not take, a duration that is none, or two that no age
            is between.
    """

    def __init__(
        self,
        engine: Engine,
        base: type[JobBase] | Table,
        move: Move,
        *,
        topics: Collection[str] = (),
        states: Collection[State] = (),
        error: str | None = None,
        older_than: timedelta | str | None = None,
        newer_than: timedelta | str | None = None,
    ) -> None:
        if not topics and not states and error is None and older_than is None and newer_than is None:
            raise OptionError("No filter is given, so all jobs would fit. Give a topic, a state, an error or an age.")
        if unfit := [each for each in states if each not in move.takes]:
            raise OptionError(f"State {unfit[0]} cannot be taken by {move}. It takes {', '.join(move.takes)}.")
        self._engine = engine
        self._job = base if isinstance(base, Table) else base.__table__
        self._move = move
        self._topics = sorted(set(topics))
        self._states = tuple(state for state in move.takes if state in (states or move.states))
        self._error = error
        self._older_than = None if older_than is None else parse_duration(older_than)
        self._newer_than = None if newer_than is None else parse_duration(newer_than)
        self._pinned: dict[str, datetime] | None = None
        if self._older_than is not None and self._older_than >= (self._newer_than or timedelta.max):
            raise OptionError(
                f"No job was last changed longer ago than {older_than} and not as long ago as {newer_than}."
                " Let older_than be the shorter of both, or leave out one."
            )

    def preview(self, sample: int = 5) -> Preview:
        """How many jobs fit now, and some of them; nothing is moved."""
        counts: dict[State, int] = defaultdict(int)
        shown: list[dict[str, Any]] = []
        with self._reading() as connection:
            for shape, terms in self._sweeps(connection):
                for state, jobs in connection.execute(statements.count(self._job, shape), terms):
                    counts[State(state)] += jobs
                if len(shown) < sample:
                    limit = {"limit": sample - len(shown)}
                    rows = connection.execute(statements.window(self._job, shape, goes_on=False), terms | limit)
                    shown += [dict(row) for row in rows.mappings()]
        return Preview(dict(counts), shown)

    def run(self, on_batch: Callable[[Tally], object] | None = None) -> Tally:
        """Move them all, a batch a transaction; how it went.

        Args:
            on_batch: called after each batch with the tally so far. What it raises ends the run, batches that were
                committed stay, and the same run again goes on.
        """
        tally = Tally()
        for rows in self._windows():
            for start in range(0, len(rows), BATCH):
                self._run_batch(rows[start : start + BATCH], tally)
                if on_batch is not None:
                    on_batch(tally)
        return tally

    def _windows(self) -> Iterator[Sequence[Any]]:
        with self._reading() as connection:
            sweeps = list(self._sweeps(connection))
        for shape, terms in sweeps:
            last: dict[str, Any] = {}
            while True:
                with self._reading() as connection:
                    statement = statements.window(self._job, shape, goes_on=bool(last))
                    rows = connection.execute(statement, terms | last | {"limit": WINDOW}).all()
                if rows:
                    yield rows
                if len(rows) < WINDOW:
                    break
                last = {f"last_{name}": getattr(rows[-1], name) for name in shape.order}

    def _sweeps(self, connection: Connection) -> Iterator[tuple[Shape, dict[str, Any]]]:
        pinned = self._pin(connection)
        terms: dict[str, Any] = dict(pinned)
        if self._error is not None:
            terms["error"] = statements.literally(self._error)
        for sweep in Sweep:
            states = tuple(state for state in self._states if state in sweep.states)
            if not states:
                continue
            shape = Shape(
                sweep,
                states,
                by_topic=bool(self._topics),
                by_error=self._error is not None,
                has_after="after" in pinned,
                has_before="before" in pinned,
                is_early=self._move is Move.RUN_NOW,
            )
            each_topic: list[dict[str, Any]] = [{"topic": topic} for topic in self._topics] or [{}]
            for topic in each_topic:
                yield shape, terms | topic

    def _pin(self, connection: Connection) -> dict[str, datetime]:
        """The ages as instants by the database's clock, as of the first look; and that look itself, as the latest."""
        if self._pinned is None:
            clock: datetime = connection.execute(select(now())).scalar_one()
            self._pinned = {"before": clock + TICK if self._older_than is None else _ago(clock, self._older_than)}
            if self._newer_than is not None:
                self._pinned["after"] = _ago(clock, self._newer_than)
        return self._pinned

    def _run_batch(self, rows: Sequence[Any], tally: Tally) -> None:
        by_state: dict[State, list[uuid.UUID]] = defaultdict(list)
        for row in rows:
            by_state[State(row.state)].append(row.id)
        for state, ids in by_state.items():
            moved = self._run_ids(state, ids)
            tally.moved += moved
            tally.left += len(ids) - moved

    def _run_ids(self, state: State, ids: list[uuid.UUID]) -> int:
        try:
            with self._engine.begin() as connection, explained(connection, self._job, privileges(self._move)):
                return len(_move_ids(connection, self._job, self._move, state, ids))
        except IntegrityError:
            # A foreign key of the user's refers to one of them: it is left, and the others go.
            if len(ids) == 1:
                return 0
            middle = len(ids) // 2
            return self._run_ids(state, ids[:middle]) + self._run_ids(state, ids[middle:])

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection for SELECTs, which on SQLite waits for nobody."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(brooq_begin="DEFERRED")
            with explained(connection, self._job, access.LOOK):
                if connection.dialect.name == "postgresql":
                    connection.execute(statements.by_index())
                yield connection


def _ago(clock: datetime, age: timedelta) -> datetime:
    """The instant of that age; or the first there is, since Python's time does not reach back as far as an age may."""
    return clock - min(age, clock - FIRST)


def move_one(job: Table, move: Move, connection: Connection, job_id: uuid.UUID) -> MoveResult:
    """Move one job, in the caller's transaction; what it did.

    Where somebody has locked its row, it waits for them, as long as the transaction's `lock_timeout` says.
    """
    for is_last in (False, True):
        state = connection.execute(select(job.c.state).where(job.c.id == job_id)).scalar()
        if state is None:
            return MoveResult.NOT_FOUND
        if state not in move.takes:
            return MoveResult.REFUSED
        if _move_ids(connection, job, move, State(state), [job_id]):
            return MoveResult.MOVED
        if not is_last:  # the move skips a row that is locked, and this does not
            connection.execute(select(job.c.id).where(job.c.id == job_id).with_for_update())
    return MoveResult.NOT_NEEDED if move is Move.RUN_NOW else MoveResult.REFUSED


def privileges(move: Move) -> access.Privileges:
    """What a role needs for the move."""
    return access.DELETE if move is Move.DELETE else access.OPERATE


def _move_ids(
    connection: Connection, job: Table, move: Move, state: State, ids: Sequence[uuid.UUID]
) -> list[uuid.UUID]:
    moved = list(connection.execute(_STATEMENTS[move](job, state), {"ids": list(ids)}).scalars())
    if moved and move in (Move.RETRY, Move.RUN_NOW):
        notify(connection, job, wake.JOBS)
        wake.tell_of_jobs(connection, job)
    if move is Move.CANCEL and state is State.PROCESSING:
        for job_id in moved:
            notify(connection, job, f"{wake.CANCELED}{job_id}")
            wake.tell_of_cancel(connection, job, job_id)
    return moved
