"""Running the checks, each in a transaction of its own, so that one which fails costs no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from ..access import DENIED
from . import file, jobs, server, tables
from .finding import Finding, Level, note
from .look import Look

PATIENCE = {"statement_timeout": "10s", "lock_timeout": "1s"}
"""After which PostgreSQL gives a statement of a check up, so that a server in a bad way is not made worse."""

MISSING, GIVEN_UP, LOCKED, READ_ONLY = "42P01", "57014", "55P03", "25006"
UNSEEN = (DENIED, MISSING, GIVEN_UP, LOCKED, READ_ONLY)
"""SQLSTATEs after which a check could not see, and the others can."""


_POSTGRESQL, _SQLITE = ("postgresql",), ("sqlite",)
_BOTH = (*_POSTGRESQL, *_SQLITE)


class Check(NamedTuple):
    """A check.

    Attributes:
        run: yields what it finds.
        good: what is so if it finds nothing.
        databases: to which it applies.
        needs_tables: whether it is left out where there is no job table, which the first check tells.
    """

    name: str
    run: Callable[[Look], Iterator[Finding]]
    good: str
    databases: tuple[str, ...] = _BOTH
    needs_tables: bool = True


CHECKS = (
    Check("locks", server.locks, "Nobody keeps claims out of the table.", _POSTGRESQL),
    Check("schema", tables.schema, "The tables are as migrated.", needs_tables=False),
    Check("indexes", tables.indexes, "All indexes are there and valid."),
    Check("locks", file.locks, "The file's lock to write is to be had.", _SQLITE, needs_tables=False),
    Check("journal", file.journal, "The file is in WAL mode.", _SQLITE, needs_tables=False),
    Check("setup", file.setup, "The engine is set up for jobs.", _SQLITE, needs_tables=False),
    Check("grants", tables.grants, "This role may do all that a worker does.", _POSTGRESQL),
    Check("visibility", server.visibility, "This role is told what all sessions do.", _POSTGRESQL, needs_tables=False),
    Check("claim plan", tables.claim_plan, "A claim goes by the index on ready jobs.", _POSTGRESQL),
    Check("statistics", tables.statistics, "The planner's statistics are near the truth.", _POSTGRESQL),
    Check("bloat", server.bloat, "Few rows are dead.", _POSTGRESQL),
    Check("autovacuum", server.autovacuum, "Autovacuum is on and keeps up.", _POSTGRESQL),
    Check("transactions", server.transactions, "No transaction is open for long.", _POSTGRESQL, needs_tables=False),
    Check("prepared", server.prepared, "No prepared transaction is left over.", _POSTGRESQL, needs_tables=False),
    Check("slots", server.slots, "No replication slot holds anything back.", _POSTGRESQL, needs_tables=False),
    Check(
        "isolation",
        server.isolation,
        "Transactions are READ COMMITTED by default, and may write.",
        _POSTGRESQL,
        needs_tables=False,
    ),
    Check("pooler", server.pooler, "No pooler is in between.", _POSTGRESQL, needs_tables=False),
    Check(
        "prepared statements",
        server.prepared_statements,
        "Prepared statements are where they belong.",
        _POSTGRESQL,
        needs_tables=False,
    ),
    Check("connections", server.connections, "There are connections enough for the live workers.", _POSTGRESQL),
    Check("clock", jobs.clock, "The clocks of this host and of the database agree.", needs_tables=False),
    Check("unserved", jobs.unserved, "Every topic with ready jobs is served, or paused."),
    Check("paused", jobs.paused, "No topic is paused."),
    Check("leases", jobs.leases, "No lease has run out unreaped."),
    Check("suspects", jobs.suspects, "No active job has crashed its workers more than once."),
    Check("retention", jobs.retention, "Ended jobs are deleted in time."),
    Check("versions", jobs.versions, "All live workers are of this version."),
)
"""In the order in which they are told."""


def examine(
    connection: Connection,
    job: Table,
    *,
    checks: Iterable[Check] = CHECKS,
    **options: Any,
) -> Iterator[Finding]:
    """What each check that applies finds; one that finds nothing says what is good.

    Args:
        connection: in no transaction; nothing is changed on it.
        options: of `Look`.

    Raises:
        sqlalchemy.exc.DBAPIError: the database failed a check for another reason than what the role may see.
    """
    look = Look(connection, job, **options)
    with connection.begin():
        has_table = sa.inspect(connection).has_table(job.name, schema=job.schema)
    for check in checks:
        if connection.dialect.name in check.databases and (has_table or not check.needs_tables):
            found = _examined(look, check) or [Finding(Level.OK, check.good)]
            yield from (replace(each, check=check.name) for each in found)


def _examined(look: Look, check: Check) -> list[Finding]:
    with look.connection.begin() as transaction:
        try:
            if look.is_postgresql:
                limit = sa.text("SELECT set_config(:name, :patience, true)")
                look.connection.execute(limit, [{"name": name, "patience": long} for name, long in PATIENCE.items()])
            return list(check.run(look))
        except DBAPIError as error:
            if not _is_unseen(error):
                raise
            said = str(error.orig).partition("\n")[0]
            return [note(f"This could not be seen: {said}.", "What it looks for may or may not be there.", error=said)]
        finally:
            if transaction.is_active:
                transaction.rollback()


def _is_unseen(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", getattr(error.orig, "pgcode", None))
    return state in UNSEEN or str(error.orig).startswith("no such table")
