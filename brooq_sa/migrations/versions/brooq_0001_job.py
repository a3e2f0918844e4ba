"""The job table, and those beside it: live workers, paused topics.

Frozen: it spells its DDL out and imports nothing that a later release may change.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from alembic.runtime.migration import MigrationContext

from brooq_sa.migrations import groundwork, options
from brooq_sa.migrations.groundwork import quote, run
from brooq_sa.migrations.options import Target

revision = "brooq_0001"
down_revision = None
branch_labels = ("brooq",)
depends_on = None


def upgrade(**environment: Any) -> None:
    context = op.get_context()
    if options.is_meant(context, environment):
        apply(context, options.target(context))


def downgrade(**environment: Any) -> None:
    context = op.get_context()
    if options.is_meant(context, environment):
        revert(context, options.target(context))


def apply(context: MigrationContext, target: Target) -> None:
    """The job table exists, with all that belongs to it."""
    prepare(context)
    groundwork.make_schema(context, target)
    groundwork.refuse_existing(context, target, COMPANIONS)
    for statement in STATEMENTS[context.dialect.name]:
        run(context, written_for(target, statement, context.dialect.name))
    groundwork.note_revision(context, target, revision)


def revert(context: MigrationContext, target: Target) -> None:
    """The job table is gone. Its schema stays: others may use it, and it may have been there before."""
    prepare(context)
    for table in ("{pause}", "{worker}", "{table}"):
        run(context, written_for(target, f"DROP TABLE {table}", context.dialect.name))


def prepare(context: MigrationContext) -> None:
    if context.dialect.name not in STATEMENTS:
        raise options.MigrationError(
            f"The database is {context.dialect.name}: brooq-sa runs on PostgreSQL and SQLite. If your environment"
            " migrates several databases, name the one that gets the job table: brooq_database in alembic.ini."
        )
    if not context.as_sql and context.connection is not None:
        groundwork.begin(context.connection)


def written_for(target: Target, statement: str, dialect: str) -> str:
    """A statement with the target's names in it.

    ``{table}`` is the table with its schema, ``{on}`` the same after an index or a trigger; ``{worker}`` and
    ``{pause}`` are the tables beside it, with theirs; the rest are names made from the table's. SQLite wants the schema
    before an index's or a trigger's name, and not before the table it is on.
    """
    schema = "" if target.schema is None else f"{quote(target.schema)}."
    inner, outer = (schema, "") if dialect == "sqlite" else ("", schema)
    names = {"table": schema + quote(target.table), "on": outer + quote(target.table)}
    names |= {suffix: schema + quote(f"{target.table}_{suffix}") for suffix in COMPANIONS}
    names |= {suffix: quote(f"{target.table}_{suffix}") for suffix in CONSTRAINTS}
    names |= {suffix: inner + quote(f"{target.table}_{suffix}") for suffix in ATTACHMENTS}
    return statement.format(**names)


COMPANIONS = ("worker", "pause")
CONSTRAINTS = (
    "pkey",
    "worker_pkey",
    "pause_pkey",
    "state_check",
    "topic_check",
    "attempts_check",
    "lease_check",
    "instants_check",
    "payload_check",
)
ATTACHMENTS = ("ready_idx", "held_idx", "finished_idx", "key_idx", "insert_instants", "update_instants")

INDEXES = (
    # The claim: one ordered probe a topic and priority.
    "CREATE INDEX {ready_idx} ON {on} (topic, priority, available_at, id) WHERE state IN ('pending', 'failed')",
    # Settle, heartbeat and reaper. Who holds, not until when: renewing a lease then changes no indexed column.
    "CREATE INDEX {held_idx} ON {on} (locked_by, id) WHERE locked_by IS NOT NULL",
    # Retention.
    "CREATE INDEX {finished_idx} ON {on} (updated_at) WHERE state IN ('done', 'dead', 'canceled')",
    # Enqueue with a key.
    "CREATE UNIQUE INDEX {key_idx} ON {on} (topic, idempotency_key) WHERE idempotency_key IS NOT NULL",
)

POSTGRESQL_WORKER = """\
CREATE TABLE {worker} (
    id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    topics JSONB NOT NULL,
    slots INTEGER NOT NULL,
    running INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    live_until TIMESTAMP WITH TIME ZONE NOT NULL,
    reaps_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT {worker_pkey} PRIMARY KEY (id)
)"""

POSTGRESQL_PAUSE = """\
CREATE TABLE {pause} (
    topic TEXT NOT NULL,
    paused_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    paused_by TEXT,
    reason TEXT,
    CONSTRAINT {pause_pkey} PRIMARY KEY (topic)
)"""

SQLITE_WORKER = """\
CREATE TABLE {worker} (
    id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    topics TEXT NOT NULL,
    slots INTEGER NOT NULL,
    running INTEGER NOT NULL,
    started_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    seen_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    live_until TEXT NOT NULL,
    reaps_at TEXT,
    CONSTRAINT {worker_pkey} PRIMARY KEY (id)
)"""

SQLITE_PAUSE = """\
CREATE TABLE {pause} (
    topic TEXT NOT NULL,
    paused_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    paused_by TEXT,
    reason TEXT,
    CONSTRAINT {pause_pkey} PRIMARY KEY (topic)
)"""

POSTGRESQL_TABLE = """\
CREATE TABLE {table} (
    id UUID DEFAULT gen_random_uuid() NOT NULL,
    topic TEXT NOT NULL,
    payload JSONB NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    crashes INTEGER DEFAULT 0 NOT NULL,
    priority SMALLINT DEFAULT 0 NOT NULL,
    available_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    locked_by TEXT,
    locked_until TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    progress JSONB,
    idempotency_key TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT {pkey} PRIMARY KEY (id),
    CONSTRAINT {state_check} CHECK (state IN ('pending', 'processing', 'failed', 'done', 'dead', 'canceled')),
    CONSTRAINT {topic_check} CHECK (topic <> ''),
    CONSTRAINT {attempts_check} CHECK (attempts >= 0),
    CONSTRAINT {lease_check}
        CHECK (state <> 'processing' OR (locked_by IS NOT NULL AND locked_until IS NOT NULL)),
    CONSTRAINT {instants_check} CHECK (
        available_at >= '1970-01-01 00:00:00+00' AND available_at < '9999-01-01 00:00:00+00'
        AND created_at >= '1970-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'
        AND updated_at >= '1970-01-01 00:00:00+00' AND updated_at < '9999-01-01 00:00:00+00'
        AND (locked_until IS NULL
            OR (locked_until >= '1970-01-01 00:00:00+00' AND locked_until < '9999-01-01 00:00:00+00'))
    )
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 100)"""

SQLITE_TABLE = """\
CREATE TABLE {table} (
    id CHAR(32) DEFAULT (lower(hex(randomblob(16)))) NOT NULL,
    topic TEXT NOT NULL,
    payload TEXT NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    attempts INTEGER DEFAULT 0 NOT NULL,
    crashes INTEGER DEFAULT 0 NOT NULL,
    priority SMALLINT DEFAULT 0 NOT NULL,
    available_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    locked_by TEXT,
    locked_until TEXT,
    last_error TEXT,
    progress TEXT,
    idempotency_key TEXT,
    created_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    updated_at TEXT DEFAULT (strftime('%Y-%m-%d %H:%M:%f000', 'now')) NOT NULL,
    CONSTRAINT {pkey} PRIMARY KEY (id),
    CONSTRAINT {state_check} CHECK (state IN ('pending', 'processing', 'failed', 'done', 'dead', 'canceled')),
    CONSTRAINT {topic_check} CHECK (topic <> ''),
    CONSTRAINT {attempts_check} CHECK (attempts >= 0),
    CONSTRAINT {lease_check}
        CHECK (state <> 'processing' OR (locked_by IS NOT NULL AND locked_until IS NOT NULL)),
    CONSTRAINT {instants_check} CHECK (
        available_at >= '1970-01-01 00:00:00' AND available_at < '9999-01-01 00:00:00'
        AND created_at >= '1970-01-01 00:00:00' AND created_at < '9999-01-01 00:00:00'
        AND updated_at >= '1970-01-01 00:00:00' AND updated_at < '9999-01-01 00:00:00'
        AND (locked_until IS NULL
            OR (locked_until >= '1970-01-01 00:00:00' AND locked_until < '9999-01-01 00:00:00'))
    ),
    CONSTRAINT {payload_check} CHECK (json_valid(payload))
)"""

# Instants written by hand get the one text shape that sorts as time; what is no instant becomes NULL, and is refused.
SQLITE_ODD = """\
NEW.available_at NOT GLOB '????-??-?? ??:??:??.??????'
    OR NEW.locked_until NOT GLOB '????-??-?? ??:??:??.??????'
    OR NEW.created_at NOT GLOB '????-??-?? ??:??:??.??????'
    OR NEW.updated_at NOT GLOB '????-??-?? ??:??:??.??????'"""
SQLITE_RESHAPE = """\
UPDATE {on} SET
        available_at = strftime('%Y-%m-%d %H:%M:%f000', available_at),
        locked_until = strftime('%Y-%m-%d %H:%M:%f000', locked_until),
        created_at = strftime('%Y-%m-%d %H:%M:%f000', created_at),
        updated_at = strftime('%Y-%m-%d %H:%M:%f000', updated_at)
    WHERE id = NEW.id;"""
SQLITE_TRIGGERS = tuple(
    f"CREATE TRIGGER {name} AFTER {moment} ON {{on}} WHEN {SQLITE_ODD}\nBEGIN {SQLITE_RESHAPE}\nEND"
    for name, moment in (
        ("{insert_instants}", "INSERT"),
        ("{update_instants}", "UPDATE OF available_at, locked_until, created_at, updated_at"),
    )
)

STATEMENTS = {
    "postgresql": (POSTGRESQL_TABLE, *INDEXES, POSTGRESQL_WORKER, POSTGRESQL_PAUSE),
    "sqlite": (SQLITE_TABLE, *INDEXES, *SQLITE_TRIGGERS, SQLITE_WORKER, SQLITE_PAUSE),
}
