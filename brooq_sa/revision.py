"""Whether the tables in a database are such as this version works with.

During a deployment, old code meets new tables or new code old ones. A version of brooq-sa works with the revision that
it brings, with the one before, and with the one after: what a revision adds, code that does not know it can do without,
and code uses nothing of its newest revision without having looked whether it is there. Further apart, nobody has tried.

The job table itself says which revision it is at, in its comment on PostgreSQL and in a trigger's text on SQLite,
whichever way it was migrated. A table that says nothing, as one made by ``create_all`` of an early version, is taken by
its columns.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from .exc import SchemaError
from .schema import REVISION

_REVISION = re.compile(r"\bbrooq_(\d+)\b")


def demand(connection: Connection, table: Table) -> None:
    """Nothing, if this version works with the job table as it is; a missing table is left to whoever uses it.

    One or two small queries of the catalog, which no privilege is needed for.

    Raises:
        SchemaError: it is too old or too new; the text says which side to upgrade.
    """
    there, ours = found(connection, table), number(REVISION)
    if there is None:
        _demand_columns(connection, table)
    elif there < ours - 1:
        raise SchemaError(
            f"Table {table.fullname!r} is at revision {name(there)}, and this version of brooq-sa needs"
            f" {name(ours - 1)} or {REVISION}. Upgrade the database: 'alembic upgrade brooq@head', or 'brooq-sa"
            " migrate upgrade' if you do not use Alembic."
        )
    elif there > ours + 1:
        raise SchemaError(
            f"Table {table.fullname!r} is at revision {name(there)}, and this version of brooq-sa knows {REVISION} and"
            f" works with {name(ours + 1)} at most. Upgrade brooq-sa here."
        )


def found(connection: Connection, table: Table) -> int | None:
    """The number of the revision that the job table says it is at; None if it says nothing, or is not there."""
    schema = _schema(connection, table)
    if connection.dialect.name == "sqlite":
        place = f"{_quoted(schema)}." if schema else ""
        query = f"SELECT sql FROM {place}sqlite_schema WHERE type = 'trigger' AND name = ?"  # noqa: S608 - a name
        text = connection.exec_driver_sql(query, (f"{table.name}_revision",)).scalar()
    else:
        name = _quoted(table.name) if schema is None else f"{_quoted(schema)}.{_quoted(table.name)}"
        query = "SELECT obj_description(CAST(to_regclass(:name) AS oid), 'pg_class')"
        text = connection.execute(sa.text(query), {"name": name}).scalar()
    said = _REVISION.search(text or "")
    return int(said[1]) if said else None


def number(revision: str) -> int:
    """The number in ``brooq_0001``."""
    return int(revision.rpartition("_")[2])


def name(number: int) -> str:
    """The revision of that number."""
    return f"brooq_{number:04}"


def _demand_columns(connection: Connection, table: Table) -> None:
    inspector, schema = sa.inspect(connection), _schema(connection, table)
    if not inspector.has_table(table.name, schema=schema):
        return
    there = {column["name"] for column in inspector.get_columns(table.name, schema=schema)}
    if missing := [column.name for column in table.columns if column.name not in there]:
        raise SchemaError(
            f"Table {table.fullname!r} has no column {', '.join(missing)}, and does not say at which revision of"
            " brooq-sa it is. If it is the job table, upgrade the database: 'alembic upgrade brooq@head', or 'brooq-sa"
            " migrate upgrade'; if not, give the base another table_name= or schema=."
        )


def _schema(connection: Connection, table: Table) -> str | None:
    mapped = connection.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = mapped.get(table.schema, table.schema)
    return schema


def _quoted(name: str) -> str:
    # The dialect's own doubles percent signs, for drivers that format with them; this is a parameter.
    return '"' + name.replace('"', '""') + '"'
