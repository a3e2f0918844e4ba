"""Whether the PostgreSQL server is a good place for a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .finding import Finding, fault, note, warning
from .look import Look, listed, long

DEAD_ROWS = 10_000
DEAD_SHARE = 0.5
"""So many dead rows, and such a share of all, are bloat."""

BEHIND = 3
"""How many times what should start a vacuum is too much."""

OWN_CONNECTIONS = 5
"""Of a worker beside those of its slots: conversation, heartbeat, upkeep, listener, metrics."""

FULL = 0.8
"""The share of connections in use from which on it is told."""

MOMENT = 1.0
"""Seconds for which a lock on the table is nothing to speak of: a quick migration, the end of a vacuum."""

MONITOR = "GRANT pg_monitor TO this role, or ask as one that has it."


def visibility(look: Look) -> Iterator[Finding]:
    """Whether the role is told what other roles' sessions do."""
    asked = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
    if not look.value(asked):
        yield note(
            "This role is not told what sessions of other roles do.",
            "Long transactions and snapshots of others cannot be seen here.",
            MONITOR,
        )


def locks(look: Look) -> Iterator[Finding]:
    """Locks on the job table that no claim gets past."""
    rows = [row for row in look.lockers() if row["seconds"] is None or row["seconds"] >= MOMENT]
    if not rows:
        return
    having = [row for row in rows if row["has_it"]]
    named = listed(map(_session, having or rows))
    first = rows[0]
    wanted = [str(pid) for pid in first["waits_for"]]
    yield fault(
        f"The job table is locked: {named}."
        if having
        else f"A lock on the job table is waited for, and everybody else waits behind: {named};"
        f" process {listed(wanted) or '?'} keeps it from that.",
        "Claims and enqueues wait until that is over; what follows is what can be seen meanwhile.",
        f"End what began it; else SELECT pg_terminate_backend({wanted[0] if wanted else first['pid']}).",
        lockers=rows,
    )


def bloat(look: Look) -> Iterator[Finding]:
    """Whether much of the table is dead."""
    row = _table(look)
    dead, alive = row["dead"], row["alive"]
    if dead >= DEAD_ROWS and dead > DEAD_SHARE * (dead + alive):
        yield warning(
            f"{dead / (dead + alive):.0%} of the rows are dead: {dead:,}, beside {alive:,}.",
            "Claims step over dead entries of the index one by one.",
            f"Find what keeps vacuum away (the checks beside this one), then VACUUM {look.place};",
            dead=dead,
            alive=alive,
        )


def transactions(look: Look) -> Iterator[Finding]:
    """Transactions that have been open for long."""
    rows = look.rows(
        """
        SELECT pid, usename AS "user", nullif(application_name, '') AS application, state,
            extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        -- One vacuum is in no other's way, and may take its time.
        AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
        AND xact_start <= clock_timestamp() - make_interval(secs => :least)
        ORDER BY xact_start LIMIT 20""",
        least=look.long_transaction.total_seconds(),
    )
    if rows:
        named = listed(map(_session, rows))
        yield warning(
            f"Transactions have been open for long: {named}.",
            "While one is open no vacuum takes away what died since it began, and claims get slower.",
            f"End what began it; else SELECT pg_terminate_backend({rows[0]['pid']}). Set"
            " idle_in_transaction_session_timeout for whoever forgets.",
            transactions=rows,
        )


def _session(row: dict[str, Any]) -> str:
    application = f" ({row['application']})" if row["application"] else ""
    return f"process {row['pid']} of {row['user']}{application}, {row['state']}, for {long(row['seconds'])}"


def prepared(look: Look) -> Iterator[Finding]:
    """Transactions that were prepared and forgotten."""
    rows = look.rows(
        """
        SELECT gid AS name, owner AS "user", extract(epoch FROM clock_timestamp() - prepared)::float AS seconds
        FROM pg_prepared_xacts WHERE database = current_database()
        AND prepared <= clock_timestamp() - make_interval(secs => :least) ORDER BY prepared LIMIT 20""",
        least=look.long_transaction.total_seconds(),
    )
    if rows:
        named = listed(f"{row['name']!r} of {row['user']}, for {long(row['seconds'])}" for row in rows)
        yield warning(
            f"Transactions are prepared and not committed: {named}.",
            "They hold their locks and hold back vacuum for ever, through restarts too.",
            "COMMIT PREPARED or ROLLBACK PREPARED, as whoever prepared them would have.",
            transactions=rows,
        )


def slots(look: Look) -> Iterator[Finding]:
    """Replication slots that nobody uses, and standbys that hold back vacuum for long."""
    rows = look.rows("""
        SELECT slot_name AS name, active, slot_type, age(xmin) AS transactions, age(catalog_xmin) AS of_catalogs,
            restart_lsn IS NOT NULL AS keeps_wal
        FROM pg_replication_slots ORDER BY slot_name""")
    for row in rows:
        holds = [f"vacuum, for {row['transactions']:,} transactions"] if row["transactions"] else []
        holds += [f"the catalogs' vacuum, for {row['of_catalogs']:,}"] if row["of_catalogs"] else []
        holds += ["the write-ahead log"] if row["keeps_wal"] else []
        if holds and not row["active"]:
            yield warning(
                f"Replication slot {row['name']} is used by nobody, and holds back {' and '.join(holds)}.",
                "Dead rows stay, or the disk fills up." if row["transactions"] else "The disk fills up.",
                f"Bring its reader back, or SELECT pg_drop_replication_slot('{row['name']}');",
                **row,
            )
        elif (row["transactions"] or 0) > FAR_BEHIND:
            yield _far_behind(f"Replication slot {row['name']}", row)
    for row in look.rows(
        """
        SELECT coalesce(nullif(application_name, ''), pid::text) AS name, age(backend_xmin) AS transactions
        FROM pg_stat_replication WHERE age(backend_xmin) > :most ORDER BY pid""",
        most=FAR_BEHIND,
    ):
        yield _far_behind(f"Standby {row['name']}", row)


def _far_behind(what: str, row: dict[str, Any]) -> Finding:
    return warning(
        f"{what} holds back vacuum, for {row['transactions']:,} transactions.",
        "No dead row since then can be taken away: its reader has a long transaction, or is slow.",
        "Look for long transactions on the standby (hot_standby_feedback).",
        **row,
    )


FAR_BEHIND = 1_000_000
"""Transactions that a reader of the write-ahead log may be behind."""


def autovacuum(look: Look) -> Iterator[Finding]:
    """Whether vacuum comes by itself, and keeps up."""
    row = _table(look)
    why = "Dead rows pile up, and claims step over each of them."
    if look.value("SELECT current_setting('autovacuum')") == "off":
        yield warning("Autovacuum is switched off on this server.", why, "Set autovacuum = on and reload.")
    if "autovacuum_enabled=false" in row["options"] or "autovacuum_enabled=off" in row["options"]:
        cure = f"ALTER TABLE {look.place} RESET (autovacuum_enabled);"
        yield warning("Autovacuum is switched off for the job table.", why, cure)
    starts_at = _starts_at(row)
    if row["dead"] > DEAD_ROWS and row["dead"] > BEHIND * starts_at:
        when = f"was {long(row['vacuumed'])} ago" if row["vacuumed"] is not None else "never came"
        yield warning(
            f"Autovacuum is behind: {row['dead']:,} rows are dead, {starts_at:,.0f} should start it; the last vacuum"
            f" {when}.",
            why,
            "If nothing holds vacuum back, give it more: autovacuum_max_workers, autovacuum_vacuum_cost_limit.",
            dead=row["dead"],
            starts_at=starts_at,
        )
    if row["age"] > row["oldest"]:
        yield warning(
            f"The table's oldest rows are {row['age']:,} transactions old, and {row['oldest']:,} should have been the"
            " most.",
            "Far beyond that the server stops taking writes (wraparound).",
            f"VACUUM (FREEZE) {look.place};",
            age=row["age"],
        )


def _table(look: Look) -> dict[str, Any]:
    return look.row(
        """
        SELECT n_dead_tup AS dead, n_live_tup AS alive, coalesce(reloptions, '{}') AS options,
            greatest(reltuples, 0)::float AS believed, age(relfrozenxid) AS age,
            current_setting('autovacuum_freeze_max_age')::bigint AS oldest,
            current_setting('autovacuum_vacuum_threshold')::float AS threshold,
            current_setting('autovacuum_vacuum_scale_factor')::float AS scale,
            extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float AS vacuumed
        FROM pg_class JOIN pg_stat_all_tables ON relid = pg_class.oid WHERE pg_class.oid = to_regclass(:place)""",
        place=look.place,
    )


def _starts_at(row: dict[str, Any]) -> float:
    """How many dead rows should start a vacuum (manual, "The Autovacuum Daemon")."""
    own = dict(option.split("=", 1) for option in row["options"])
    threshold = float(own.get("autovacuum_vacuum_threshold", row["threshold"]))
    return threshold + float(own.get("autovacuum_vacuum_scale_factor", row["scale"])) * float(row["believed"])


def isolation(look: Look) -> Iterator[Finding]:
    """What transactions are by default."""
    row = look.row("""
        SELECT current_setting('default_transaction_isolation') AS level, pg_is_in_recovery() AS is_standby,
            current_setting('default_transaction_read_only') = 'on' AS is_read_only""")
    if row["is_standby"] or row["is_read_only"]:
        reason = "is a standby" if row["is_standby"] else "lets transactions only read by default"
        yield fault(f"This server {reason}.", "Nothing can be enqueued or claimed here.", "Use the primary's URL.")
    if row["level"] != "read committed":
        yield note(
            f"Transactions are {row['level'].upper()} by default.",
            "Workers claim at READ COMMITTED whatever the default is; handlers get the default in claim.session, and"
            " are run again after a serialization failure.",
            "None, if that is meant; else reset default_transaction_isolation of the role or database.",
            level=row["level"],
        )


def pooler(look: Look) -> Iterator[Finding]:
    """Whether the connection goes through a pooler."""
    if _is_pooled(look):
        yield note(
            "There is a pooler between here and the server.",
            "In transaction mode, LISTEN does not get through: workers find jobs by polling alone.",
            "Give workers a way past it: wake_url (QUEUE_WAKE_URL).",
        )


def prepared_statements(look: Look) -> Iterator[Finding]:
    """Whether prepared statements may be missed, or planned once and for all."""
    driver: Any = look.connection.connection.driver_connection
    if _is_pooled(look) and getattr(driver, "prepare_threshold", None) is not None:
        yield warning(
            "Statements are prepared through a pooler.",
            "One that is prepared on one server connection is looked for on another; handlers then fail with"
            ' "prepared statement does not exist", unless the pooler keeps track (PgBouncer: max_prepared_statements).',
            "Add ?prepare_threshold=none to the URL of the commands; in code,"
            ' create_engine(url, connect_args={"prepare_threshold": None}).',
        )
    mode = look.value("SELECT current_setting('plan_cache_mode')")
    if mode != "auto":
        yield note(
            f"plan_cache_mode is {mode}.",
            "The queue's statements hold under either; yours may be planned without a look at their values.",
            "None, if that is meant; else reset plan_cache_mode.",
            plan_cache_mode=mode,
        )


def _is_pooled(look: Look) -> bool:
    info = getattr(look.connection.connection.driver_connection, "info", None)
    mine = getattr(info, "backend_pid", None)
    return mine is not None and mine != look.value("SELECT pg_backend_pid()")


def connections(look: Look) -> Iterator[Finding]:
    """Whether there are connections enough for the workers that are live, by each limit that there is."""
    row = look.row(_CONNECTIONS)
    limits = {
        "this server": (row["of_server"], row["used"]),
        "this database": (row["of_database"], row["used_here"]),
        "this role": (row["of_role"], row["used_by_role"]),
    }
    cure = "Fewer slots (--workers), a pooler for the handlers' engine, or a higher limit (max_connections)."
    for whose, (limit, used) in limits.items():
        if limit >= 0 and used >= FULL * limit:
            yield warning(
                f"{used} of the {limit} connections of {whose} are in use.",
                "When they are all taken, workers and your application are refused.",
                cure,
                used=used,
                limit=limit,
            )
    room = min(limit for limit, _ in limits.values() if limit >= 0)
    workers = look.live_workers()
    wanted = sum(each["slots"] + OWN_CONNECTIONS for each in workers)
    if wanted > room:
        yield warning(
            f"{len(workers)} live workers may want {wanted} connections at once, and {room} are to be had.",
            "Handlers then wait for a connection or fail, the more so beside your application.",
            cure,
            wanted=wanted,
            room=room,
        )


_CONNECTIONS = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0) AS of_server,
        (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS of_database,
        (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS of_role,
        count(*) AS used, count(*) FILTER (WHERE datname = current_database()) AS used_here,
        count(*) FILTER (WHERE usename = current_user) AS used_by_role
    FROM pg_stat_activity WHERE datname IS NOT NULL"""
