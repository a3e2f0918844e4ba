"""How the queue's tables in a database differ from what the branch makes, line by line.

What they should be is not written down a second time: the revisions themselves are run once more, into temporary tables
on PostgreSQL and into a database in memory for SQLite, and the two are compared as the catalog describes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from brooq_sa import migrations
from brooq_sa.migrations import steps
from brooq_sa.migrations.groundwork import TEMPORARY, quote
from brooq_sa.migrations.options import Target

from .ours import names
from .project import our_revisions

Parts = dict[tuple[str, str], str]
"""By kind and name, what the catalog says of each part of a table."""


@dataclass(frozen=True)
class Drift:
    """One difference.

    Attributes:
        what: the part, such as ``index job_ready_idx``.
        problem: what is wrong with it.
        cure: what to do.
        is_harmless: nothing of ours minds it: an index or a column more.
    """

    what: str
    problem: str
    cure: str
    is_harmless: bool = False


def compare(connection: Connection, target: Target) -> list[Drift]:
    """Each difference between the tables and what the newest revision makes; none if a table is missing altogether."""
    if connection.dialect.name == "sqlite":
        return _compare_sqlite(connection, target)
    return _compare_postgresql(connection, target)


def _tables(target: Target) -> tuple[str, ...]:
    return tuple(name for name in names(target) if name != migrations.version_table(target.table))


# PostgreSQL.

_CATALOG = {
    "table": """
        SELECT 'storage', coalesce((SELECT string_agg(each, ', ' ORDER BY each) FROM unnest(reloptions) AS each), '')
        FROM pg_class WHERE oid = :table""",
    "column": """
        SELECT attname, concat_ws(' ', format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END,
            'DEFAULT ' || pg_get_expr(adbin, adrelid))
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = :table AND attnum > 0 AND NOT attisdropped""",
    "constraint": """
        SELECT conname, concat_ws(' ', pg_get_constraintdef(oid), CASE WHEN NOT convalidated THEN 'NOT VALID' END)
        FROM pg_constraint WHERE conrelid = :table AND contype <> 'n'""",
    "index": """
        SELECT relname, concat_ws(' ', CASE WHEN indisunique THEN 'UNIQUE' END,
            substring(pg_get_indexdef(indexrelid) FROM ' USING .*'),
            CASE WHEN NOT (indisvalid AND indisready) THEN 'INVALID' END)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = :table AND NOT indisprimary""",
    "trigger": """
        SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = :table AND NOT tgisinternal""",
    "rule": "SELECT rulename, pg_get_ruledef(oid) FROM pg_rewrite WHERE ev_class = :table",
}
_KIND = "SELECT relkind::text || relpersistence::text FROM pg_class WHERE oid = :table"


def _compare_postgresql(connection: Connection, target: Target) -> list[Drift]:
    found = {}
    for name in _tables(target):
        where = _regclass(connection, target.schema, name)
        found[name] = None if where is None else _parts(connection, where)
    expected = _expected(connection, target)
    drifts = []
    for name, parts in found.items():
        place = quote(name) if target.schema is None else f"{quote(target.schema)}.{quote(name)}"
        if parts is None:
            drifts.append(Drift(f"table {name}", "is missing", "Restore it from a backup, or downgrade and upgrade."))
        else:
            drifts += _differences(name, place, parts, expected[name])
    return drifts


def _regclass(connection: Connection, schema: str | None, name: str) -> int | None:
    written = quote(name) if schema is None else f"{quote(schema)}.{quote(name)}"
    found = connection.execute(sa.text("SELECT CAST(to_regclass(:name) AS oid)"), {"name": written}).scalar()
    return None if found is None else int(found)


def _parts(connection: Connection, table: int) -> Parts:
    parts = {
        (kind, name): definition.strip()
        for kind, query in _CATALOG.items()
        for name, definition in connection.execute(sa.text(query), {"table": table})
    }
    kind = str(connection.execute(sa.text(_KIND), {"table": table}).scalar())
    # A temporary table stands for a permanent one here.
    parts["table", "kind"] = {"rp": "an ordinary table", "rt": "an ordinary table", "ru": "an UNLOGGED table"}.get(
        kind, f"a relation of another kind ({kind})"
    )
    return parts


def _expected(connection: Connection, target: Target) -> dict[str, Parts]:
    """What the revisions make, in temporary tables that are gone again when this returns."""
    scratch = Target(target.table, TEMPORARY)
    savepoint = connection.begin_nested()
    try:
        _apply_all(connection, scratch)
        made = {name: _regclass(connection, TEMPORARY, name) for name in _tables(target)}
        return {name: _parts(connection, table) for name, table in made.items() if table is not None}
    finally:
        savepoint.rollback()


def _apply_all(connection: Connection, target: Target) -> None:
    context = MigrationContext.configure(connection)
    for revision in our_revisions():
        steps.module_of(revision).apply(context, target)


_CURES = {
    "storage": "ALTER TABLE {place} SET ({expected});",
    "kind": "ALTER TABLE {place} SET LOGGED;",
    "column": "ALTER TABLE {place} ADD COLUMN {name} {expected};",
    "constraint": "ALTER TABLE {place} ADD CONSTRAINT {name} {expected};",
    "index": "CREATE {unique}INDEX CONCURRENTLY {name} ON {place} {expected};",
}


def _differences(table: str, place: str, found: Parts, expected: Parts) -> Iterator[Drift]:
    for (kind, name), definition in expected.items():
        actual = found.get((kind, name))
        what = f"{name} of table {table}" if kind == "table" else f"{kind} {name} of table {table}"
        if actual is None:
            yield Drift(what, f"is missing: {definition}", _made_again(kind, name, place, definition))
        elif actual != definition:
            yield Drift(what, f"is {actual or 'nothing'!r}, not {definition!r}", _cure(kind, name, place, definition))
    for (kind, name), definition in found.items():
        if (kind, name) not in expected:
            what = f"{kind} {name} of table {table}"
            yield Drift(
                what, f"is none of brooq-sa's: {definition}", _gone(kind, name, place), _is_harmless(kind, definition)
            )


def _made_again(kind: str, name: str, place: str, definition: str) -> str:
    unique = "UNIQUE " if definition.startswith("UNIQUE") else ""
    expected = definition.removeprefix("UNIQUE").strip()
    pattern = _CURES.get(kind)
    return f"Run: {pattern.format(place=place, name=quote(name), unique=unique, expected=expected)}" if pattern else ""


def _cure(kind: str, name: str, place: str, definition: str) -> str:
    if kind == "table":
        return _made_again(name, name, place, definition)
    if kind == "column":
        return f"Bring it back to {definition!r} with ALTER TABLE {place} ALTER COLUMN {quote(name)} ..."
    if kind == "index":
        schema = place.rpartition(".")[0]
        full = f"{schema}.{quote(name)}" if schema else quote(name)
        return f"Run: DROP INDEX CONCURRENTLY {full}; " + _made_again(kind, name, place, definition).removeprefix(
            "Run: "
        )
    drop = f"ALTER TABLE {place} DROP CONSTRAINT {quote(name)}; "
    return f"Run: {drop}" + _made_again(kind, name, place, definition).removeprefix("Run: ")


def _gone(kind: str, name: str, place: str) -> str:
    if kind in ("constraint", "column"):
        return f"If you do not need it: ALTER TABLE {place} DROP {kind.upper()} {quote(name)};"
    if kind in ("trigger", "rule"):
        return f"If you do not need it: DROP {kind.upper()} {quote(name)} ON {place};"
    return f"If you do not need it: DROP {kind.upper()} {quote(name)};"


def _is_harmless(kind: str, definition: str) -> bool:
    if kind == "column":
        return "NOT NULL" not in definition or "DEFAULT" in definition
    return kind == "index" and not definition.startswith("UNIQUE")


# SQLite.


def _compare_sqlite(connection: Connection, target: Target) -> list[Drift]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as scratch:
        _apply_all(scratch, Target(target.table))
        expected = {name: _sqlite_parts(scratch, name, None) for name in _tables(target)}
    engine.dispose()
    drifts = []
    for name in _tables(target):
        found = _sqlite_parts(connection, name, target.schema)
        if not found:
            drifts.append(Drift(f"table {name}", "is missing", "Restore it from a backup, or downgrade and upgrade."))
        else:
            drifts += _sqlite_differences(name, found, expected[name])
    return drifts


def _sqlite_parts(connection: Connection, table: str, schema: str | None) -> Parts:
    place = quote(schema or "main").replace(":", r"\:")  # not a parameter of text()
    made = sa.text(f"SELECT type, name, sql FROM {place}.sqlite_schema WHERE tbl_name = :table AND sql IS NOT NULL")
    return {(kind, name): _plain(sql, schema) for kind, name, sql in connection.execute(made, {"table": table})}


def _plain(sql: str, schema: str | None) -> str:
    """A statement without the freedom that SQL leaves: white space, and quotes around names that need none."""
    if schema is not None:
        sql = sql.replace(f"{quote(schema)}.", "")
    bare = re.sub(r'"([a-z_][a-z0-9_]*)"', r"\1", sql)
    return " ".join(re.findall(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|[^\w\s]""", bare))


def _sqlite_differences(table: str, found: Parts, expected: Parts) -> Iterator[Drift]:
    for (kind, name), definition in expected.items():
        what = f"{kind} {name}" if kind == "table" else f"{kind} {name} of table {table}"
        actual = found.get((kind, name))
        if actual is None:
            yield Drift(what, "is missing", f"Run: {definition}")
        elif actual != definition:
            yield Drift(what, f"is {actual!r}, not {definition!r}", "Make it again as the migration does.")
    for kind, name in found.keys() - expected.keys():
        yield Drift(
            f"{kind} {name} of table {table}",
            "is none of brooq-sa's",
            f"If you do not need it: DROP {kind.upper()} {quote(name)};",
            kind == "index",
        )
