"""Everything that a database knows about a table, in a form that compares."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Connection, Engine, text

Description = dict[str, Any]

POSTGRESQL = {
    "table": """
        SELECT relkind, relpersistence, reloptions, obj_description(oid, 'pg_class') AS comment
        FROM pg_class WHERE oid = to_regclass(:table)""",
    "columns": """
        SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull, attidentity, attgenerated, attstorage,
               pg_get_expr(adbin, adrelid) AS "default"
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = to_regclass(:table) AND attnum > 0 ORDER BY attnum""",
    "constraints": """
        SELECT conname, contype, convalidated, pg_get_constraintdef(oid) AS definition
        FROM pg_constraint WHERE conrelid = to_regclass(:table) ORDER BY conname""",
    "indexes": """
        SELECT relname, indisunique, indisprimary, indisvalid, pg_get_indexdef(indexrelid) AS definition,
               pg_get_expr(indpred, indrelid) AS predicate, reloptions
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = to_regclass(:table)
        ORDER BY relname""",
    "triggers": """
        SELECT pg_get_triggerdef(oid) AS definition FROM pg_trigger WHERE tgrelid = to_regclass(:table)
        ORDER BY tgname""",
}


def describe(engine: Engine, table: str = "job", schema: str | None = None) -> Description:
    """What the catalog says of a table, its columns, constraints, indexes and triggers; all empty without it."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            return _describe_sqlite(connection, table, schema)
        name = quote(table) if schema is None else f"{quote(schema)}.{quote(table)}"
        return {part: _rows(connection, query, table=name) for part, query in POSTGRESQL.items()}


def quote(name: str) -> str:
    # The dialect's own doubles percent signs, for drivers that format with them; these are parameters.
    return '"' + name.replace('"', '""') + '"'


def _describe_sqlite(connection: Connection, table: str, schema: str | None) -> Description:
    place = quote(schema or "main").replace(":", r"\:")  # not a parameter of text()
    made = _rows(connection, f"SELECT type, name, sql FROM {place}.sqlite_schema WHERE tbl_name = :table", table=table)
    indexes = [row["name"] for row in made if row["type"] == "index"]
    return {
        "made": sorted((row["type"], row["name"], _words(row["sql"] or "")) for row in made),
        "columns": _rows(connection, "SELECT * FROM pragma_table_xinfo(:table, :schema)", table=table, schema=schema),
        "indexes": {
            name: _rows(connection, "SELECT * FROM pragma_index_xinfo(:name, :schema)", name=name, schema=schema)
            for name in sorted(indexes)
        },
        "uniqueness": sorted(
            (row["name"], row["unique"], row["partial"])
            for row in _rows(connection, "SELECT * FROM pragma_index_list(:table, :schema)", table=table, schema=schema)
        ),
    }


def _rows(connection: Connection, query: str, **parameters: object) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(text(query), parameters).mappings()]


def _words(sql: str) -> list[str]:
    """A statement without the freedom that SQL leaves: white space, and quotes around names that need none."""
    bare = re.sub(r'"([a-z_]+)"', r"\1", sql)
    return re.findall(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|[^\w\s]""", bare)
