"""What a database role must have been granted, and an error that says so where it was not."""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlalchemy import URL, Dialect, Table
from sqlalchemy.exc import DBAPIError

from .exc import AccessError
from .schema import pause_table, worker_table


class Privileges(NamedTuple):
    """What a role needs on a job table, and on those beside it."""

    job: tuple[str, ...]
    worker: tuple[str, ...] = ()
    pause: tuple[str, ...] = ()

    def by_table(self, job: Table) -> dict[Table, tuple[str, ...]]:
        """The tables on which something is needed, and what."""
        needed = {job: self.job, worker_table(job): self.worker, pause_table(job): self.pause}
        return {table: privileges for table, privileges in needed.items() if privileges}


LOOK = Privileges(("SELECT",), ("SELECT",), ("SELECT",))
ENQUEUE = Privileges(("SELECT", "INSERT"))
OPERATE = Privileges(("SELECT", "UPDATE"))
DELETE = Privileges(("SELECT", "UPDATE", "DELETE"))
"""UPDATE is what PostgreSQL asks for to lock a row."""

PAUSE = Privileges((), (), ("SELECT", "INSERT", "DELETE"))
WORK = Privileges(("SELECT", "INSERT", "UPDATE", "DELETE"), ("SELECT", "INSERT", "UPDATE", "DELETE"), ("SELECT",))

DENIED = "42501"
"""PostgreSQL's insufficient_privilege."""


def denial(error: DBAPIError, privileges: Privileges, table: Table, dialect: Dialect, url: URL) -> AccessError | None:
    """What says what to grant, and to whom, if the error is the database's denial of this very job table."""
    denied = next((each for each in privileges.by_table(table) if is_denied(error, each)), None)
    if denied is None:
        return None
    statements = grants(privileges, table, dialect, url.username)
    whose = f"Role {url.username!r}" if url.username else "The role of this connection"
    return AccessError(
        f"{whose} may not do this in table {denied.fullname!r}: {_first_line(error)}. Have the table's owner run: "
        + " ".join(statements),
        statements,
    )


def is_denied(error: DBAPIError, table: Table) -> bool:
    """Whether the database complains that the role lacks a privilege on the table, or on the schema that it lies in."""
    state = getattr(error.orig, "sqlstate", getattr(error.orig, "pgcode", None))
    said = _first_line(error)
    return state == DENIED and any(names(said, name) for name in (table.name, table.schema) if name is not None)


def names(text: str, name: str) -> bool:
    """Whether a message names it: as a word of its own or in quotes, and not as a part of a longer name."""
    return re.search(rf"""(?:^|[\s'"«„“‘]){re.escape(name)}(?:$|[\s'"»“”’])""", text) is not None


def grants(privileges: Privileges, table: Table, dialect: Dialect, role: str | None) -> tuple[str, ...]:
    """The statements that give a role what it needs on the job table and those beside it."""
    preparer = dialect.identifier_preparer
    to = preparer.quote(role) if role else "..."
    usage = [f"GRANT USAGE ON SCHEMA {preparer.quote(table.schema)} TO {to};"] if table.schema else []
    access = [
        f"GRANT {', '.join(needed)} ON {preparer.format_table(each)} TO {to};"
        for each, needed in privileges.by_table(table).items()
    ]
    return (*usage, *access)


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).partition("\n")[0]
