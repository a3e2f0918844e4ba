"""Which tables of a database are the queue's, as autogenerate sees them.

A name is not enough. In an environment that only happens to have brooq-sa installed, a table ``job`` may be anybody's,
and to overlook what changes in it would be worse than to propose too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Table

from brooq_sa.migrations import groundwork, options, version_table
from brooq_sa.migrations.options import Target
from brooq_sa.schema import COMPANIONS

Key = tuple[str | None, str]
"""A table by schema and name; the connection's default schema is None."""


def names(target: Target) -> tuple[str, ...]:
    """The tables that belong to a job table, itself the first: those beside it, and our own version table."""
    return (target.table, *(f"{target.table}_{purpose}" for purpose in COMPANIONS), version_table(target.table))


def leave_alone(context: Any, upgrade_ops: Any) -> None:
    """Take what concerns the queue's tables out of what autogenerate wants changed.

    Args:
        context: an `alembic.autogenerate.api.AutogenContext`.
        upgrade_ops: an `alembic.operations.ops.UpgradeOps`.
    """
    ours = _Ours(context)
    kept = [op for op in upgrade_ops.ops if not ours.has(op, upgrade_ops.ops)]
    upgrade_ops.ops[:] = kept


class _Ours:
    def __init__(self, context: Any) -> None:
        self._inspector = context.inspector
        self._default_schema = context.dialect.default_schema_name
        self._declared = {self._key(table.schema, table.name): table for table in context.sorted_tables}
        target = options.target(context.migration_context)
        self._configured = self._key(target.schema, target.table)
        self._decided: dict[Key, bool] = {}

    def has(self, op: Any, others: Iterable[Any]) -> bool:
        """Whether the operation is about a table of ours. Those without a table are not."""
        name = getattr(op, "table_name", None)
        if name is None:
            return False
        schema, name = self._key(getattr(op, "schema", None), name)
        declared = self._declared.get((schema, name))
        if declared is not None and _is_marked(declared):
            return True
        return any(
            name in names(Target(job)) and self._is_job_table((schema, job)) for job in self._possible(schema, others)
        )

    def _possible(self, schema: str | None, others: Iterable[Any]) -> Iterator[str]:
        """Names that a job table in this schema could have: as configured, or as a version table of ours says."""
        if self._configured[0] == schema:
            yield self._configured[1]
        end = version_table("")
        for op in others:
            found = str(getattr(op, "table_name", None) or "")
            job = found.removesuffix(end)
            if found != job and _fits(job) and self._key(getattr(op, "schema", None), found)[0] == schema:
                yield job

    def _is_job_table(self, key: Key) -> bool:
        if key not in self._decided:
            self._decided[key] = self._columns(key) >= groundwork.TELLING_COLUMNS
        return self._decided[key]

    def _columns(self, key: Key) -> set[str]:
        """As the database has them, or, of a table that it has not, as the MetaData does."""
        schema, name = key
        if self._inspector.has_table(name, schema=schema):
            return {column["name"] for column in self._inspector.get_columns(name, schema=schema)}
        return set(self._declared[key].c.keys()) if key in self._declared else set()

    def _key(self, schema: str | None, name: str) -> Key:
        return (None if schema == self._default_schema else schema, name)


def _is_marked(table: Table) -> bool:
    """Whether `brooq_sa.schema` made it."""
    return "brooq" in table.info or "brooq_beside" in table.info


def _fits(name: str) -> bool:
    return 0 < len(name.encode()) <= options.LONGEST_TABLE
