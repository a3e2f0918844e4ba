"""What ``brooq-sa alembic check`` finds: everything that would fail without a word, and what to do about each.

The database is reached through the project's own env.py, as ``alembic current`` reaches it, and nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, Table

from brooq_sa import migrations
from brooq_sa.migrations import groundwork, options

from . import drift, plugin
from .project import BRANCH, ENTRY, Project, ProjectError, our_revisions

_STEP = re.compile(r"""\bupgrade_step\([^)]*["'](\w+)["']""")


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        about: what, in a word or two: ``branch``, ``database``, ``index job_ready_idx of table job``.
        problem: what is wrong.
        cure: what to do.
        is_note: it may well be meant so, and fails no check.
    """

    about: str
    problem: str
    cure: str
    is_note: bool = False

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def check(project: Project, table: Table | None = None) -> list[Finding]:
    """All that is wrong, the revisions first, then the database.

    Args:
        table: the job table that the application's code uses, if that is known.

    Raises:
        ProjectError: the project's revisions cannot be read.
        alembic.util.CommandError, sqlalchemy.exc.SQLAlchemyError: its env.py does not reach the database.
    """
    found = list(_about_revisions(project))
    if not any(finding.about == "branch" for finding in found):
        found += _about_databases(project, table)
    return found


# The revisions.


def _about_revisions(project: Project) -> Iterator[Finding]:
    steps = steps_of(project)
    if not project.sees_branch and not steps:
        yield Finding("branch", *_why_unseen(project))
        return
    for script in project.strays:
        yield Finding(
            "revisions",
            f"{script.revision} lies in brooq-sa's own folder, which the next installation writes anew: {script.path}",
            "Move the file into your own folder of revisions.",
        )
    if project.sees_branch and steps:
        yield Finding(
            "revisions",
            f"The branch {BRANCH!r} is listed, and {', '.join(steps.values())} of yours takes its steps as well.",
            f"Keep one of the two: take {ENTRY} out of version_locations, or the steps out of your revisions.",
        )
    elif steps and (missing := [each for each in our_revisions() if each not in steps]):
        yield Finding(
            "revisions",
            f"Your revisions take the steps of {', '.join(steps)}, and none takes {', '.join(missing)}.",
            f'Add one whose upgrade() says steps.upgrade_step(op, "{missing[0]}").',
        )
    if project.sees_branch and (ambiguous := _ambiguous(project)):
        yield Finding(
            "revisions",
            f"brooq@head is ambiguous: {ambiguous}. A merge has made your line a part of the branch, and the newest"
            " revision of brooq-sa is not merged yet.",
            f"Merge again, your own head first: alembic merge -m '...' {_their_head(project)} {our_revisions()[-1]};"
            " or run `alembic upgrade heads`.",
        )


def steps_of(project: Project) -> dict[str, str]:
    """Our revisions that theirs take as steps, and which of theirs does."""
    return {
        step: script.revision
        for script in reversed(project.their_revisions)
        for step in _STEP.findall(Path(script.path).read_text(encoding="utf-8", errors="replace"))
    }


def _why_unseen(project: Project) -> tuple[str, str]:
    locations = project.locations
    shown = ", ".join(locations)
    advise = "Run `brooq-sa alembic init`, which says what it would change first."
    if ENTRY not in locations and {"brooq_sa", "migrations/versions"} <= set(locations):
        why = f"path_separator splits {ENTRY} at its colon"
        return (
            f"Alembic does not see the branch {BRANCH!r}, and says nothing of it: {why}. It looks into {shown}.",
            f"{advise} By hand: path_separator = newline, and each entry of version_locations in a line of its own.",
        )
    return f"Alembic does not see the branch {BRANCH!r}. It looks into {shown}.", advise


def _ambiguous(project: Project) -> str:
    heads = [script.revision for script in project.revisions if script.is_head and BRANCH in script.branch_labels]
    return ", ".join(heads) if len(heads) > 1 else ""


def _their_head(project: Project) -> str:
    return next((script.revision for script in project.their_revisions if script.is_head), "YOUR_HEAD")


def upgrade_command(project: Project) -> str:
    """What brings the branch up in this project."""
    if len(project.scripts.get_heads()) == 1 and project.their_revisions:
        return "alembic upgrade head"
    return "alembic upgrade heads" if _ambiguous(project) or not project.sees_branch else "alembic upgrade brooq@head"


# The databases.


def _about_databases(project: Project, table: Table | None) -> list[Finding]:
    found: list[Finding] = []
    seen = 0

    def look(heads: Any, context: MigrationContext) -> list[Any]:
        nonlocal seen
        if _is_meant(project, context):
            seen += 1
            found.extend(_Look(project, context, heads).findings(table))
        return []

    with EnvironmentContext(project.config, project.scripts, fn=look, dont_mutate=True):
        project.scripts.run_env()
    if not seen:
        wanted = project.option("brooq_database")
        found.append(
            Finding(
                "database",
                f"brooq_database is {wanted!r}, and env.py migrates none of that name."
                if wanted
                else "env.py ran no migrations.",
                "Name a database of this project." if wanted else "See to it that env.py calls run_migrations().",
            )
        )
    return found


def _is_meant(project: Project, context: MigrationContext) -> bool:
    """Whether this is the database for the job table, in an environment that has several.

    What env.py calls it is told to revisions alone. The template ``multidb`` has it in the token too; in other
    environments the URL of its section tells.
    """
    wanted = project.option("brooq_database")
    token = str(context.opts.get("upgrade_token") or "")
    if wanted is None or token == f"{wanted}_upgrades":
        return True
    url = project.config.file_config.get(wanted, "sqlalchemy.url", fallback=None)
    if url is None or context.connection is None:
        return False
    return bool(sa.make_url(url).render_as_string() == context.connection.engine.url.render_as_string())


class _Look:
    """One look at one database."""

    def __init__(self, project: Project, context: MigrationContext, heads: Sequence[str]) -> None:
        if context.connection is None:
            raise ProjectError("env.py gave no connection to context.configure().")
        self._project = project
        self._context = context
        self._connection: Connection = context.connection
        self._heads = tuple(heads)
        self._target = options.target(context)

    def findings(self, table: Table | None) -> Iterator[Finding]:
        yield from self._about_the_plugin()
        yield from self._about_names(table)
        try:
            applied = self._applied()
        except CommandError:
            yield self._unknown_revision()
            return
        yield from self._about_the_revision(applied)

    def _about_the_plugin(self) -> Iterator[Finding]:
        wanted = self._context.opts.get("autogenerate_plugins")
        if not _is_loaded():
            yield Finding(
                "autogenerate",
                "Alembic has not loaded the plugin of brooq-sa, and would propose to drop the queue's tables.",
                "Install brooq-sa with its metadata (pip install), or filter its tables by include_name in env.py.",
            )
        elif wanted is not None and not _covers(wanted):
            yield Finding(
                "autogenerate",
                f"autogenerate_plugins in env.py is {list(wanted)}, which leaves the plugin of brooq-sa out: Alembic"
                " would propose to drop the queue's tables.",
                f"Add {plugin.NAME!r} to it.",
            )

    def _about_names(self, table: Table | None) -> Iterator[Finding]:
        used = [("The application's base", table)] if table is not None else []
        metadata = self._context.opts.get("target_metadata")
        for each in metadata if isinstance(metadata, list | tuple) else [metadata]:
            tables = getattr(each, "tables", {}).values()
            used += [("target_metadata", one) for one in tables if "brooq" in one.info and one is not table]
        for whose, declared in used:
            schema = declared.schema or self._default_schema
            if (schema, declared.name) != (self._target.schema or self._default_schema, self._target.table):
                made = str(self._target)
                yield Finding(
                    "names",
                    f"{whose} has its jobs in table {declared.fullname!r}, and the migrations make {made!r}.",
                    f"Say the same in both: {_options_for(declared)} in alembic.ini or [tool.alembic], or the base's"
                    " table_name= and schema=.",
                )

    @property
    def _default_schema(self) -> str | None:
        return self._connection.dialect.default_schema_name

    def _applied(self) -> list[str]:
        """Our revisions that this database has, as its version table says."""
        behind = self._project.behind(self._heads)
        steps = steps_of(self._project)
        return [each for each in our_revisions() if each in behind or steps.get(each) in behind]

    def _unknown_revision(self) -> Finding:
        unknown = [head for head in self._heads if not self._is_known(head)]
        ours = [head for head in unknown if head.startswith("brooq_")]
        if ours:
            return Finding(
                "database",
                f"It is at revision {ours[0]}, which this version of brooq-sa does not have: its newest is"
                f" {our_revisions()[-1]}.",
                "Upgrade brooq-sa here, or run this where the newer version is installed.",
            )
        return Finding(
            "database",
            f"{self._context.version_table} has revision {unknown[0]}, which is none of this project's.",
            "Is this the right database, and the code at least as new as what migrated it?",
        )

    def _is_known(self, revision: str) -> bool:
        try:
            self._project.scripts.get_revisions(revision)
        except CommandError:
            return False
        return True

    def _about_the_revision(self, applied: list[str]) -> Iterator[Finding]:
        newest, found = our_revisions()[-1], self._table_columns()
        if not applied:
            yield from self._about_a_table_unnoted(found)
        elif not found:
            yield Finding(
                "database",
                f"{self._context.version_table} says {applied[-1]}, but there is no table {str(self._target)!r}.",
                "Was it made under another name? Then say so: brooq_table, brooq_schema in alembic.ini or"
                " [tool.alembic]. If it was dropped by hand: `alembic stamp brooq@base`, then upgrade.",
            )
        elif newest not in applied:
            yield Finding(
                "database",
                f"It is at revision {applied[-1]}, and this version of brooq-sa needs {newest}.",
                f"Run: {upgrade_command(self._project)}",
            )
        else:
            yield from self._about_drift()
        if applied and self._has(migrations.version_table(self._target.table)):
            yield Finding(
                "database",
                f"Table {migrations.version_table(self._target.table)!r} notes the revision a second time: `brooq-sa"
                " migrate` has run here, and does not know what Alembic does from now on.",
                f"DROP TABLE {groundwork.quote(migrations.version_table(self._target.table))};",
            )

    def _about_a_table_unnoted(self, found: set[str]) -> Iterator[Finding]:
        place, command = str(self._target), upgrade_command(self._project)
        if not found:
            yield Finding("database", f"There is no table {place!r} yet.", f"Run: {command}")
        elif not found >= groundwork.TELLING_COLUMNS:
            yield Finding(
                "database",
                f"Table {place!r} is there, and is not brooq-sa's.",
                "Give the job table another name: brooq_table = ... in alembic.ini or [tool.alembic], and table_name="
                " of the base.",
            )
        else:
            yield Finding(
                "database",
                f"Table {place!r} is there, and {self._context.version_table} does not know its revision: something"
                " else made it, such as `brooq-sa migrate`.",
                f"If it is at {our_revisions()[-1]} (`brooq-sa migrate current`), run `alembic stamp brooq@head`.",
            )

    def _about_drift(self) -> Iterator[Finding]:
        for each in drift.compare(self._connection, self._target):
            yield Finding(each.what, each.problem, each.cure, each.is_harmless)

    def _table_columns(self) -> set[str]:
        if not self._has(self._target.table):
            return set()
        columns = sa.inspect(self._connection).get_columns(self._target.table, schema=self._target.schema)
        return {column["name"] for column in columns}

    def _has(self, table: str) -> bool:
        return bool(sa.inspect(self._connection).has_table(table, schema=self._target.schema))


def _options_for(table: Table) -> str:
    schema = f", brooq_schema = {table.schema}" if table.schema else ""
    return f"brooq_table = {table.name}{schema}"


def _is_loaded() -> bool:
    from alembic.runtime import plugins

    return plugin.NAME in plugins._all_plugins


def _covers(wanted: Sequence[str]) -> bool:
    taken = any(each in (plugin.NAME, "alembic.autogenerate.*", "alembic.*") for each in wanted)
    return taken and f"~{plugin.NAME}" not in wanted
