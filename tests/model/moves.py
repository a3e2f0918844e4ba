"""The statements as the model knows them: what each changes in a row, and the guards that say when it may.

A row is cut down to what the guards look at. Time is not a number: a lease is ahead or past, a job is due or not, a
row is old enough for retention or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PENDING, PROCESSING, FAILED = "pending", "processing", "failed"
DONE, DEAD, CANCELED = "done", "dead", "canceled"
READY = (PENDING, FAILED)
ACTIVE = (PENDING, FAILED, PROCESSING)
TERMINAL = (DONE, DEAD, CANCELED)
STATES = ACTIVE + TERMINAL

AHEAD, PAST = "ahead", "past"


class Row(NamedTuple):
    """A job's row.

    Attributes:
        holder: which worker; None is NULL.
        until: whether the end of the lease is AHEAD or PAST by the database's clock; None is NULL.
        is_due: whether `available_at` has come.
        is_old: whether `updated_at` is longer ago than retention's time.
    """

    state: str = PENDING
    attempts: int = 0
    holder: int | None = None
    until: str | None = None
    is_due: bool = True
    is_old: bool = False


class Terms(NamedTuple):
    """The parameters of a statement, as one row sees them.

    Attributes:
        is_named: whether the row's id is among those that the statement is about.
    """

    is_named: bool = True
    worker: int | None = None
    attempt: int | None = None


class Outcome(NamedTuple):
    """How an attempt ended: the job's next state, whether its attempt is given back, whether it waits for a while."""

    name: str
    state: str
    gives_back: bool = False
    is_delayed: bool = False


SUCCEEDED = Outcome("done", DONE)
FAILS = Outcome("failed", FAILED, is_delayed=True)
DIES = Outcome("dead", DEAD)
PRESERVED = Outcome("failed, attempt given back", FAILED, gives_back=True, is_delayed=True)
CANCELS = Outcome("canceled by its handler", CANCELED)
RELEASED = Outcome("released, attempt given back", PENDING, gives_back=True)
OUTCOMES = (SUCCEEDED, FAILS, DIES, PRESERVED, CANCELS, RELEASED)


class Guard(NamedTuple):
    """A condition of a statement.

    Attributes:
        sql: the condition in the statement, as PostgreSQL gets it.
        test: the same on the model's row; None for a lock, which is no condition on a row.
        why: what goes wrong without it.
        again: how the SQL repeats it behind the locking sub-select; empty if it does not.
    """

    statement: str
    name: str
    sql: str
    test: Callable[[Row, Terms], bool] | None
    why: str
    again: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.statement}.{self.name}"


def is_named(_row: Row, terms: Terms) -> bool:
    return terms.is_named


def is_unknown(_row: Row, terms: Terms) -> bool:
    return not terms.is_named


def is_ready(row: Row, _terms: Terms) -> bool:
    return row.state in READY


def is_due(row: Row, _terms: Terms) -> bool:
    return row.is_due


def is_processing(row: Row, _terms: Terms) -> bool:
    return row.state == PROCESSING


def is_holder(row: Row, terms: Terms) -> bool:
    return row.holder == terms.worker


def is_attempt(row: Row, terms: Terms) -> bool:
    return row.attempts == terms.attempt


def is_attempt_of_entry(row: Row, terms: Terms) -> bool:
    """As above where the attempts come by id: of an id that is not named there is none."""
    return terms.is_named and row.attempts == terms.attempt


def is_lapsed(row: Row, _terms: Terms) -> bool:
    return row.until == PAST


def is_retriable(row: Row, _terms: Terms) -> bool:
    return row.state in (FAILED, DEAD, CANCELED)


def is_terminal(row: Row, _terms: Terms) -> bool:
    return row.state in TERMINAL


def is_old(row: Row, _terms: Terms) -> bool:
    return row.is_old


_ONE = "job.id = %(job_id)s::UUID"
_AMONG = "job.id = ANY (%(ids)s::UUID[])"
_PROCESSING = "job.state = 'processing'"
_HOLDER = "job.locked_by IS NOT DISTINCT FROM %(worker)s::VARCHAR"
_HOLDER_BY_INDEX = "job.locked_by = %(worker)s::VARCHAR"
_ATTEMPT = "job.attempts = %(attempt)s::INTEGER"
_ATTEMPT_OF_ENTRY = "job.attempts = CAST((%(entries)s::JSONB -> CAST(job.id AS TEXT) ->> 'attempt') AS INTEGER)"
_LAPSED = "job.locked_until < statement_timestamp()"
_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"

GUARDS = (
    Guard("claim", "ready", "job.state IN ('pending', 'failed')", is_ready, "takes what another holds or has finished"),
    Guard("claim", "due", "job.available_at <= statement_timestamp()", is_due, "takes a job before its time"),
    Guard("claim", "lock", _LOCK, None, "two that have chosen the same job both take it"),
    Guard("renew", "job", _AMONG, is_named, "prolongs the lease of a job that was not asked for"),
    Guard("renew", "state", _PROCESSING, is_processing, "writes into a job canceled in plain SQL", _PROCESSING),
    Guard("renew", "holder", _HOLDER, is_holder, "prolongs another worker's lease", _HOLDER),
    Guard(
        "renew",
        "attempt",
        _ATTEMPT_OF_ENTRY,
        is_attempt_of_entry,
        "tells a run that it holds what a later run holds",
        _ATTEMPT_OF_ENTRY,
    ),
    Guard("renew", "lock", _LOCK, None, "writes into what has ended since"),
    Guard("settle_done", "job", _AMONG, is_named, "finishes another job of the same worker"),
    Guard("settle_done", "state", _PROCESSING, is_processing, "overwrites a cancel in plain SQL"),
    Guard("settle_done", "holder", _HOLDER, is_holder, "finishes another worker's run"),
    Guard("settle_done", "attempt", _ATTEMPT, is_attempt, "finishes a later run of the same worker"),
    Guard("settle_otherwise", "job", _AMONG, is_named, "ends the run of another job of the same worker"),
    Guard("settle_otherwise", "state", _PROCESSING, is_processing, "overwrites a cancel in plain SQL"),
    Guard("settle_otherwise", "holder", _HOLDER, is_holder, "ends another worker's run"),
    Guard("settle_otherwise", "attempt", _ATTEMPT_OF_ENTRY, is_attempt_of_entry, "ends a later run of the same worker"),
    Guard("release_unknown", "unknown", f"NOT {_AMONG}", is_unknown, "gives back a job that the worker is running"),
    Guard(
        "release_unknown", "state", _PROCESSING, is_processing, "brings back a job canceled in plain SQL", _PROCESSING
    ),
    Guard("release_unknown", "holder", _HOLDER_BY_INDEX, is_holder, "gives back another's job", _HOLDER_BY_INDEX),
    Guard("release_unknown", "lock", _LOCK, None, "undoes what was written since"),
    Guard("reap", "state", _PROCESSING, is_processing, "brings back a job canceled in plain SQL", _PROCESSING),
    Guard("reap", "lapsed", _LAPSED, is_lapsed, "ends a lease that holds", _LAPSED),
    Guard("reap", "lock", _LOCK, None, "undoes what was written since"),
    Guard("cancel_waiting", "job", _ONE, is_named, "cancels another job"),
    Guard("cancel_waiting", "state", "job.state IN ('pending', 'failed')", is_ready, "overwrites a terminal state"),
    Guard("cancel_processing", "job", _ONE, is_named, "cancels another job"),
    Guard("cancel_processing", "state", "job.state IN ('processing')", is_processing, "overwrites a terminal state"),
    Guard("retry", "job", _ONE, is_named, "sends another job round"),
    Guard("retry", "state", "job.state IN ('failed', 'dead', 'canceled')", is_retriable, "undoes a success"),
    Guard(
        "purge",
        "state",
        "job.state IN ('done', 'dead', 'canceled')",
        is_terminal,
        "deletes a job that waits",
        "job.state NOT IN ('pending', 'failed', 'processing')",
    ),
    Guard("purge", "old", "job.updated_at < (statement_timestamp() +", is_old, "deletes what has only just finished"),
    Guard("purge", "lock", "FOR UPDATE SKIP LOCKED", None, "deletes a job that has been sent round since"),
)
"""Every guard, each named once: the moves below take them from here, and tests compare them with the SQL."""

AGAIN = ("renew.again", "release_unknown.again", "reap.again", "purge.again")
"""The guards that are repeated behind a locking sub-select, as one each."""

SPARE = {
    "renew.job": "renew.attempt",
    "settle_otherwise.job": "settle_otherwise.attempt",
    "renew.lock": "renew.again",
    "renew.again": "renew.lock",
    "release_unknown.lock": "release_unknown.again",
    "release_unknown.again": "release_unknown.lock",
    "reap.lock": "reap.again",
    "reap.again": "reap.lock",
    "purge.again": "purge.lock",
}
"""Guards that another one covers, by name: each can go alone, but not both. The ids find the rows by index, and an id
that is not named has no attempt in the entries; a locked row cannot have changed by the second step."""

LOCKING = ("claim", "renew", "release_unknown", "reap", "purge")
"""Statements of two steps: a sub-select chooses and locks, and then the rows that it chose are written."""


class Moves:
    """The statements, without the guards named in `without`."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        self._first: dict[str, list[Callable[[Row, Terms], bool]]] = {}
        self._second: dict[str, list[Callable[[Row, Terms], bool]]] = {}
        for guard in GUARDS:
            first, second = (each.setdefault(guard.statement, []) for each in (self._first, self._second))
            if guard.test is None or guard.full_name in without:
                continue
            first.append(guard.test)
            if guard.again and f"{guard.statement}.again" not in without:
                second.append(guard.test)
        self.unlocked = frozenset(each for each in LOCKING if f"{each}.lock" in without)
        """Those in whose second step a row may be another than it was in the first."""

    def fits(self, statement: str, row: Row, terms: Terms) -> bool:
        """Whether the statement, as a whole or in its first step, finds the row."""
        return all(test(row, terms) for test in self._first[statement])

    def fits_still(self, statement: str, row: Row, terms: Terms) -> bool:
        """Whether its second step, not protected by a lock, writes a row that the first one chose."""
        return all(test(row, terms) for test in self._second[statement])


def claimed(row: Row, worker: int | None) -> Row:
    return Row(PROCESSING, row.attempts + 1, worker, AHEAD, row.is_due, is_old=False)


def renewed(row: Row) -> Row:
    return row._replace(until=AHEAD)


def settled(row: Row, outcome: Outcome) -> Row:
    attempts = row.attempts - outcome.gives_back
    return Row(outcome.state, attempts, None, None, row.is_due and not outcome.is_delayed, is_old=False)


def released_unknown(row: Row) -> Row:
    return Row(PENDING, max(0, row.attempts - 1), None, None, row.is_due, is_old=False)


def reaped(row: Row) -> Row:
    return Row(PENDING, row.attempts)


def canceled(row: Row) -> Row:
    return Row(CANCELED, row.attempts, None, None, row.is_due, is_old=False)


def canceled_in_plain_sql(row: Row) -> Row:
    """What ``UPDATE job SET state = 'canceled'`` leaves: the lease stands."""
    return row._replace(state=CANCELED)


def retried(row: Row) -> Row:
    return Row(PENDING, row.attempts)
