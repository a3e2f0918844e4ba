"""Why a job is where it is, in a sentence."""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Connection, Executable, Table

from . import access
from .durations import format_duration
from .jobs import JobBase, decode
from .kinds import Registry
from .session import _check_id, _operate
from .statements import presence, standing
from .states import State

if TYPE_CHECKING:
    from .session import AsyncTarget, SyncTarget

UNREADABLE = "brooq_sa.exc.PayloadError"
"""How the `last_error` of a job begins whose payload could not be read."""

IN_NO_TIME = 10.0
"""Seconds after which a job that is due and that a free slot serves ought to have been taken."""

OLD_SNAPSHOT = 60.0
"""Seconds from which on a snapshot is told of."""

FAR_BEHIND = 100_000
"""Transactions from which on a standby that holds back vacuum is told of."""

NAMED = 5
"""How many workers or transactions a sentence names."""


class Reason(enum.StrEnum):
    """What a job waits for, or where it ended."""

    NOT_FOUND = "not found"
    DONE = "done"
    DEAD = "dead"
    CANCELED = "canceled"
    LEASED = "leased"
    LEASE_EXPIRED = "lease expired"
    PAUSED = "paused"
    NOT_DUE = "not due"
    WAITING_FOR_RETRY = "waiting for a retry"
    UNDECODABLE = "undecodable payload"
    NO_WORKER = "no worker serves its topic"
    ALL_BUSY = "all slots busy"
    WORKERS_LATE = "its workers are late"
    LOCKED = "row locked"
    TABLE_LOCKED = "table locked"
    HELD_BACK = "vacuum held back"
    NEXT = "to be taken next"


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job is where it is.

    Attributes:
        id: of the job.
        reason: the first thing in its way, or where it ended.
        sentence: the same for people, with names and times.
        notes: what else is in its way, or will be.
        cure: what to do; empty where there is nothing to do.
        facts: what the sentence was made of, by name; JSON can carry it.
    """

    id: uuid.UUID
    reason: Reason
    sentence: str
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    cure: str = ""

    def __str__(self) -> str:
        return " ".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The sentence, the notes, and what to do."""
        return (self.sentence, *self.notes, *([f"To do: {self.cure}"] if self.cure else []))


@overload
def why(session: SyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> Why: ...
@overload
def why(session: AsyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> Awaitable[Why]: ...
def why(session: Any, base: type[JobBase], job_id: uuid.UUID | str) -> Why | Awaitable[Why]:
    """Why a job is where it is: what it waits for, who has it, or how it ended.

    It reads, and changes nothing. Whether a payload can be read is asked of the base's job class.

    Raises:
        SchemaError, AccessError: the tables are not there, or the role may not read them.
    """
    answer: Why | Awaitable[Why]
    wanted = _check_id(job_id)
    answer = _operate(
        session,
        base,
        lambda store, connection: explain(connection, store.table, wanted, base.registry),
        access.LOOK,
    )
    return answer


def explain(connection: Connection, job: Table, job_id: uuid.UUID, registry: Registry | None = None) -> Why:
    """`why` for a table, on a connection of the caller's.

    Args:
        registry: the kinds that payloads are to be read with; None, and nothing is known but what attempts found.
    """
    may_look = _may_look(connection)
    if may_look and (locked := _locked_for_all(connection, job, job_id)) is not None:
        return locked
    row = connection.execute(standing.standing(job), {"job_id": job_id}).mappings().first()
    if row is None:
        return _not_found(connection, job, job_id, may_look)
    return _Asking(connection, job, dict(row), registry, may_look).answer()


def _locked_for_all(connection: Connection, job: Table, job_id: uuid.UUID) -> Why | None:
    """The answer where to read the table would be to wait, which whoever asks has no time for."""
    lockers = _table_lockers(connection, job)
    if not any(each["is_alone"] for each in lockers):
        return None
    sentence = _table_lock(job, [each for each in lockers if each["is_alone"] or each["has_it"]])
    note = "Nothing can be enqueued, claimed or read until that is over, this job neither."
    return Why(job_id, Reason.TABLE_LOCKED, sentence, (note,), {"table_lockers": lockers}, _ending(lockers))


def _table_lockers(connection: Connection, job: Table) -> list[dict[str, Any]]:
    return _rows(connection, standing.table_lockers(), table=_place(connection, job))


def _table_lock(job: Table, lockers: Sequence[dict[str, Any]]) -> str:
    if having := [each for each in lockers if each["has_it"]]:
        return f"Table {job.fullname!r} is locked by {_listed(map(_process, having))}."
    first = lockers[0]
    others = ", ".join(map(str, first["waits_for"][:NAMED])) or "others"
    return (
        f"Everybody who comes to table {job.fullname!r} waits behind {_process(first)}, which waits for a lock on it"
        f" that process {others} keeps from it."
    )


def _place(connection: Connection, job: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(job)


def _not_found(connection: Connection, job: Table, job_id: uuid.UUID, may_look: bool) -> Why:
    sentence = f"There is no job {job_id}: it was never committed, or retention or somebody has deleted it."
    if not may_look:
        note = "If the transaction that enqueued it is still open, nothing of it can be seen from here."
        return Why(job_id, Reason.NOT_FOUND, sentence, (note,))
    writers = _rows(connection, standing.writers(), table=_place(connection, job))
    prepared = _rows(connection, standing.prepared())
    notes = []
    if writers:
        notes.append(
            f"{len(writers)} open transaction{'s have' if len(writers) > 1 else ' has'} written to table"
            f" {job.fullname!r}, and may be about to commit it: {_listed(map(_process, writers))}."
        )
    if prepared:
        notes.append(f"Prepared and not committed: {_listed(map(_prepared, prepared))}.")
    if not notes:
        notes.append(f"No other transaction that is open has written to table {job.fullname!r}.")
    count = len(writers) + len(prepared)
    ended = "it has ended" if count == 1 else "they have ended"
    cure = f"Ask again once {ended}." if count else "Look where it was enqueued for a rollback."
    facts: dict[str, Any] = {"writers": writers, "prepared": prepared}
    return Why(job_id, Reason.NOT_FOUND, sentence, tuple(notes), facts, cure)


class _Asking:
    """One job's row, and the questions that follow from it."""

    def __init__(
        self, connection: Connection, job: Table, row: dict[str, Any], registry: Registry | None, may_look: bool
    ) -> None:
        self._connection = connection
        self._job = job
        self._row = row
        self._topic: str = row["topic"]
        self._fault = _unreadable(registry, row)
        self._workers = self._all_workers()
        self._with_room: list[dict[str, Any]] = []
        self._live = [each for each in self._workers if each["is_live"]]
        self._serving = [each for each in self._live if self._topic in each["topics"]]
        columns = ("topic", "state", "attempts", "crashes", "priority")
        self._facts: dict[str, Any] = {name: row[name] for name in columns}
        self._notes: list[str] = []
        self._cure = ""
        self._may_look = may_look

    def answer(self) -> Why:
        match State(self._row["state"]):
            case State.PROCESSING:
                reason, sentence = self._processing()
            case State.PENDING | State.FAILED:
                reason, sentence = self._waiting()
            case _:
                reason, sentence = self._ended()
        cure = self._cure or self._usual_cure(reason)
        return Why(self._row["id"], reason, sentence, tuple(self._notes), self._facts, cure)

    def _usual_cure(self, reason: Reason) -> str:
        job_id, topic = self._row["id"], self._topic
        match reason:
            case Reason.DEAD:
                return f"Mend what the error names; `brooq-sa retry {job_id}` then gives it one attempt more."
            case Reason.CANCELED:
                return f"None, if that was meant; `brooq-sa retry {job_id}` sends it round again."
            case Reason.UNDECODABLE:
                return f"Mend the job class or the payload, then `brooq-sa retry {job_id}`."
            case Reason.LEASED:
                return f"None while it works; `brooq-sa cancel {job_id}` tells it to stop."
            case Reason.PAUSED:
                return f"`brooq-sa resume {topic}`, if what it was paused for is over."
            case Reason.NOT_DUE:
                return f"None, if that was meant; `brooq-sa run-now {job_id}` does not wait."
            case Reason.WAITING_FOR_RETRY:
                return f"Mend what the error names; `brooq-sa run-now {job_id}` does not wait."
            case Reason.NO_WORKER:
                return "Start a worker whose base has a class for it, or deploy the release that has one."
            case Reason.ALL_BUSY:
                return "Start another worker, or give them more slots (--workers); `brooq-sa top` shows what runs."
        return ""

    # The states.

    def _ended(self) -> tuple[Reason, str]:
        since, error = _long(self._row["unchanged"]), _headline(self._row["last_error"])
        attempts = _attempts(self._row["attempts"])
        self._facts |= {"unchanged_seconds": self._row["unchanged"], "error": error}
        match State(self._row["state"]):
            case State.DONE:
                return Reason.DONE, f"It was done {since} ago, after {attempts}."
            case State.CANCELED:
                because = f": {error}" if error else ""
                return Reason.CANCELED, f"It was canceled {since} ago, after {attempts}{because}."
        if self._was_unreadable:
            return (
                Reason.UNDECODABLE,
                f"It has been dead for {since}: its payload cannot be read. {self._unreadable_text()}",
            )
        return Reason.DEAD, f"It has been dead for {since}, after {attempts}: {error or 'no error was recorded'}."

    def _processing(self) -> tuple[Reason, str]:
        holder, left = self._row["locked_by"], self._row["lease_left"]
        found = next((each for each in self._workers if each["id"] == holder), None)
        who = _worker(found) if found else str(holder)
        self._facts |= {"worker": holder, "lease_left_seconds": left, "held_seconds": self._row["unchanged"]}
        if left < 0:
            return Reason.LEASE_EXPIRED, f"Its lease to {who} ran out {_long(-left)} ago; {self._next_reaping()}."
        if found is None or not found["is_live"]:
            seen = f"has not been seen for {_long(found['unseen'])}" if found else "has announced itself nowhere"
            self._notes.append(f"That worker {seen}; if it is gone, the job comes back when the lease has run out.")
        until = f"{_stamp(self._row['locked_until'])} (in {_long(left)}, unless it is renewed)"
        attempt = f"attempt {self._row['attempts']}, begun {_long(self._row['unchanged'])} ago"
        return Reason.LEASED, f"It is leased to {who} until {until}: {attempt}."

    def _next_reaping(self) -> str:
        reaps = [each for each in self._live if each["reaps_in"] is not None]
        if not reaps:
            self._cure = "Start a worker, whatever it serves: it returns the job at its first look."
            return "no live worker is there to reap it"
        next_one = min(reaps, key=lambda each: (_is_late(each), each["reaps_in"]))
        due_in = next_one["reaps_in"]
        self._facts |= {"reaper": next_one["id"], "reaper_due_in_seconds": max(0.0, due_in)}
        if _is_late(next_one):
            self._cure = f"See whether {next_one['id']} still runs; else start a worker, whatever it serves."
            return f"the reaper of {next_one['id']} was to return it, and {_unseen(next_one)}"
        return f"the reaper of {next_one['id']} is due {f'in {_long(due_in)}' if due_in > 0 else 'now'}"

    def _waiting(self) -> tuple[Reason, str]:
        due_in = self._row["due_in"]
        self._facts |= {"due_in_seconds": due_in, "error": _headline(self._row["last_error"])}
        obstacles = [each for each in (self._paused(), self._no_worker()) if each is not None]
        if due_in > 0:
            self._notes += [f"Once it is due, this is in its way: {sentence}" for _, sentence in obstacles[:1]]
            return self._not_due(due_in)
        if self._fault is not None:
            self._notes.append(f"An attempt will fail: {self._unreadable_text()}")
        for obstacle in obstacles:
            return obstacle
        return (
            self._all_busy()
            or self._row_locked()
            or self._table_locked()
            or self._held_back()
            or self._late()
            or self._next()
        )

    # What can be in the way, in the order in which it matters.

    def _not_due(self, due_in: float) -> tuple[Reason, str]:
        when = f"due in {_long(due_in)}, at {_stamp(self._row['available_at'])}"
        if self._row["state"] == State.PENDING:
            return Reason.NOT_DUE, f"It is not due yet: {when}."
        if self._was_unreadable:
            return Reason.UNDECODABLE, f"Its payload cannot be read. {self._unreadable_text()} The next try is {when}."
        error = _headline(self._row["last_error"]) or "a failure without text"
        taken = _attempts(self._row["attempts"])
        return Reason.WAITING_FOR_RETRY, f"It waits for a retry, {when}, after {taken}, the last with {error}."

    def _paused(self) -> tuple[Reason, str] | None:
        since = self._row["paused_for"]
        if since is None:
            return None
        who, reason = self._row["paused_by"], self._row["pause_reason"]
        self._facts |= {"paused_seconds": since, "paused_by": who, "pause_reason": reason}
        sentence = f"Its topic {self._topic} has been paused for {_long(since)}"
        return Reason.PAUSED, sentence + (f" by {who}" if who else "") + (f": {reason}." if reason else ".")

    def _no_worker(self) -> tuple[Reason, str] | None:
        self._facts["live_workers"] = {each["id"]: each["topics"] for each in self._live}
        if self._serving:
            return None
        sentence = f"No live worker serves its topic {self._topic}."
        if self._live:
            named = _listed(f"{_worker(each)} {_serves(each)}" for each in self._live)
            return Reason.NO_WORKER, f"{sentence} Live: {named}."
        if self._workers:
            last = min(self._workers, key=lambda each: each["unseen"])
            return Reason.NO_WORKER, f"{sentence} None is live; {_worker(last)} was seen {_long(last['unseen'])} ago."
        return Reason.NO_WORKER, f"{sentence} None is live at all."

    def _all_busy(self) -> tuple[Reason, str] | None:
        held = _rows(self._connection, standing.at_work(self._job), workers=[each["id"] for each in self._serving])
        busy: Counter[str] = Counter()
        topics: Counter[str] = Counter()
        for each in held:
            busy[each["worker"]] += each["jobs"]
            topics[each["topic"]] += each["jobs"]
        slots = sum(each["slots"] for each in self._serving)
        self._with_room = [each for each in self._serving if each["slots"] > busy[each["id"]]]
        free = sum(each["slots"] - busy[each["id"]] for each in self._with_room)
        self._facts |= {"slots": slots, "free_slots": free, "busy_with": dict(topics)}
        if free:
            return None
        self._notes += [
            f"{each['id']} is late: {_unseen(each)}. If it has crashed, what it holds comes back when the leases have"
            " run out."
            for each in self._serving
            if _is_late(each)
        ][:NAMED]
        since = min(each["newest"] for each in held)
        self._facts["busy_seconds"] = since
        self._note_ahead()
        work = _listed(f"{count} of {topic}" for topic, count in topics.most_common())
        those = f"All {slots} slots that serve it have" if slots > 1 else "The one slot that serves it has"
        return Reason.ALL_BUSY, f"{those} been busy for {_long(since)}, with {work}."

    def _row_locked(self) -> tuple[Reason, str] | None:
        if not self._may_look:
            return None
        xmax = self._connection.execute(standing.xmax(self._job), {"job_id": self._row["id"]}).scalar()
        if xmax in (None, "0"):
            return None
        place = _place(self._connection, self._job)
        lockers = _rows(self._connection, standing.row_lockers(), xmax=xmax, table=place)
        if not lockers:
            return None
        self._facts["locked_by_transaction"] = lockers[0]
        self._cure = _ending(lockers)
        by = "a transaction that has" if len(lockers) == 1 else f"{len(lockers)} transactions that have"
        return (
            Reason.LOCKED,
            f"Its row is locked by {by} not committed: {_listed(map(_process, lockers))}. Claims pass it over.",
        )

    def _table_locked(self) -> tuple[Reason, str] | None:
        lockers = _table_lockers(self._connection, self._job) if self._may_look else []
        if not lockers:
            return None
        self._facts["table_lockers"] = lockers
        self._cure = _ending(lockers)
        return Reason.TABLE_LOCKED, f"{_table_lock(self._job, lockers)} Claims wait until that is over."

    def _held_back(self) -> tuple[Reason, str] | None:
        if not self._may_look:
            return None
        snapshots = _rows(self._connection, standing.snapshots(), least=OLD_SNAPSHOT)
        prepared = [each for each in _rows(self._connection, standing.prepared()) if each["seconds"] > OLD_SNAPSHOT]
        replicas = _rows(self._connection, standing.replicas(), most=FAR_BEHIND)
        self._facts |= {"snapshots": snapshots, "prepared": prepared, "replicas": replicas}
        if not snapshots and not prepared and not replicas:
            return None
        named = _listed([*map(_process, snapshots), *map(_prepared, prepared), *map(_replica, replicas)])
        sentence = f"A snapshot holds back vacuum, so that claims step over ever more dead rows: {named}."
        self._cure = f"{_ending([*snapshots, *prepared, *replicas])} Autovacuum then clears up; or VACUUM by hand."
        if not self._is_overdue:
            self._notes.append(sentence)
            return None
        self._note_ahead()
        self._notes += self._of_the_late()
        return Reason.HELD_BACK, f"It has been due for {self._overdue}, though slots are free. {sentence}"

    def _late(self) -> tuple[Reason, str] | None:
        """Workers that have room and do not come: whoever crashed is believed to be live for a while yet."""
        if not self._is_overdue or not all(map(_is_late, self._with_room)):
            return None
        self._note_ahead()
        self._cure = f"See whether they still run, and what their logs say; else start a worker.{self._locked_file()}"
        late = " ".join(self._of_the_late())
        return Reason.WORKERS_LATE, f"It has been due for {self._overdue}, and whoever has free slots is late. {late}"

    def _of_the_late(self) -> list[str]:
        return [f"{_worker(each)}: {_unseen(each)}." for each in self._with_room if _is_late(each)][:NAMED]

    def _next(self) -> tuple[Reason, str]:
        self._note_ahead()
        free = "1 slot is free" if self._facts["free_slots"] == 1 else f"{self._facts['free_slots']} slots are free"
        prompt = [each for each in self._with_room if not _is_late(each)] or self._with_room
        names = _listed(each["id"] for each in prompt)
        if self._is_overdue and not self._facts["ahead"]:
            self._cure = (
                "Ask again; if it is still here, look into the log of that worker, and at `brooq-sa doctor`."
                f"{self._locked_file()}"
            )
            self._notes += [
                f"When {each['id']} was last seen, {_long(each['unseen'])} ago, all of its slots were taken."
                " The handler of a job that was canceled keeps its slot until it hears of that."
                for each in prompt
                if each["running"] >= each["slots"]
            ][:NAMED]
        return Reason.NEXT, f"It has been due for {self._overdue}, and {free}: {names} will take it at the next look."

    def _locked_file(self) -> str:
        """What nothing in a SQLite file tells: who writes to it just now."""
        if self._connection.dialect.name != "sqlite":
            return ""
        return (
            ' "database is locked" in a log means that an open transaction of some process has written to the file, and'
            " keeps all others from that: end it."
        )

    @property
    def _is_overdue(self) -> bool:
        return bool(self._row["due_in"] < -IN_NO_TIME)

    @property
    def _overdue(self) -> str:
        return _long(-self._row["due_in"])

    def _note_ahead(self) -> None:
        place = {name: self._row[name] for name in ("topic", "priority", "available_at")}
        ahead = self._connection.execute(standing.ahead(self._job), place | {"job_id": self._row["id"]}).scalar_one()
        self._facts["ahead"] = ahead
        if ahead:
            count = f"{ahead} or more" if ahead == standing.MOST_AHEAD else str(ahead)
            self._notes.append(
                f"{count} due job{'s' if ahead > 1 else ''} of its topic go{'' if ahead > 1 else 'es'} first."
            )

    # What is known of it.

    def _all_workers(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(presence.workers(self._job)).mappings()]

    @property
    def _was_unreadable(self) -> bool:
        return self._fault is not None or (self._row["last_error"] or "").startswith(UNREADABLE)

    def _unreadable_text(self) -> str:
        return _sentence(self._fault or _headline(self._row["last_error"]) or "")


def _unreadable(registry: Registry | None, row: dict[str, Any]) -> str | None:
    """What keeps the payload from being read, if its topic is known and something does."""
    if registry is None or row["topic"] not in registry:
        return None
    try:
        decode(registry, row["topic"], row["payload"])
    except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def _rows(connection: Connection, statement: Executable, **parameters: object) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(statement, parameters).mappings()]


def _may_look(connection: Connection) -> bool:
    """Whether the database has catalogs that tell of other transactions, and the role may read them."""
    return connection.dialect.name == "postgresql" and bool(connection.execute(standing.may_look()).scalar())


# Words.


def _long(seconds: float) -> str:
    return format_duration(timedelta(seconds=round(abs(seconds)) if abs(seconds) >= 1 else round(abs(seconds), 1)))


def _stamp(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def _headline(error: str | None) -> str:
    return next((line.strip() for line in (error or "").splitlines() if line.strip()), "")[:300]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _listed(names: Iterable[str]) -> str:
    listed: Sequence[str] = list(names)
    more = len(listed) - NAMED
    return "; ".join(listed[:NAMED]) + (f"; and {more} more" if more > 0 else "")


def _worker(row: dict[str, Any]) -> str:
    return f"{row['id']} (host {row['host']}, process {row['pid']})"


def _serves(row: dict[str, Any]) -> str:
    if not row["topics"]:
        return "is stopping"
    return f"serves {', '.join(row['topics'][:NAMED])}{', ...' if len(row['topics']) > NAMED else ''}"


def _process(row: dict[str, Any]) -> str:
    if row.get("prepared") is not None:
        return f"the prepared {row['prepared']!r} of {row['owner']}"
    user = f" of {row['user']}" if row["user"] else ""
    application = f" ({row['application']})" if row["application"] else ""
    since = f", open for {_long(row['seconds'])}" if row["seconds"] is not None else ""
    state = f", {row['state']}" if row["state"] else ""
    return f"process {row['pid'] or '?'}{user}{application}{since}{state}"


def _prepared(row: dict[str, Any]) -> str:
    return f"{row['name']!r} of {row['user']}, prepared {_long(row['seconds'])} ago"


def _replica(row: dict[str, Any]) -> str:
    behind = f"{row['transactions']:,} transaction{'' if row['transactions'] == 1 else 's'} behind"
    if row["kind"] == "standby":
        return f"standby {row['name']}, {behind}"
    return f"replication slot {row['name']}, {'in use' if row['active'] else 'used by nobody'}, {behind}"


def _ending(those: Sequence[dict[str, Any]]) -> str:
    """How to end the first of these: a transaction of a process, a prepared one, a slot."""
    first = those[0]
    if first.get("waits_for"):
        return f"End one of them: SELECT pg_terminate_backend({first['waits_for'][0]}), or {first['pid']}."
    if (name := first.get("prepared") or (first.get("name") if "kind" not in first else None)) is not None:
        quoted = _quoted(name)
        return f"COMMIT PREPARED {quoted}, or ROLLBACK PREPARED {quoted}, as whoever prepared it would have."
    if "kind" not in first:
        return f"End what began it; else SELECT pg_terminate_backend({first['pid']})."
    if first["kind"] == "slot" and not first["active"]:
        return f"Bring its reader back, or SELECT pg_drop_replication_slot({_quoted(first['name'])})."
    return "Look for long transactions on that standby (hot_standby_feedback)."


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_late(worker: dict[str, Any]) -> bool:
    """Whether it has missed an announcement; it is believed for three times the period of them."""
    believed = (worker["live_until"] - worker["seen_at"]).total_seconds()
    return bool(worker["unseen"] > believed / 2)


def _unseen(worker: dict[str, Any]) -> str:
    return f"it has not been seen for {_long(worker['unseen'])}"
