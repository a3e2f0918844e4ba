"""Every version of every job's row, kept by triggers in the transaction that writes it.

The order of a job's versions is that in which they were committed, since each is written under the lock of its row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine, text

from chaos.jobs import BOOKING, EFFECT, META

INSERTED, UPDATED, DELETED = "I", "U", "D"

ON_POSTGRESQL = """
    CREATE TABLE audit (
        seq bigserial PRIMARY KEY, at double precision, actor text, op text, job text, topic text, state text,
        attempts integer, crashes integer, holder text, until double precision, updated double precision, error text,
        parent text
    );
    CREATE FUNCTION audit_job() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE r job%ROWTYPE;
    BEGIN
        IF TG_OP = 'DELETE' THEN r := OLD; ELSE r := NEW; END IF;
        INSERT INTO audit (at, actor, op, job, topic, state, attempts, crashes, holder, until, updated, error, parent)
        VALUES (
            extract(epoch FROM statement_timestamp()), current_setting('application_name'), left(TG_OP, 1),
            replace(r.id::text, '-', ''), r.topic, r.state, r.attempts, r.crashes, r.locked_by,
            extract(epoch FROM r.locked_until), extract(epoch FROM r.updated_at), left(r.last_error, 300),
            r.payload->>'parent'
        );
        RETURN NULL;
    END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION audit_job();
    -- Commits take their time, so that faults meet some that are under way: the jobs of those are in doubt.
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.03); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON booking DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION dawdle();
    CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION dawdle();
    CREATE TABLE pulse (number integer);
    INSERT INTO pulse VALUES (0);
"""

# Seconds since 1970. The function for that knows no fractions before SQLite 3.42.
_EPOCH = "(julianday({instant}) - 2440587.5) * 86400.0"
_AT, _UNTIL, _UPDATED = (
    _EPOCH.format(instant=instant) for instant in ("'now'", "{row}.locked_until", "{row}.updated_at")
)
_ON_SQLITE = f"""
    CREATE TRIGGER audit_{{op}} AFTER {{moment}} ON job BEGIN
        INSERT INTO audit (at, op, job, topic, state, attempts, crashes, holder, until, updated, error, parent)
        VALUES (
            {_AT}, '{{op}}', {{row}}.id, {{row}}.topic, {{row}}.state, {{row}}.attempts, {{row}}.crashes,
            {{row}}.locked_by, {_UNTIL}, {_UPDATED}, substr({{row}}.last_error, 1, 300),
            json_extract({{row}}.payload, '$.parent')
        );
    END
"""
ON_SQLITE = [
    """
    CREATE TABLE audit (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, actor TEXT, op TEXT, job TEXT, topic TEXT, state TEXT,
        attempts INTEGER, crashes INTEGER, holder TEXT, until REAL, updated REAL, error TEXT, parent TEXT
    )
    """,
    _ON_SQLITE.format(op=INSERTED, moment="INSERT", row="NEW"),
    _ON_SQLITE.format(op=UPDATED, moment="UPDATE", row="NEW"),
    _ON_SQLITE.format(op=DELETED, moment="DELETE", row="OLD"),
]


@dataclass(frozen=True, slots=True)
class Version:
    """A job's row, as one write left it.

    Attributes:
        at: when, by the clock that the queue itself compares with: the database's, at the start of the statement.
        actor: the name of the connection that wrote it; None where the database has no such thing.
        op: INSERTED, UPDATED or DELETED; a deleted one shows the row as it was.
        error: the beginning of ``last_error``.
        parent: the job that chained this one.
    """

    at: float
    actor: str | None
    op: str
    job: str
    topic: str
    state: str
    attempts: int
    crashes: int
    holder: str | None
    until: float | None
    updated: float
    error: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A row that a handler wrote through its claim's session."""

    job: str
    attempt: int
    worker: str


@dataclass(frozen=True)
class Records:
    """What the database holds at the end.

    Attributes:
        history: each job's versions, in order.
        bookings: the jobs that a producer's own row stands beside.
    """

    history: Mapping[str, Sequence[Version]]
    effects: Sequence[Effect]
    bookings: frozenset[str]


def prepare(engine: Engine) -> None:
    """Make the tables and triggers in a migrated database."""
    META.create_all(engine, tables=[EFFECT, BOOKING])
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(ON_POSTGRESQL.replace("%", "%%"))
        else:
            for statement in ON_SQLITE:
                connection.exec_driver_sql(statement)


def read(engine: Engine) -> Records:
    history: dict[str, list[Version]] = defaultdict(list)
    query = (
        "SELECT at, actor, op, job, topic, state, attempts, crashes, holder, until, updated, error, parent FROM audit"
        " ORDER BY seq"
    )
    with engine.connect() as connection:
        for row in connection.execute(text(query)):
            history[row.job].append(Version(*row))
        effects = [Effect(job.hex, attempt, worker) for _, job, attempt, worker in connection.execute(EFFECT.select())]
        bookings = frozenset(job.hex for (job,) in connection.execute(BOOKING.select()))
    return Records(history, effects, bookings)


def told(version: Version) -> str:
    """The version as a line for people."""
    at = datetime.fromtimestamp(version.at, UTC).strftime("%H:%M:%S.%f")
    until = "" if version.until is None else f" until {datetime.fromtimestamp(version.until, UTC):%H:%M:%S.%f}"
    return (
        f"{at} {version.op} {version.state} attempts={version.attempts} crashes={version.crashes}"
        f" holder={version.holder}{until} by {version.actor}"
    )
