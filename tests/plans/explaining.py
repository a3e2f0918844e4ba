"""Statements as PostgreSQL plans and runs them, seen without changing a row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Connection, event

_PARAMETER = re.compile(r"%\((\w+)\)s|(%%)")


@dataclass(frozen=True)
class Plan:
    """One statement's plan, with what its run took.

    Attributes:
        sql: as it was sent.
        root: the top node, as EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) gives it.
        milliseconds: of planning and running it.
    """

    sql: str
    root: dict[str, Any]
    milliseconds: float = 0.0

    def nodes(self, *types: str) -> list[dict[str, Any]]:
        """Every node, or those of the types."""
        return [node for node in _walk(self.root) if not types or node["Node Type"] in types]

    @property
    def buffers(self) -> int:
        """How many pages were looked at, found in memory or not."""
        return int(self.root["Shared Hit Blocks"]) + int(self.root["Shared Read Blocks"])

    @property
    def locked(self) -> int:
        """How many rows were locked by SELECT ... FOR UPDATE and its kin, at the least.

        Before PostgreSQL 18, EXPLAIN rounds the rows of a loop to a whole number.
        """
        return sum(_least_rows(node) for node in self.nodes("LockRows"))

    @property
    def rows_read(self) -> int:
        """How many rows the scans gave or looked at in vain."""
        return sum(_rows_read(node) for node in self.nodes() if "Scan" in node["Node Type"] and "Relation Name" in node)

    def __str__(self) -> str:
        return f"{self.sql}\n" + "\n".join(_lines(self.root, 0))


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _walk(inner)


def _least_rows(node: dict[str, Any]) -> int:
    rows, loops = node["Actual Rows"], node["Actual Loops"]
    is_rounded = isinstance(rows, int) and loops > 1
    least: float = (rows - 0.5) * loops if is_rounded and rows else rows * loops
    return math.ceil(least) if is_rounded else round(least)


def _rows_read(node: dict[str, Any]) -> int:
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    rows: float = each * node["Actual Loops"]
    return round(rows)


def _lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    facts = [
        node.get("Subplan Name", ""),
        node["Node Type"],
        node.get("Index Name", node.get("Relation Name", "")),
        f"rows={node['Actual Rows']} loops={node['Actual Loops']}",
        f"buffers={node['Shared Hit Blocks'] + node['Shared Read Blocks']}",
        f"removed={node['Rows Removed by Filter']}" if "Rows Removed by Filter" in node else "",
        node.get("Index Cond", ""),
    ]
    yield "  " * depth + " ".join(str(fact) for fact in facts if fact)
    for inner in node.get("Plans", ()):
        yield from _lines(inner, depth + 1)


@contextmanager
def explained(connection: Connection) -> Iterator[list[Plan]]:
    """Gather the plan of each statement that is run on the connection inside the block, in order.

    Each is prepared, explained under the session's `plan_cache_mode`, and rolled back, twice over, before it is run for
    its answer.
    """
    plans: list[Plan] = []

    def explain(_connection: Any, cursor: Any, sql: str, parameters: Any, _context: Any, _many: bool) -> None:
        plans.append(_explain(cursor.connection, sql, parameters or {}))

    event.listen(connection, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(connection, "before_cursor_execute", explain)


def _explain(driver: psycopg.Connection[Any], sql: str, parameters: dict[str, Any]) -> Plan:
    numbered, values = _numbered(sql, parameters)
    with psycopg.ClientCursor(driver) as cursor:
        types = f"({', '.join(_types(driver, values))})" if values else ""
        cursor.execute(f"PREPARE explained{types} AS {numbered}".encode())
        given = f"({', '.join(['%s'] * len(values))})" if values else ""
        answers: list[Any] = []
        for _ in range(2):  # the first clears away what tests before it have rolled back, and leaves some of its own
            cursor.execute("SAVEPOINT explained")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained{given}".encode(), values)
            answers += cursor.fetchone() or []
            cursor.execute("ROLLBACK TO SAVEPOINT explained")
        cursor.execute("DEALLOCATE explained")
    plans = []
    for answer in answers:
        [described] = json.loads(answer) if isinstance(answer, str) else answer
        plans.append(Plan(sql, described["Plan"], described["Planning Time"] + described["Execution Time"]))
    return min(plans, key=lambda plan: plan.buffers)


def _types(driver: psycopg.Connection[Any], values: Sequence[Any]) -> list[str]:
    """The types that psycopg would declare the values as."""
    transformer = psycopg.adapt.Transformer(driver)
    transformer.dump_sequence(values, [psycopg.adapt.PyFormat.AUTO] * len(values))
    return [_type_name(driver, oid) for oid in transformer.types or ()]


def _type_name(driver: psycopg.Connection[Any], oid: int) -> str:
    info = driver.adapters.types.get(oid)  # of an array, that of its elements
    if info is None:
        return "unknown"
    return f"{info.regtype}[]" if oid == info.array_oid else info.regtype


def _numbered(sql: str, parameters: dict[str, Any]) -> tuple[str, Sequence[Any]]:
    """The statement with ``$1`` for its first parameter, and the parameters in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[2]:
            return "%"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    numbered = _PARAMETER.sub(number, sql)
    return numbered, [parameters[name] for name in names]
