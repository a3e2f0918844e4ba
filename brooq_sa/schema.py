"""The `job` table as SQLAlchemy Core sees it, and the two small ones beside it.

The only truth about the schema is the Alembic branch ``brooq``; a test holds this definition equal to what the
branch's newest revision makes. Every name is fixed with `conv`, so that a naming convention of the user's MetaData
changes none of them.

Which index serves which statement:

========== ============================================= ===================================================
ready      topic, priority, available_at, id             the claim: one ordered probe a topic and priority
held       locked_by, id where there is a holder         the reaper; settle and heartbeat go by primary key
finished   updated_at of terminal jobs                   retention
key        topic, idempotency_key, unique                enqueue with a key
========== ============================================= ===================================================

The index for the reaper is on who holds a lease, not on until when. A heartbeat then changes no indexed column, and
PostgreSQL renews in place (a heap-only tuple, manual section 66.7) instead of writing to every index. Its predicate
names no state: one on ``state = 'processing'`` would be implied by the guard of a settle, and would look like an index
of one row to a planner whose statistics were taken when nothing was processing.

Beside ``job`` lie ``job_worker``, in which live workers say who they are, and ``job_pause``, whose topics no claim
takes from. Nothing that must be right is read from the first.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    event,
    text,
)
from sqlalchemy.sql.elements import conv

from .functions import SQLITE_INSTANT, Instant, Payload, new_id, now
from .states import READY, TERMINAL, State

EARLIEST = "1970-01-01 00:00:00"
"""No job is available before this instant (UTC)..."""
LATEST = "9999-01-01 00:00:00"
"""...nor at or after this one: both databases and Python's datetime hold every instant between, in any time zone."""

PRIORITIES = range(-32_768, 32_768)
"""What fits a smallint; the smaller goes first."""

ATTEMPTS_CEILING = 2_147_483_647
"""The largest number of attempts an integer column holds."""

INSTANTS = ("available_at", "locked_until", "created_at", "updated_at")
"""The columns that hold an instant."""

STORAGE = {
    # Room for a renewed lease beside the row it renews.
    "fillfactor": 70,
    # The default of a fifth of the table would leave a busy queue full of dead rows for hours.
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_threshold": 100,
}
"""Storage parameters on PostgreSQL."""


REVISION = "brooq_0001"
"""The revision of the branch that this definition is equal to."""

COMPANIONS = ("worker", "pause")
"""The tables beside a job table, each named after it: ``job_worker``, ``job_pause``."""


def quoted_states(states: tuple[State, ...]) -> str:
    """States as a list of SQL literals. A bound value would hide a partial index from the planner."""
    return ", ".join(f"'{state}'" for state in states)


def job_table(metadata: MetaData, name: str = "job", schema: str | None = None) -> Table:
    """The job table in `metadata`, which gets the tables beside it as well.

    Args:
        name: of the table; its constraints and indexes and the tables beside it take their names from it.
        schema: where it lies; None for the connection's default one.

    Raises:
        sqlalchemy.exc.InvalidRequestError: `metadata` has a table of this name already.
    """
    table = Table(
        name,
        metadata,
        *_columns(),
        *_constraints(name),
        schema=schema,
        comment=f"Jobs of brooq-sa, at revision {REVISION}",
        info={"brooq": True},
    )
    _add_indexes(table)
    _after_create(table, "postgresql", postgresql_storage(table))
    for trigger in sqlite_triggers(table):
        _after_create(table, "sqlite", trigger)
    _after_create(table, "sqlite", _sqlite_revision(table))
    worker_table(table)
    pause_table(table)
    return table


def worker_table(job: Table) -> Table:
    """Who is at work: a row for each live worker, which it writes anew now and then. For people to read.

    Its columns: `id`, as `locked_by` has it; `topics`, a list; `slots`, and how many of them are `running`;
    `live_until`, when the worker is to be taken for gone unless it has been seen again; `reaps_at`, when it next looks
    for leases that ran out.
    """
    return _companion(
        job,
        "worker",
        Column("id", Text(), nullable=False),
        Column("host", Text(), nullable=False),
        Column("pid", Integer(), nullable=False),
        Column("version", Text(), nullable=False),
        Column("topics", Payload(), nullable=False),
        Column("slots", Integer(), nullable=False),
        Column("running", Integer(), nullable=False),
        Column("started_at", Instant(), nullable=False, server_default=now()),
        Column("seen_at", Instant(), nullable=False, server_default=now()),
        Column("live_until", Instant(), nullable=False),
        Column("reaps_at", Instant()),
    )


def pause_table(job: Table) -> Table:
    """The topics that no worker claims from."""
    return _companion(
        job,
        "pause",
        Column("topic", Text(), nullable=False),
        Column("paused_at", Instant(), nullable=False, server_default=now()),
        Column("paused_by", Text()),
        Column("reason", Text()),
    )


def _companion(job: Table, purpose: str, key: Column[Any], *columns: Column[Any]) -> Table:
    name = f"{job.name}_{purpose}"
    existing = job.metadata.tables.get(f"{job.schema}.{name}" if job.schema else name)
    if existing is not None and existing.info.get("brooq_beside") == job.name:
        return existing
    primary = PrimaryKeyConstraint(key.name, name=conv(f"{name}_pkey"))
    return Table(name, job.metadata, key, *columns, primary, schema=job.schema, info={"brooq_beside": job.name})


def _columns() -> list[Column[Any]]:
    return [
        Column("id", Uuid(), nullable=False, server_default=new_id()),
        Column("topic", Text(), nullable=False),
        Column("payload", Payload(), nullable=False),
        Column("state", Text(), nullable=False, server_default=text(f"'{State.PENDING}'")),
        Column("attempts", Integer(), nullable=False, server_default=text("0")),
        Column("crashes", Integer(), nullable=False, server_default=text("0")),
        Column("priority", SmallInteger(), nullable=False, server_default=text("0")),
        Column("available_at", Instant(), nullable=False, server_default=now()),
        Column("locked_by", Text()),
        Column("locked_until", Instant()),
        Column("last_error", Text()),
        Column("progress", Payload()),
        Column("idempotency_key", Text()),
        Column("created_at", Instant(), nullable=False, server_default=now()),
        Column("updated_at", Instant(), nullable=False, server_default=now()),
    ]


def _constraints(name: str) -> list[PrimaryKeyConstraint | CheckConstraint]:
    def check(rule: str, condition: str, dialect: str | None = None) -> CheckConstraint:
        constraint = CheckConstraint(condition, name=conv(f"{name}_{rule}_check"))
        return constraint.ddl_if(dialect=dialect) if dialect else constraint

    return [
        PrimaryKeyConstraint("id", name=conv(f"{name}_pkey")),
        check("state", f"state IN ({quoted_states(tuple(State))})"),
        check("topic", "topic <> ''"),
        check("attempts", "attempts >= 0"),
        # One way only: an operator who cancels in plain SQL changes the state and leaves the lease.
        check("lease", "state <> 'processing' OR (locked_by IS NOT NULL AND locked_until IS NOT NULL)"),
        check("instants", _within("+00"), "postgresql"),
        check("instants", _within(""), "sqlite"),
        check("payload", "json_valid(payload)", "sqlite"),
    ]


def _within(offset: str) -> str:
    earliest, latest = f"'{EARLIEST}{offset}'", f"'{LATEST}{offset}'"
    return (
        f"available_at >= {earliest} AND available_at < {latest}"
        f" AND created_at >= {earliest} AND created_at < {latest}"
        f" AND updated_at >= {earliest} AND updated_at < {latest}"
        f" AND (locked_until IS NULL OR (locked_until >= {earliest} AND locked_until < {latest}))"
    )


def _add_indexes(table: Table) -> None:
    def index(purpose: str, columns: list[str], where: str, *, unique: bool = False) -> None:
        condition = text(where)
        Index(
            conv(f"{table.name}_{purpose}_idx"),
            *(table.c[column] for column in columns),
            unique=unique,
            postgresql_where=condition,
            sqlite_where=condition,
        )

    index("ready", ["topic", "priority", "available_at", "id"], f"state IN ({quoted_states(READY)})")
    index("held", ["locked_by", "id"], "locked_by IS NOT NULL")
    index("finished", ["updated_at"], f"state IN ({quoted_states(TERMINAL)})")
    index("key", ["topic", "idempotency_key"], "idempotency_key IS NOT NULL", unique=True)


def postgresql_storage(table: Table) -> str:
    """DDL for the storage parameters, on PostgreSQL; SQLAlchemy 2.0 has no option for them on a table."""
    settings = ", ".join(f"{name} = {value}" for name, value in STORAGE.items())
    return f"ALTER TABLE {_quoted(table.name, table.schema)} SET ({settings})"


def sqlite_triggers(table: Table) -> list[str]:
    """DDL for triggers that give hand-written instants the one text shape, on SQLite.

    ``datetime('now')``, ``2026-01-31T09:30:00Z`` and ``2026-01-31 15:00:00.5+05:30`` are all instants to SQLite, and
    all sort differently as text. What is no instant at all becomes NULL, which the table's constraints refuse.
    """
    pattern = "????-??-?? ??:??:??.??????"
    odd = " OR ".join(f"NEW.{column} NOT GLOB '{pattern}'" for column in INSTANTS)
    reshaped = ", ".join(f"{column} = strftime('{SQLITE_INSTANT}', {column})" for column in INSTANTS)
    return [
        _trigger(table, "insert", "INSERT", odd, reshaped),
        _trigger(table, "update", f"UPDATE OF {', '.join(INSTANTS)}", odd, reshaped),
    ]


def _sqlite_revision(table: Table) -> str:
    """DDL for what a comment says on PostgreSQL; the trigger never fires."""
    name = _quoted(f"{table.name}_revision", table.schema)
    return f"CREATE TRIGGER {name} AFTER UPDATE OF id ON {_quoted(table.name)} WHEN 0 BEGIN SELECT '{REVISION}'; END"


def _trigger(table: Table, purpose: str, moment: str, condition: str, assignments: str) -> str:
    # The schema goes before the trigger's name; a table named in a trigger is in the trigger's own schema.
    name, on = _quoted(f"{table.name}_{purpose}_instants", table.schema), _quoted(table.name)
    return (
        f"CREATE TRIGGER {name} AFTER {moment} ON {on} WHEN {condition} BEGIN"
        f" UPDATE {on} SET {assignments} WHERE id = NEW.id; END"
    )


def _quoted(name: str, schema: str | None = None) -> str:
    prefix = "" if schema is None else f"{_quoted(schema)}."
    return prefix + '"' + name.replace('"', '""') + '"'


def _after_create(table: Table, dialect: str, statement: str) -> None:
    ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]  # it formats with %
    event.listen(table, "after_create", ddl.execute_if(dialect=dialect))
