"""Whether the tables are as they should be, may be used, and are planned for as they should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table

from .. import access, revision
from ..adoption import drift
from ..exc import SchemaError
from ..functions import row_security_active
from ..migrations.options import Target
from ..schema import REVISION
from ..statements import claim
from .finding import Finding, fault, note, warning
from .look import Look, listed

FEW_ROWS = 10_000
"""Below so many rows no plan is bad enough to tell."""

SMALL = 1 << 20
"""A table of fewer bytes is rightly read as a whole."""

FAR_OFF = 10
"""By so much statistics are wrong before it is told."""

UPGRADE = "Run `alembic upgrade brooq@head`, or `brooq-sa migrate upgrade` if you do not use Alembic."


def schema(look: Look) -> Iterator[Finding]:
    """Whether the tables are those of a revision that this version works with, unchanged."""
    if not _has(look, look.job):
        yield fault(
            f"There is no table {look.job.fullname}.",
            "Nothing can be enqueued or run.",
            f"{UPGRADE} If it lies elsewhere, say so: --schema, --table.",
        )
        return
    try:
        revision.demand(look.connection, look.job)
    except SchemaError as error:
        yield fault(str(error), "This version of brooq-sa may not work in it.", UPGRADE)
        return
    there = revision.found(look.connection, look.job)
    if there is not None and there != revision.number(REVISION):
        found, cure = revision.name(there), "Finish the deployment: upgrade the tables, or brooq-sa."
        yield note(f"It is at revision {found}, and this version brings {REVISION}; both work.", cure=cure)
        return
    for each in drift.compare(look.connection, Target(look.job.name, look.job.schema)):
        what = f"{each.what[0].upper()}{each.what[1:]} {each.problem}."
        if each.is_harmless:
            yield note(what, "It does no harm, and costs a little with each write.", each.cure)
        else:
            yield fault(what, "What holds jobs together, or keeps a statement fast, is not there.", each.cure)


def indexes(look: Look) -> Iterator[Finding]:
    """Whether each index is there, and valid."""
    wanted = {str(index.name) for index in look.job.indexes}
    for name in sorted(wanted - _valid_indexes(look)):
        yield fault(
            f"Index {name} is missing, or was never finished.",
            "Without it every claim, reaping or retention reads the whole table.",
            "`brooq-sa alembic check` has the statement that makes it; an unfinished one is dropped first.",
        )


def _valid_indexes(look: Look) -> set[str]:
    if not look.is_postgresql:
        found = sa.inspect(look.connection).get_indexes(look.job.name, schema=look.job.schema)
        return {str(index["name"]) for index in found}
    rows = look.rows(
        """
        SELECT relname AS name FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE indrelid = to_regclass(:place) AND indisvalid AND indisready""",
        place=look.place,
    )
    return {row["name"] for row in rows}


def grants(look: Look) -> Iterator[Finding]:
    """What this role may do, and whether row security keeps rows from it."""
    if look.connection.execute(sa.select(row_security_active(look.place))).scalar():
        yield warning(
            "Row security applies to this role in the job table.",
            "It sees and claims only the rows that the policies let through, without a word.",
            "Take the policies off the table, or let the workers' role bypass them.",
        )
    role, dialect = look.value("SELECT current_user"), look.connection.dialect
    lacking = _lacking(look, access.WORK)
    if _lacking(look, access.LOOK):
        yield warning(
            f"Role {role} may not look: it lacks {listed(_lacking(look, access.LOOK))}.",
            "What follows is only what can be seen without.",
            " ".join(access.grants(access.LOOK, look.job, dialect, role)),
        )
    elif lacking:
        yield note(
            f"Role {role} may look, and could not run a worker: it lacks {listed(lacking)}.",
            "That is as it should be, unless your workers use this role.",
            " ".join(access.grants(access.WORK, look.job, dialect, role)),
        )


def _lacking(look: Look, privileges: access.Privileges) -> list[str]:
    preparer = look.connection.dialect.identifier_preparer
    asked = "SELECT has_table_privilege(CAST(to_regclass(:place) AS oid), :privilege)"
    return [
        f"{privilege} on {table.name}"
        for table, needed in privileges.by_table(look.job).items()
        for privilege in needed
        if not look.value(asked, place=preparer.format_table(table), privilege=privilege)
    ]


def claim_plan(look: Look) -> Iterator[Finding]:
    """Whether the claim goes by the index on ready jobs, as PostgreSQL would plan it now. Nothing is run."""
    if look.value("SELECT pg_relation_size(CAST(to_regclass(:place) AS oid))", place=look.place) < SMALL:
        return
    nodes = list(_walk(_explained(look)))
    ready = f"{look.job.name}_ready_idx"
    if any(node.get("Index Name") == ready for node in nodes) and not any(
        node["Node Type"] == "Seq Scan" and node.get("Relation Name") == look.job.name for node in nodes
    ):
        return
    kinds = sorted({node["Node Type"] for node in nodes if node.get("Relation Name") == look.job.name})
    yield warning(
        f"A claim would not go by the index {ready}: its plan reads the table by {listed(kinds)}.",
        "It reads every row where it should read a handful, and gets slower as jobs pile up.",
        f"Run ANALYZE {look.place}; and see that the index is there and that nobody has switched index scans off"
        " (enable_indexscan, random_page_cost).",
        nodes=kinds,
    )


def _explained(look: Look) -> dict[str, Any]:
    compiled = claim.claim(look.job).compile(dialect=look.connection.dialect)  # type: ignore[attr-defined]
    want = json.dumps([claim.wanted("doctor", 10, None)])
    values: Any = compiled.construct_params({"want": want, "room": 10, "worker": "doctor", "lease": 60.0})
    if compiled.positional:
        values = tuple(values[name] for name in compiled.positiontup)
    answer = look.connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}", values).scalar()
    [described] = json.loads(answer) if isinstance(answer, str) else answer  # type: ignore[misc]
    plan: dict[str, Any] = described["Plan"]
    return plan


def _walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _walk(inner)


def statistics(look: Look) -> Iterator[Finding]:
    """Whether what the planner believes of the table is far from the truth."""
    row = look.row(
        """
        SELECT reltuples::float AS believed, n_live_tup AS rows, n_mod_since_analyze AS changed,
            coalesce(last_analyze, last_autoanalyze) IS NULL AS is_new
        FROM pg_class JOIN pg_stat_all_tables ON relid = pg_class.oid WHERE pg_class.oid = to_regclass(:place)""",
        place=look.place,
    )
    believed, rows = max(row["believed"], 0.0), row["rows"]
    why = "The queue's own statements are written to hold all the same; yours over the table may be planned badly."
    cure = f"Run ANALYZE {look.place};"
    if row["is_new"] and rows >= FEW_ROWS:
        yield warning(f"The table has never been analyzed, and has some {rows:,} rows.", why, cure, **row)
    elif max(believed, rows) >= FEW_ROWS and max(believed, rows) > FAR_OFF * min(believed, rows):
        what = f"The planner believes in {believed:,.0f} rows, where there are some {rows:,}."
        yield warning(what, why, cure, **row)


def _has(look: Look, table: Table) -> bool:
    return sa.inspect(look.connection).has_table(table.name, schema=table.schema)
