"""A busy PostgreSQL table of more than 600,000 jobs, and the odd statistics that a planner may have of it."""

from __future__ import annotations

from sqlalchemy import Connection, text

OTHER, LATER, FINISHED, HELD, DUE = 200_000, 200_000, 200_000, 5_000, 20_000

TOPIC = "wanted"
WORKERS = 50
HELD_BY_EACH = HELD // WORKERS

_NEW = "INSERT INTO job (topic, payload, priority, available_at, updated_at, state, attempts, locked_by, locked_until)"
_AGO = "now() - interval '1 hour' + g * interval '1 ms'"


def _jobs(
    count: int, topic: str, state: str = "pending", *, priority: int = 0, due: str = _AGO, lease: str = "NULL, NULL"
) -> str:
    attempts = 0 if state == "pending" else 1
    values = f"'{topic}', '{{}}', {priority}, {due}, {_AGO}, '{state}', {attempts}, {lease}"
    return f"SELECT {values} FROM generate_series(1, {count}) g"


_JOBS = (
    _jobs(OTHER, "other"),
    # They lie in front of the due jobs of their topic in the order of a claim.
    _jobs(LATER, TOPIC, priority=-10, due="now() + interval '1 day'"),
    _jobs(FINISHED, TOPIC, "done"),
    _jobs(HELD, TOPIC, "processing", lease=f"'worker-' || g % {WORKERS}, now() + interval '1 h'"),
    _jobs(DUE, TOPIC),
)


def load(connection: Connection) -> None:
    """Fill the empty table `job`, and beside it `past`: how it looked before any job was taken."""
    for jobs in _JOBS:
        connection.execute(text(f"{_NEW} {jobs}"))
    connection.execute(text("CREATE TABLE past (LIKE job)"))
    columns = "id, topic, payload, attempts, crashes, priority, available_at, created_at, updated_at"
    connection.execute(
        text(
            f"INSERT INTO past ({columns}, state)"
            f" SELECT {columns}, 'pending' FROM job TABLESAMPLE SYSTEM (5) REPEATABLE (1)"
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
