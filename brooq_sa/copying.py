"""Putting many jobs into the table with COPY, where the driver is psycopg.

That is the fastest road into PostgreSQL: it parses and stores rows while Python still writes those behind them.

COPY takes the place of INSERT only where it does the same. It cannot compute a value, so rows with a delay go another
way; it is refused on tables with row security, which is asked first (manual, "COPY": "COPY FROM is not supported for
tables with row-level security"). SQLAlchemy does not see it: neither ``echo`` nor its cursor events show the statement.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table, Text, literal, select
from sqlalchemy.exc import DBAPIError

from .functions import row_security_active

FEWEST = 200
"""How many rows are worth it."""

CHUNK = 100
"""Lines written at once."""


def can_copy(connection: Connection, table: Table) -> bool:
    """Whether rows may be copied into the table on this connection, whose transaction begins with the question."""
    if (connection.dialect.name, connection.dialect.driver) != ("postgresql", "psycopg"):
        return False
    if connection.dialect.is_async:
        return False
    asked = select(row_security_active(literal(name_of(connection, table), Text())))
    return connection.execute(asked).scalar_one() is False


def line(job_id: uuid.UUID, topic: str, payload: str, priority: int) -> str:
    """A job without a key, a delay or a time of its own in COPY's text format.

    JSON has no tabs and line ends of its own, and topics have nothing that the format would take for its own.
    """
    if "\\" in payload:
        payload = payload.replace("\\", "\\\\")
    return f"{job_id.hex}\t{topic}\t{payload}\t{priority}\n"


def copy_lines(connection: Connection, table: Table, lines: Iterable[str]) -> None:
    """Put the jobs of such lines into the table; each is sent soon after it is drawn.

    Raises:
        sqlalchemy.exc.DBAPIError: as a statement executed by SQLAlchemy would.
    """
    statement = f"COPY {name_of(connection, table)} (id, topic, payload, priority) FROM STDIN"
    driver_connection: Any = connection.connection.driver_connection
    lines = iter(lines)
    refusal: BaseException | None = None
    try:
        with driver_connection.cursor() as cursor, cursor.copy(statement) as copy:
            while True:
                try:
                    chunk = "".join(islice(lines, CHUNK))
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised below
                    refusal = error
                    raise _Abandoned from None  # which the server's log will show, and no value of the user's
                if not chunk:
                    break
                copy.write(chunk)
    except _Abandoned:
        pass  # the refusal is raised below, with its own cause and without this detour
    except connection.dialect.loaded_dbapi.Error as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise _as_sqlalchemy_tells(error, statement, connection) from error
    if refusal is not None:
        raise refusal


class _Abandoned(Exception):
    """A row could not be made."""


def name_of(connection: Connection, table: Table) -> str:
    """The table's name in SQL, in the schema that the connection maps its own to."""
    preparer = connection.dialect.identifier_preparer
    mapped = connection.get_execution_options().get("schema_translate_map") or {}
    schema = mapped.get(table.schema, table.schema)
    name = preparer.quote(table.name)
    return name if schema is None else f"{preparer.quote_schema(schema)}.{name}"


def _as_sqlalchemy_tells(error: Any, statement: str, connection: Connection) -> DBAPIError:
    dbapi_connection: Any = connection.connection.dbapi_connection
    is_disconnect = connection.dialect.is_disconnect(error, dbapi_connection, None)
    if is_disconnect:
        connection.invalidate(error)
    told: Any = DBAPIError.instance(
        statement,
        (),
        error,
        connection.dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=is_disconnect,
        dialect=connection.dialect,
    )
    return told  # type: ignore[no-any-return]
