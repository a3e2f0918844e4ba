"""The SQL that PostgreSQL and SQLite spell differently, as Core elements compiled for each.

With these, every statement of the queue is one Core construct for both databases. Time is the database's own: `now` is
the start of the running statement on both, so that neither a host's clock nor the age of the caller's transaction
decides whether a job is due.

SQLite keeps instants as text of one shape, ``2026-01-31 09:30:00.000000`` in UTC, because only one shape compares as
text in the order of time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, DateTime, Float, Integer, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement, literal_column
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import JSON, Boolean, TypeDecorator, TypeEngine

SQLITE_INSTANT = "%Y-%m-%d %H:%M:%f000"
"""`strftime` pattern of the one text shape; ``%f`` gives milliseconds, so three zeros make microseconds."""


def is_sqlite(dialect: Dialect) -> bool:
    return dialect.name == "sqlite"


class Instant(TypeDecorator[datetime]):
    """An aware datetime: ``timestamptz`` on PostgreSQL, UTC text of one shape on SQLite. Always UTC when read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if is_sqlite(dialect) else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.utcoffset() is None:
            raise ValueError(f"{value!r} is naive: give a datetime with a tzinfo, such as datetime.now(timezone.utc)")
        value = value.astimezone(UTC)
        return value.strftime("%Y-%m-%d %H:%M:%S.%f") if is_sqlite(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - its signature
        if value is None:
            return None
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


class Payload(TypeDecorator[Any]):
    """A JSON value: ``jsonb`` on PostgreSQL; text on SQLite, where a column declared JSON would turn "1" into 1."""

    impl = JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if is_sqlite(dialect) else JSONB())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return json.dumps(value, allow_nan=False) if is_sqlite(dialect) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return json.loads(value) if is_sqlite(dialect) and value is not None else value


class IdArray(TypeDecorator[Sequence[uuid.UUID]]):
    """Many ids as one parameter, for `one_of`: ``uuid[]`` on PostgreSQL, a JSON list on SQLite.

    Both go as text. psycopg would make text of a list too, but id by id and in Python, at four times the cost.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if is_sqlite(dialect) else ARRAY(Uuid()))

    def bind_processor(self, dialect: Dialect) -> Any:
        return _json_list if is_sqlite(dialect) else _array_text


def _json_list(ids: Iterable[uuid.UUID] | None) -> str:
    return json.dumps([each.hex for each in ids or ()])


def _array_text(ids: Iterable[uuid.UUID] | None) -> str:
    return f"{{{','.join([each.hex for each in ids or ()])}}}"


class ById(TypeDecorator[Mapping[uuid.UUID, Mapping[str, Any]]]):
    """An object for each of many ids as one parameter, read with `entry`."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if is_sqlite(dialect) else JSONB())

    def process_bind_param(self, value: Mapping[uuid.UUID, Mapping[str, Any]] | None, dialect: Dialect) -> Any:
        entries = value or {}
        if is_sqlite(dialect):
            return json.dumps({key.hex: each for key, each in entries.items()})
        return {str(key): each for key, each in entries.items()}


class now(FunctionElement[datetime]):
    """The database's clock at the start of the running statement."""

    type = Instant()
    inherit_cache = True


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return "statement_timestamp()"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('{SQLITE_INSTANT}', 'now')"


class now_plus(FunctionElement[datetime]):
    """The database's clock plus a number of seconds (a float; may be negative)."""

    type = Instant()
    inherit_cache = True


@compiles(now_plus)
def _now_plus(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(now_plus, "sqlite")
def _now_plus_sqlite(element: now_plus, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('{SQLITE_INSTANT}', 'now', printf('%+.6f seconds', {compiler.process(element.clauses, **kw)}))"


class seconds_since(FunctionElement[float]):
    """How many seconds ago an instant was, by the database's clock; negative if it is still to come."""

    type = Float()
    inherit_cache = True


@compiles(seconds_since)
def _seconds_since(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = compiler.process(element.clauses, **kw)
    return f"date_part('epoch', statement_timestamp() - {instant})"  # not extract(), which counts in numerics


@compiles(seconds_since, "sqlite")
def _seconds_since_sqlite(element: seconds_since, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday('now') - julianday({compiler.process(element.clauses, **kw)})) * 86400.0)"


class microseconds(FunctionElement[int]):
    """An instant in microseconds since 1970; on SQLite, where nobody asks for it, NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(microseconds)
def _microseconds(element: microseconds, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST(round(date_part('epoch', {compiler.process(element.clauses, **kw)}) * 1000000) AS BIGINT)"


@compiles(microseconds, "sqlite")
def _microseconds_sqlite(element: microseconds, compiler: SQLCompiler, **kw: Any) -> str:
    return "NULL"


class _Condition(FunctionElement[bool]):
    """A condition that stands as it is in WHERE.

    A dialect without a boolean type would have ``= 1`` put behind it, which hides the column's index.
    """

    type = Boolean()
    inherit_cache = True

    def self_group(self, against: Any = None) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        return self


class one_of(_Condition):
    """Whether a column is among the ids of an `IdArray` parameter; found through the column's index on both."""

    inherit_cache = True


@compiles(one_of)
def _one_of(element: one_of, compiler: SQLCompiler, **kw: Any) -> str:
    column, ids = element.clauses
    return f"{compiler.process(column, **kw)} = ANY ({compiler.process(ids, **kw)})"


@compiles(one_of, "sqlite")
def _one_of_sqlite(element: one_of, compiler: SQLCompiler, **kw: Any) -> str:
    column, ids = element.clauses
    return f"{compiler.process(column, **kw)} IN (SELECT value FROM json_each({compiler.process(ids, **kw)}))"


class picked(_Condition):
    """Whether an id is among those of a locking sub-select, which is evaluated exactly once.

    PostgreSQL runs ``ARRAY(SELECT ...)`` as an InitPlan; ``IN (SELECT ... LIMIT n FOR UPDATE)`` may be run again for
    each outer row, and then takes more than n.
    """

    inherit_cache = True


@compiles(picked)
def _picked(element: picked, compiler: SQLCompiler, **kw: Any) -> str:
    column, chosen = element.clauses
    return f"{compiler.process(column, **kw)} = ANY (ARRAY{compiler.process(chosen, **kw)})"


@compiles(picked, "sqlite")
def _picked_sqlite(element: picked, compiler: SQLCompiler, **kw: Any) -> str:
    column, chosen = element.clauses
    return f"{compiler.process(column, **kw)} IN {compiler.process(chosen, **kw)}"


class _Entry(FunctionElement[str]):
    type = Text()
    inherit_cache = True


def entry(entries: ColumnElement[Any], key: ColumnElement[Any], field: str) -> ColumnElement[str]:
    """Field `field` of the object that a `ById` parameter holds for `key`, as text; NULL if there is none."""
    return _Entry(entries, key, literal_column(f"'{field}'"))


@compiles(_Entry)
def _entry(element: _Entry, compiler: SQLCompiler, **kw: Any) -> str:
    entries, key, field = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({entries} -> CAST({key} AS TEXT) ->> {field})"


@compiles(_Entry, "sqlite")
def _entry_sqlite(element: _Entry, compiler: SQLCompiler, **kw: Any) -> str:
    entries, key, field = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"""json_extract({entries}, '$."' || {key} || '".' || {field})"""


class ceiling_for(FunctionElement[int]):
    """The number that a JSON object parameter holds for a key, which may be any text; NULL if there is none."""

    type = Integer()
    inherit_cache = True


@compiles(ceiling_for)
def _ceiling_for(element: ceiling_for, compiler: SQLCompiler, **kw: Any) -> str:
    ceilings, key = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CAST({ceilings} ->> {key} AS INTEGER)"


@compiles(ceiling_for, "sqlite")
def _ceiling_for_sqlite(element: ceiling_for, compiler: SQLCompiler, **kw: Any) -> str:
    # Not by json_extract, for which an odd key would be a malformed path.
    ceilings, key = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"(SELECT value FROM json_each({ceilings}) WHERE json_each.key = {key})"


class json_parsed(FunctionElement[Any]):
    """JSON text as the value of a `Payload` column, without a round trip through Python objects."""

    type = Payload()
    inherit_cache = True


@compiles(json_parsed)
def _json_parsed(element: json_parsed, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS JSONB)"


@compiles(json_parsed, "sqlite")
def _json_parsed_sqlite(element: json_parsed, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


class json_text(FunctionElement[str]):
    """A `Payload` column as JSON text, without a round trip through Python objects."""

    type = Text()
    inherit_cache = True


@compiles(json_text)
def _json_text(element: json_text, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS TEXT)"


@compiles(json_text, "sqlite")
def _json_text_sqlite(element: json_text, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


class new_id(FunctionElement[uuid.UUID]):
    """A random id, for rows inserted by hand; an enqueue brings its own, ordered by time."""

    type = Uuid()
    inherit_cache = True


@compiles(new_id)
def _new_id(element: new_id, compiler: SQLCompiler, **kw: Any) -> str:
    return "gen_random_uuid()"


@compiles(new_id, "sqlite")
def _new_id_sqlite(element: new_id, compiler: SQLCompiler, **kw: Any) -> str:
    return "lower(hex(randomblob(16)))"


class row_security_active(FunctionElement[bool]):
    """Whether row security applies to the current role in a table, named as in SQL; NULL if there is none."""

    type = Boolean()
    inherit_cache = True


@compiles(row_security_active)
def _row_security_active(element: row_security_active, compiler: SQLCompiler, **kw: Any) -> str:
    return f"row_security_active(CAST(to_regclass({compiler.process(element.clauses, **kw)}) AS OID))"
