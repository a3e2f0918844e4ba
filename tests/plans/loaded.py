"""A busy PostgreSQL table of more than 600,000 jobs, and the odd statistics that a planner may have of it."""

from __future__ import annotations

from sqlalchemy import Connection, text

OTHER, LATER, FINISHED, HELD, DUE = 200_000, 200_000, 200_000, 5_000, 20_000

TOPIC = "wanted"
WORKERS = 50
HELD_BY_EACH = HELD // WORKERS

_NEW = "INSERT INTO job (topic, payload, priority, available_at, updated_at, state, attempts, locked_by, locked_until)"
_AGES = "now() - interval '1 hour' + g * interval '1 ms'"

_JOBS = (
    f"SELECT 'other', '{{}}', 0, {_AGES}, {_AGES}, 'pending', 0, NULL, NULL FROM generate_series(1, {OTHER}) g",
    # They lie in front of the due jobs of their topic in the order of a claim.
    f"SELECT '{TOPIC}', '{{}}', -10, now() + interval '1 day', {_AGES}, 'pending', 0, NULL, NULL"
    f" FROM generate_series(1, {LATER}) g",
    f"SELECT '{TOPIC}', '{{}}', 0, {_AGES}, {_AGES}, 'done', 1, NULL, NULL FROM generate_series(1, {FINISHED}) g",
    f"SELECT '{TOPIC}', '{{}}', 0, {_AGES}, {_AGES}, 'processing', 1, 'worker-' || g % {WORKERS}, now() + interval '1 h'"
    f" FROM generate_series(1, {HELD}) g",
    f"SELECT '{TOPIC}', '{{}}', 0, {_AGES}, {_AGES}, 'pending', 0, NULL, NULL FROM generate_series(1, {DUE}) g",
)


def load(connection: Connection) -> None:
    """Fill the empty table `job`, and beside it `past`: how it looked before any job was taken."""
    for jobs in _JOBS:
        connection.execute(text(f"{_NEW} {jobs}"))
    connection.execute(text("CREATE TABLE past (LIKE job)"))
    columns = "id, topic, payload, attempts, crashes, priority, available_at, created_at, updated_at"
    connection.execute(
        text(
            f"INSERT INTO past ({columns}, state) SELECT {columns}, 'pending' FROM job TABLESAMPLE SYSTEM (5) REPEATABLE (1)"
        )
    )
    connection.execute(text("ANALYZE past"))


def analyse_now(connection: Connection) -> None:
    """The planner knows the table as it is."""
    connection.execute(text("ANALYZE job"))


def never_analysed(connection: Connection) -> None:
    """The planner knows nothing."""
    _forget(connection)
    _set_size(connection, rows=-1)


def analysed_empty(connection: Connection) -> None:
    """The table was analysed when it was empty, and then filled."""
    _forget(connection)
    _set_size(connection, rows=0)


def analysed_before_any_was_taken(connection: Connection) -> None:
    """The table was analysed when every job waited: nothing was processing, and nothing had finished."""
    analyse_now(connection)
    _forget(connection)
    columns = connection.execute(
        text(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_statistic'::regclass AND attnum > 1 ORDER BY attnum"
        )
    ).scalars()
    names = ", ".join(columns)
    connection.execute(
        text(
            f"INSERT INTO pg_statistic (starelid, {names})"
            f" SELECT 'job'::regclass, {names} FROM pg_statistic WHERE starelid = 'past'::regclass"
        )
    )


def _forget(connection: Connection) -> None:
    connection.execute(text("DELETE FROM pg_statistic WHERE starelid = 'job'::regclass"))


def _set_size(connection: Connection, *, rows: int) -> None:
    indexes = "SELECT indexrelid FROM pg_index WHERE indrelid = 'job'::regclass"
    connection.execute(
        text(f"UPDATE pg_class SET reltuples = {rows}, relpages = 0 WHERE oid = 'job'::regclass OR oid IN ({indexes})")
    )


STATISTICS = {
    each.__name__: each for each in (analyse_now, never_analysed, analysed_empty, analysed_before_any_was_taken)
}
