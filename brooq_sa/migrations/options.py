"""Where the job table lies: the options that every revision of the branch reads.

======== ================== ============================ =========================================
option   in Python          on Alembic's command line    in alembic.ini or ``[tool.alembic]``
======== ================== ============================ =========================================
table    ``brooq.table``    ``-x brooq_table=NAME``      ``brooq_table = NAME``
schema   ``brooq.schema``   ``-x brooq_schema=NAME``     ``brooq_schema = NAME``
database ``brooq.database`` ``-x brooq_database=NAME``   ``brooq_database = NAME``
======== ================== ============================ =========================================

The last one is for environments that migrate several databases, as Alembic's template ``multidb`` does: the name, there
``engine1`` or ``engine2``, of the one that gets the job table.

"In Python" is a key of `alembic.config.Config.attributes`. The left column wins over the middle one, that over the
right one, and an empty value counts as none. The file is the safe place: what stands there holds for every command,
whoever runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError

DEFAULT_TABLE = "job"

NAMES = ("table", "schema", "database")

# PostgreSQL cuts names after 63 bytes. The longest one made from a table's is that of the version table's primary key,
# "<table>_brooq_version_pkc".
LONGEST_NAME = 63
LONGEST_TABLE = LONGEST_NAME - len("_brooq_version_pkc")


class MigrationError(CommandError):
    """A migration that cannot run as asked. Alembic's command prints its text without a traceback."""


@dataclass(frozen=True)
class Target:
    """Where a revision does its work.

    Attributes:
        table: the job table's name; its indexes and constraints take theirs from it.
        schema: where the table lies (on SQLite: an attached database); None is the connection's default.

    Raises:
        MigrationError: a name that a database could not hold as it is.
    """

    table: str = DEFAULT_TABLE
    schema: str | None = None

    def __post_init__(self) -> None:
        _check_name("table", self.table, LONGEST_TABLE)
        if self.schema is not None:
            _check_name("schema", self.schema, LONGEST_NAME)

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


def _check_name(option: str, name: str, longest: int) -> None:
    if not name or "\0" in name:
        raise MigrationError(f"brooq_{option} is {name!r}: give a name of one character or more, without NUL.")
    if len(name.encode()) > longest:
        raise MigrationError(
            f"brooq_{option} is {name!r}: PostgreSQL would cut names made from it. Give one of at most {longest} bytes."
        )


def target(context: MigrationContext) -> Target:
    """The target that the options of a running migration name.

    Raises:
        MigrationError: a name that a database could not hold, or an unknown ``-x brooq_...`` option.
    """
    return Target(table=_setting(context, "table") or DEFAULT_TABLE, schema=_setting(context, "schema"))


def is_meant(context: MigrationContext, environment: Mapping[str, Any]) -> bool:
    """Whether the job table belongs in the database that is migrated now.

    Args:
        environment: what env.py handed to ``run_migrations``; that of the template ``multidb`` names the database.

    Raises:
        MigrationError: there are several, and no option says which of them is meant.
    """
    name = environment.get("engine_name")
    if name is None:
        return True
    wanted = _setting(context, "database")
    if wanted is None:
        raise MigrationError(
            f"This environment migrates several databases, {name!r} among them. Name the one that gets the job table:"
            f" brooq_database = {name} in alembic.ini or [tool.alembic], or `-x brooq_database={name}`."
        )
    return bool(wanted == name)


def _setting(context: MigrationContext, name: str) -> str | None:
    config = context.config
    if config is None:  # a MigrationContext of someone's own making
        return None
    found = (
        config.attributes.get(f"brooq.{name}")
        or _from_command_line(context).get(f"brooq_{name}")
        or config.get_alembic_option(f"brooq_{name}")
    )
    return str(found) if found else None


def _from_command_line(context: MigrationContext) -> dict[str, str]:
    environment = context.environment_context
    given = environment.get_x_argument(as_dictionary=True) if environment is not None else {}
    known = [f"brooq_{name}" for name in NAMES]
    for option in given:
        # A misspelt one would build the table in the wrong place without a word.
        if option.startswith("brooq_") and option not in known:
            raise MigrationError(f"-x {option}: no such option. brooq-sa has {', '.join(known)}.")
    return given
