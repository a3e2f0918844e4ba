"""Enqueuing in the caller's own transaction, and an operator's moves.

`enqueue` and its siblings take whatever the caller has: a Session (or a subclass: SQLModel's, Flask-SQLAlchemy's), a
scoped_session, a Connection, or the async ones, for which they return an awaitable. They join the transaction and the
savepoint that are open there, and never commit.
"""

from __future__ import annotations

import sys
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import msgspec
from sqlalchemy import Connection, Engine, Table, Update
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.orm import Session as _Session
from sqlalchemy.orm import scoped_session
from uuid_utils.compat import uuid7

from . import access, copying, enqueued, wake
from .durations import parse_duration
from .events import JobEnqueued, enqueues
from .exc import EnqueueError, OptionError, SchemaError
from .jobs import JobBase, NewJob, RawJob, encode, table_of
from .kinds import MAX_DURATION, check_integer, check_topic
from .schema import EARLIEST, LATEST, PRIORITIES
from .sqlite import check_transaction
from .statements import enqueue as statements
from .states import CancelResult, Enqueued, RetryResult
from .store import JobStore, notify

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, async_scoped_session
    from sqlalchemy.ext.asyncio import AsyncSession as _AsyncSession

    AsyncTarget: TypeAlias = _AsyncSession | async_scoped_session[Any] | AsyncConnection

SyncTarget: TypeAlias = "_Session | scoped_session[Any] | Connection"

MAX_KEY = 1_000
"""The longest key, in characters: an index entry must hold it."""

MAX_NOTE = 1_000
"""The longest reason of a pause, in characters."""

BULK = 1_000
"""How many jobs one statement of `enqueue_many` puts."""

_TRIES = 10
_EARLIEST = datetime.fromisoformat(EARLIEST).replace(tzinfo=UTC)
_LATEST = datetime.fromisoformat(LATEST).replace(tzinfo=UTC)


@overload
def enqueue(
    session: SyncTarget,
    job: JobBase | RawJob,
    *,
    key: str | None = None,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> Enqueued: ...
@overload
def enqueue(
    session: AsyncTarget,
    job: JobBase | RawJob,
    *,
    key: str | None = None,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> Awaitable[Enqueued]: ...
def enqueue(
    session: Any,
    job: JobBase | RawJob,
    *,
    key: str | None = None,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> Enqueued | Awaitable[Enqueued]:
    """Put a job into the caller's transaction: it exists if and only if that commits.

    A Session is flushed first, so that the job comes after what it refers to.

    Args:
        session: a Session, scoped_session or Connection; or an AsyncSession, async_scoped_session or AsyncConnection.
        job: an instance of a job class, or a RawJob.
        key: at most one job lives under a topic and key, finished ones included, until retention deletes it. "" and
            None are no key.
        available_at: an aware datetime, not before which the job is run.
        delay: the same, counted from now: a timedelta, or a string with a unit.
        priority: from -32768 to 32767, the smaller goes first; None takes the kind's.

    Returns:
        `Enqueued(id, created)`, or an awaitable of it if `session` is async. With `created` False, `id` is that of the
        job that has the key.

    Raises:
        PayloadError: a value in the job cannot be carried. Nothing was sent; the transaction is as usable as before.
        OptionError: an option breaks its rule, or `session` is none of the above or has no engine for the job table.
            Likewise.
        SchemaError: the database has no job table.
        AccessError: the role may not put jobs into it.
        SqliteSetupError: a SQLite engine whose transactions would not hold the job; see `brooq_sa.sqlite`.
        EnqueueError: others kept taking and giving up the key.
    """
    if _is_async(session):
        return _run_async(session, lambda sync: _enqueue(sync, job, key, available_at, delay, priority))
    return _enqueue(session, job, key, available_at, delay, priority)


@overload
def enqueue_many(
    session: SyncTarget,
    jobs: Iterable[JobBase | RawJob | NewJob],
    *,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> list[Enqueued]: ...
@overload
def enqueue_many(
    session: AsyncTarget,
    jobs: Iterable[JobBase | RawJob | NewJob],
    *,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> Awaitable[list[Enqueued]]: ...
def enqueue_many(
    session: Any,
    jobs: Iterable[JobBase | RawJob | NewJob],
    *,
    available_at: datetime | None = None,
    delay: timedelta | str | None = None,
    priority: int | None = None,
) -> list[Enqueued] | Awaitable[list[Enqueued]]:
    """Put many jobs into the caller's transaction, in few statements.

    Args:
        session: as for `enqueue`.
        jobs: job objects, or a NewJob around one to give it a key or other options of its own.
        available_at, delay, priority: for the jobs that do not say otherwise.

    Returns:
        The answers of `enqueue`, in the order of `jobs`. Of two jobs with one topic and key, the earlier is created.

    Raises:
        What `enqueue` does. If a job is refused none is put, and the caller's transaction goes on as it was.
    """
    if _is_async(session):
        rows = _check_each(jobs, available_at, delay, priority)
        return _run_async(session, lambda sync: _enqueue_many(sync, rows))
    jobs = list(jobs)
    answers = _enqueue_plain(session, jobs, available_at, delay, priority)
    if answers is None:
        answers = _enqueue_many(session, _check_each(jobs, available_at, delay, priority))
    return answers


@overload
def cancel(session: SyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> CancelResult: ...
@overload
def cancel(session: AsyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> Awaitable[CancelResult]: ...
def cancel(session: Any, base: type[JobBase], job_id: uuid.UUID | str) -> CancelResult | Awaitable[CancelResult]:
    """Cancel a job, in the caller's transaction.

    Returns:
        What it did: CANCELED while it waited; TOLD_TO_STOP while it ran (its worker hears of it at once where wake-ups
        reach it, at the latest with its next heartbeat, and writes nothing); TOO_LATE, it had finished; NOT_FOUND.
    """
    answer: CancelResult | Awaitable[CancelResult]
    wanted = _check_id(job_id)
    answer = _operate(session, base, lambda store, connection: store.cancel(connection, wanted))
    return answer


@overload
def retry(session: SyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> RetryResult: ...
@overload
def retry(session: AsyncTarget, base: type[JobBase], job_id: uuid.UUID | str) -> Awaitable[RetryResult]: ...
def retry(session: Any, base: type[JobBase], job_id: uuid.UUID | str) -> RetryResult | Awaitable[RetryResult]:
    """Send a failed, dead or canceled job round again now, in the caller's transaction.

    Its attempts are kept, since they say how often it was taken: a dead job gets one attempt more.

    Returns:
        What it did: RETRIED; NOT_NEEDED, it is pending or running; REFUSED, it is done; NOT_FOUND.
    """
    answer: RetryResult | Awaitable[RetryResult]
    wanted = _check_id(job_id)
    answer = _operate(session, base, lambda store, connection: store.retry(connection, wanted))
    return answer


@overload
def pause(
    session: SyncTarget, base: type[JobBase], topic: str, *, reason: str | None = None, by: str | None = None
) -> bool: ...
@overload
def pause(
    session: AsyncTarget, base: type[JobBase], topic: str, *, reason: str | None = None, by: str | None = None
) -> Awaitable[bool]: ...
def pause(
    session: Any, base: type[JobBase], topic: str, *, reason: str | None = None, by: str | None = None
) -> bool | Awaitable[bool]:
    """Let no worker start jobs of the topic, from the commit of the caller's transaction on.

    It holds for all workers at once, those that are started later too, until `resume`. What runs goes on. Jobs can be
    enqueued, canceled and retried as ever.

    Args:
        reason: shown beside the topic.
        by: who pauses, shown likewise.

    Returns:
        Whether the topic was open until now. If it was paused before, that pause stays as it was.
    """
    answer: bool | Awaitable[bool]
    wanted, why, who = check_topic(topic), _check_note("reason", reason), _check_note("by", by)

    def move(store: JobStore, connection: Connection) -> bool:
        return store.pause(connection, wanted, reason=why, by=who)

    answer = _operate(session, base, move, access.PAUSE)
    return answer


@overload
def resume(session: SyncTarget, base: type[JobBase], topic: str) -> bool: ...
@overload
def resume(session: AsyncTarget, base: type[JobBase], topic: str) -> Awaitable[bool]: ...
def resume(session: Any, base: type[JobBase], topic: str) -> bool | Awaitable[bool]:
    """Let workers start jobs of the topic again, from the commit of the caller's transaction on.

    Returns:
        Whether it was paused until now.
    """
    answer: bool | Awaitable[bool]
    wanted = check_topic(topic)
    answer = _operate(session, base, lambda store, connection: store.resume(connection, wanted), access.PAUSE)
    return answer


class EnqueueMixin:
    """Gives a Session class the methods ``enqueue`` and ``enqueue_many``; see the functions."""

    def enqueue(
        self,
        job: JobBase | RawJob,
        *,
        key: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
    ) -> Enqueued:
        """`brooq_sa.enqueue` into this session."""
        return _enqueue(self, job, key, available_at, delay, priority)

    def enqueue_many(
        self,
        jobs: Iterable[JobBase | RawJob | NewJob],
        *,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int | None = None,
    ) -> list[Enqueued]:
        """`brooq_sa.enqueue_many` into this session."""
        jobs = list(jobs)
        answers = _enqueue_plain(self, jobs, available_at, delay, priority)
        if answers is None:
            answers = _enqueue_many(self, _check_each(jobs, available_at, delay, priority))
        return answers


class Session(EnqueueMixin, _Session):
    """A SQLAlchemy Session with ``enqueue``."""


def _is_async(target: Any) -> bool:
    # Nobody has an async session without having imported the module, which needs greenlet.
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(
        target, module.AsyncSession | module.async_scoped_session | module.AsyncConnection
    )


def _run_async(target: Any, work: Callable[[Any], Any]) -> Awaitable[Any]:
    from .asyncio import run_in

    return run_in(target, work)


def _connection(target: Any, table: Table) -> Connection:
    """The connection that the caller's transaction is on, with what the session holds written to it."""
    if isinstance(target, Connection):
        return target
    session = target() if isinstance(target, scoped_session) else target
    if not isinstance(session, _Session):
        raise OptionError(
            f"{target!r:.200} is no session. Give a Session, scoped_session or Connection, or their async counterparts."
        )
    session.flush()
    return connection_for(session, table)


def connection_for(session: _Session, table: Table) -> Connection:
    """The connection that the session's transaction has, or gets, for writing to the table.

    Raises:
        OptionError: the session has no engine for it.
    """
    try:
        return session.connection(bind_arguments={"clause": _write(table)})
    except UnboundExecutionError as error:
        raise OptionError(
            f"The session has no engine for table {table.fullname!r}. Give it one, as"
            " Session(binds={AppJob.__table__: engine}), where AppJob is the base of your jobs."
        ) from error


@cache
def _write(table: Table) -> Update:
    # Sessions with several engines route by the statement (`Session.get_bind`): a bare table would be read somewhere.
    return table.update()


class NewRow(NamedTuple):
    """A checked job, ready to be sent."""

    table: Table
    id: uuid.UUID
    topic: str
    payload: str
    priority: int
    available_at: datetime | None
    delay: float
    key: str | None

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of a statement that inserts it alone, as one that is due or as one that is not."""
        parameters = {
            "new_id": self.id,
            "new_topic": self.topic,
            "new_payload": self.payload,
            "new_priority": self.priority,
        }
        if not self.is_due:
            parameters["new_available_at"] = self.available_at
            parameters["new_delay"] = self.delay
        return parameters

    @property
    def is_due(self) -> bool:
        """Whether a worker may start it as soon as it is committed."""
        return not self.delay and self.available_at is None

    @property
    def record(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "topic": self.topic,
            "payload": msgspec.Raw(self.payload.encode()),
            "priority": self.priority,
            "available_at": self.available_at,
            "delay": self.delay,
            "key": self.key,
        }


def _check_each(
    jobs: Iterable[JobBase | RawJob | NewJob],
    available_at: datetime | None,
    delay: timedelta | str | None,
    priority: int | None,
) -> list[NewRow]:
    """The rows for many jobs; the options are for those that do not say otherwise."""
    rows = []
    for job in jobs:
        if not isinstance(job, NewJob):
            rows.append(check_new(job, None, available_at, delay, priority))
            continue
        is_timed = job.available_at is not None or job.delay is not None
        timing = (job.available_at, job.delay) if is_timed else (available_at, delay)
        rows.append(check_new(job.job, job.key, *timing, priority if job.priority is None else job.priority))
    return rows


def check_new(
    job: JobBase | RawJob,
    key: str | None,
    available_at: datetime | None,
    delay: timedelta | str | None,
    priority: int | None,
    default: Table | None = None,
) -> NewRow:
    """The row for a job with the options of `enqueue`; every fault is found here, before anything is sent.

    Args:
        default: the table of a RawJob without a base; None is ``job`` in the connection's default schema.
    """
    table = table_of(job, default)
    topic, payload, own_priority = encode(job)
    if available_at is not None and delay is not None:
        raise OptionError("available_at and delay are both given. Give one of them.")
    return NewRow(
        table,
        uuid7(),
        topic,
        payload,
        own_priority if priority is None else check_integer("priority", priority, PRIORITIES),
        None if available_at is None else _check_instant(available_at),
        0.0 if delay is None else _check_delay(delay),
        None if key is None else _check_key(key),
    )


def _check_instant(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise OptionError(f"available_at is {value!r}. Give an aware datetime.")
    if value.utcoffset() is None:
        raise OptionError(
            f"available_at is {value!r}, which is naive: nobody can tell which instant it is. Give it a tzinfo, such as"
            " datetime.now(timezone.utc)."
        )
    # Compared before it is converted: near the ends of the calendar, conversion overflows.
    if not _EARLIEST <= value < _LATEST:
        raise OptionError(f"available_at is {value!r}. Give an instant from {EARLIEST} to {LATEST} UTC.")
    return value.astimezone(UTC)


def _check_delay(value: timedelta | str) -> float:
    try:
        delay = parse_duration(value)
    except OptionError as error:
        raise OptionError(f"delay: {error}") from None
    if not timedelta(0) <= delay <= MAX_DURATION:
        raise OptionError(f"delay is {value!r}. Give 0s to {MAX_DURATION.days} days.")
    return delay.total_seconds()


def _check_key(value: object) -> str | None:
    if not isinstance(value, str):
        raise OptionError(f"key is {value!r}. Give a string.")
    if len(value) > MAX_KEY:
        raise OptionError(f"key {value[:60]!r}... has {len(value):,} characters. Give {MAX_KEY:,} at the most.")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise OptionError(f"key {value!r} has a NUL or a lone surrogate, which the database cannot store.")
    return value or None


def _enqueue(
    target: Any,
    job: JobBase | RawJob,
    key: str | None,
    available_at: datetime | None,
    delay: timedelta | str | None,
    priority: int | None,
) -> Enqueued:
    row = check_new(job, key, available_at, delay, priority)
    connection = _connection(target, row.table)
    _check_database(connection)
    with explained(connection, row.table, access.ENQUEUE):
        return put(connection, row)


def put(connection: Connection, row: NewRow) -> Enqueued:
    """Put a checked job into the transaction of a connection."""
    is_due = row.is_due
    if row.key is None:
        insertion = statements.insert_job(row.table, _channel(connection, row), is_due=is_due)
        connection.execute(insertion, row.parameters).close()
        answer = Enqueued(row.id, True)
    else:
        answer = _put_keyed(connection, row)
    if answer.created:
        _tell(connection, [(row.id, row.topic)])
        if is_due:
            wake.tell_of_jobs(connection, row.table)
    return answer


def _channel(connection: Connection, row: NewRow) -> str | None:
    """Where the insertion of a job is to send a notification; None if none is wanted now."""
    wanted = row.is_due and wake.may_notify(connection, row.table, row.topic)
    return wake.channel(row.table) if wanted else None


def _put_keyed(connection: Connection, row: NewRow) -> Enqueued:
    """Put the job or find the one that has its key.

    Between the INSERT that found the key taken and the SELECT that looks for it, the other job may be gone: rolled
    back, or deleted by retention. Then it is tried again, so that nobody is told of a job that does not exist.
    """
    channel = _channel(connection, row)
    insertion = statements.insert_keyed_job(row.table, connection.dialect.name, channel, is_due=row.is_due)
    for _ in range(_TRIES):
        if connection.execute(insertion, {**row.parameters, "new_key": row.key}).first() is not None:
            return Enqueued(row.id, True)
        found = connection.execute(statements.find_by_key(row.table), {"topic": row.topic, "key": row.key}).scalar()
        if found is not None:
            return Enqueued(found, False)
    raise EnqueueError(
        f"Key {row.key!r} of topic {row.topic!r} was taken and given up {_TRIES} times while we looked. Enqueue again."
    )


def _enqueue_plain(
    target: Any,
    jobs: Sequence[JobBase | RawJob | NewJob],
    available_at: datetime | None,
    delay: timedelta | str | None,
    priority: int | None,
) -> list[Enqueued] | None:
    """Put many jobs as `_stream` does, if they are such; None if they are not."""
    if len(jobs) < copying.FEWEST or available_at is not None or delay is not None:
        return None
    tables = {_table_of_class(kind) for kind in set(map(type, jobs))}
    table = tables.pop()
    if tables or table is None:
        return None
    connection = _connection(target, table)
    with explained(connection, table, access.ENQUEUE):
        if _is_autocommit(connection) or not copying.can_copy(connection, table):
            return None
    return _stream(connection, table, jobs, priority)


def _table_of_class(kind: type) -> Table | None:
    """The table that jobs of a class go to; None if it is no job class with a topic."""
    table: Table | None = kind.__table__ if issubclass(kind, JobBase) and hasattr(kind, "__kind__") else None
    return table


def _is_autocommit(connection: Connection) -> bool:
    return bool(getattr(connection.connection.driver_connection, "autocommit", False))


def _stream(connection: Connection, table: Table, jobs: Sequence[Any], priority: int | None) -> list[Enqueued]:
    """Put jobs that have no options of their own, each as soon as it is checked.

    PostgreSQL stores those before it meanwhile. A job that is refused takes the others with it, and not the caller's
    transaction: for that there is a savepoint.
    """
    if priority is not None:
        priority = check_integer("priority", priority, PRIORITIES)
    answers: list[Enqueued] = []

    def lines() -> Iterator[str]:
        for job in jobs:
            topic, payload, own_priority = encode(job)
            answer = Enqueued(uuid7(), True)
            answers.append(answer)
            yield copying.line(answer.id, topic, payload, own_priority if priority is None else priority)

    with explained(connection, table, access.ENQUEUE):
        with connection.begin_nested():
            copying.copy_lines(connection, table, lines())
        kinds: set[type[JobBase]] = set(map(type, jobs))
        _wake_for(connection, table, {kind.__kind__.topic for kind in kinds})
    _tell(connection, ((answer.id, job.__kind__.topic) for answer, job in zip(answers, jobs, strict=True)))
    return answers


def _enqueue_many(target: Any, rows: Sequence[NewRow]) -> list[Enqueued]:
    by_table: dict[Table, list[NewRow]] = defaultdict(list)
    for row in rows:
        by_table[row.table].append(row)
    answers: dict[uuid.UUID, Enqueued] = {}
    for table in sorted(by_table, key=lambda table: table.fullname):
        its_rows = by_table[table]
        connection = _connection(target, table)
        _check_database(connection)
        with explained(connection, table, access.ENQUEUE):
            left = _copy(connection, table, its_rows)
            # Everybody takes keys in the same order, so that two bulks with keys in common never wait for each other.
            left.sort(key=lambda row: (row.topic, row.key or ""))
            put_all = _put_singly if connection.dialect.name == "sqlite" else _put_in_bulk
            for start in range(0, len(left), BULK):
                answers |= put_all(connection, table, left[start : start + BULK])
            _wake_for(connection, table, {row.topic for row in its_rows if row.is_due})
        created = (row for row in its_rows if row.key is None or answers[row.id].created)
        _tell(connection, ((row.id, row.topic) for row in created))
    return [Enqueued(row.id, True) if row.key is None else answers[row.id] for row in rows]


def _copy(connection: Connection, table: Table, rows: list[NewRow]) -> list[NewRow]:
    """Put those rows by COPY for which it does, if there are enough of them; the others."""
    copied = [row for row in rows if row.key is None and row.is_due]
    if len(copied) < copying.FEWEST or not copying.can_copy(connection, table):
        return list(rows)
    lines = (copying.line(row.id, row.topic, row.payload, row.priority) for row in copied)
    copying.copy_lines(connection, table, lines)
    return [row for row in rows if row.key is not None or not row.is_due]


def _tell(connection: Connection, jobs: Iterable[tuple[uuid.UUID, str]]) -> None:
    """Let those who have subscribed hear of the jobs, by ids and topics, once they are committed."""
    if enqueues.is_heard:
        enqueued.tell(connection, [JobEnqueued(job_id, topic) for job_id, topic in jobs])


def _wake_for(connection: Connection, table: Table, topics: set[str]) -> None:
    """Wake workers for the topics, of which there are jobs that are due."""
    if connection.dialect.name == "postgresql":
        for topic in sorted(topics):
            if wake.may_notify(connection, table, topic):
                notify(connection, table, wake.JOBS + topic)
    if topics:
        wake.tell_of_jobs(connection, table)


def _put_singly(connection: Connection, table: Table, rows: list[NewRow]) -> dict[uuid.UUID, Enqueued]:
    for is_due in (True, False):
        if unkeyed := [row.parameters for row in rows if row.key is None and row.is_due is is_due]:
            connection.execute(statements.insert_jobs_singly(table, is_due=is_due), unkeyed)
    return {row.id: _put_keyed(connection, row) for row in rows if row.key is not None}


def _put_in_bulk(connection: Connection, table: Table, rows: list[NewRow]) -> dict[uuid.UUID, Enqueued]:
    keyed = any(row.key is not None for row in rows)
    text = msgspec.json.encode([row.record for row in rows]).decode()
    result = connection.execute(statements.insert_jobs(table, keyed=keyed), {"rows": text})
    if not keyed:
        return {}
    created = set(result.scalars())
    taken = [row for row in rows if row.key is not None and row.id not in created]
    found = _find(connection, table, taken)
    answers = {row_id: Enqueued(row_id, True) for row_id in created}
    for row in taken:
        holder = found.get((row.topic, row.key))
        answers[row.id] = _put_keyed(connection, row) if holder is None else Enqueued(holder, False)
    return answers


def _find(connection: Connection, table: Table, rows: list[NewRow]) -> dict[tuple[str, str | None], uuid.UUID]:
    keys: dict[str, list[str | None]] = defaultdict(list)
    for row in rows:
        keys[row.topic].append(row.key)
    found: dict[tuple[str, str | None], uuid.UUID] = {}
    for topic, its_keys in keys.items():
        matches = connection.execute(statements.find_by_keys(table), {"topic": topic, "keys": its_keys})
        found.update({(topic, key): job_id for key, job_id in matches})
    return found


def _check_id(value: object) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value)  # type: ignore[arg-type]  # whatever it is, it says so
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"The job id is {value!r:.200}. Give the `id` of an Enqueued: a UUID, or its text.") from None


def _check_note(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_NOTE or "\0" in value:
        raise OptionError(
            f"{name} is {value!r:.200}. Give a string of {MAX_NOTE:,} characters at the most, without NUL."
        )
    return value


def _operate(
    target: Any,
    base: type[JobBase],
    move: Callable[[JobStore, Connection], Any],
    privileges: access.Privileges = access.OPERATE,
) -> Any:
    store = JobStore(base.__table__)

    def work(sync: Any) -> Any:
        connection = _connection(sync, store.table)
        with explained(connection, store.table, privileges):
            return move(store, connection)

    return _run_async(target, work) if _is_async(target) else work(target)


def _check_database(connection: Connection) -> None:
    match connection.dialect.name:
        case "postgresql":
            pass
        case "sqlite":
            check_transaction(connection)
        case other:
            raise OptionError(f"The session is on {other}. Jobs live in PostgreSQL or SQLite.")


@contextmanager
def explained(connection: Connection | Engine, table: Table, privileges: access.Privileges) -> Iterator[None]:
    """Add the next step to the database's complaint that the table is missing, or that the role may not use it so.

    Raises:
        SchemaError, AccessError: in place of the complaint.
    """
    try:
        yield
    except DBAPIError as error:
        denial = access.denial(error, privileges, table, connection.dialect, connection.engine.url)
        if denial is not None:
            raise denial from error
        missing = [each for each in privileges.by_table(table) if is_missing_table(error, each, connection)]
        if missing:
            raise SchemaError(
                f"The database has no table {missing[0].fullname!r}. Run 'alembic upgrade brooq@head', or 'brooq-sa"
                " migrate upgrade' if you do not use Alembic; if it lies elsewhere, give the base its schema= and"
                " table_name=."
            ) from error
        raise


def is_missing_table(error: DBAPIError, table: Table, connection: Connection | Engine) -> bool:
    """Whether the database complains that this very table is missing, in the schema that is meant in its place."""
    said = str(error.orig).partition("\n")[0]
    state = getattr(error.orig, "sqlstate", getattr(error.orig, "pgcode", None))
    if state != "42P01" and not said.startswith("no such table"):
        return False
    mapped = connection.get_execution_options().get("schema_translate_map") or {}
    schema = mapped.get(table.schema, table.schema)
    possible = [f"{schema or connection.dialect.default_schema_name}.{table.name}"]
    return any(access.names(said, name) for name in (possible if schema else [table.name, *possible]))
