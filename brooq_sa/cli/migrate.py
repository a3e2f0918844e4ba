"""``brooq-sa migrate``: the job table without Alembic's own command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, inspect, pool, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from brooq_sa import migrations
from brooq_sa.access import DENIED

from .codes import DONE, NOT_NEWEST, REFUSED, Command
from .database import EXAMPLES, readable_url
from .failing import Failure, database_said
from .options import json_option, table_named, where
from .printing import print_json

SHORT_NAMES = {"head": "brooq@head", "base": "brooq@base"}

sql_option = click.option("--sql", is_flag=True, help="Print the SQL, and connect to nothing.")


@click.group()
def migrate() -> None:
    """Make, change and drop the job table.

    For people who have no Alembic environment. Those who have one list `brooq_sa:migrations/versions` in its
    version_locations instead, and run `alembic upgrade brooq@head`. Use one way or the other for a database: this
    command keeps its revision in a table of its own, beside the job table.
    """


@migrate.command(
    cls=Command,
    examples=("migrate upgrade --url sqlite:///jobs.db", "migrate upgrade --schema queue --sql"),
    exit_codes={DONE: "done, or nothing to do", REFUSED: "the database or the migration refused"},
)
@where
@sql_option
@click.argument("revision", default="head")
def upgrade(url: str, schema: str | None, table: str, sql: bool, revision: str) -> None:
    """Bring the job table to REVISION (default: head, the newest).

    All of it happens or nothing. Several may run at once, for instance one in each replica: they take turns. A schema
    that is absent is made.
    """
    revision = SHORT_NAMES.get(revision, revision)
    with _opened(url) as engine:
        if sql:
            migrations.upgrade(engine, table=table, schema=schema, revision=revision, out=sys.stdout)
            return
        before = _revision(engine, table, schema)
        migrations.upgrade(engine, table=table, schema=schema, revision=revision)
        if before is None and engine.dialect.name == "sqlite":
            _use_wal(engine)
        _report(engine, table, schema, before)


@migrate.command(
    cls=Command,
    examples=("migrate downgrade base", "migrate downgrade base --yes --table nightly"),
    exit_codes={
        DONE: "done, or nothing to do",
        REFUSED: "the database or the migration refused, or the answer was no",
    },
)
@where
@sql_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("revision")
def downgrade(url: str, schema: str | None, table: str, sql: bool, yes: bool, revision: str) -> None:
    """Take the job table back to REVISION; `base` drops it with its jobs.

    The schema it lies in stays. With --sql, REVISION may be a range, such as brooq_0002:brooq_0001.
    """
    revision = SHORT_NAMES.get(revision, revision)
    with _opened(url) as engine:
        if sql:
            migrations.downgrade(engine, table=table, schema=schema, revision=revision, out=sys.stdout)
            return
        before = _revision(engine, table, schema)
        if before is not None:
            if not yes:
                _confirm(f"Take table {table!r} in {_shown(engine)} back to {revision}? Jobs may be lost.")
            migrations.downgrade(engine, table=table, schema=schema, revision=revision)
        _report(engine, table, schema, before)


@migrate.command(
    cls=Command,
    examples=("migrate current", "migrate current --check || brooq-sa migrate upgrade"),
    exit_codes={
        DONE: "shown",
        REFUSED: "the database refused",
        NOT_NEWEST: "with --check: the job table is not at the newest revision",
    },
)
@where
@click.option("--check", is_flag=True, help=f"Exit with {NOT_NEWEST} unless the job table is at the newest revision.")
@json_option
def current(url: str, schema: str | None, table: str, check: bool, as_json: bool) -> None:
    """Show the job table's revision, and the newest one that this installation has.

    With --json, one object: `table`, `schema`, `revision` (null if there is none) and `head`.
    """
    with _opened(url) as engine:
        revision, newest = _revision(engine, table, schema), migrations.head()
        if as_json:
            print_json({"table": table, "schema": schema, "revision": revision, "head": newest})
        else:
            click.echo(f"{table}: {_named(revision)}, newest is {newest}")
        if revision is None and not _is_absent(engine) and inspect(engine).has_table(table, schema=schema):
            click.echo(
                f"Table {table!r} is there, but `brooq-sa migrate` did not make it. Ask what did: `alembic current`?",
                err=True,
            )
    if check and revision != newest:
        raise click.exceptions.Exit(NOT_NEWEST)


@migrate.command(
    cls=Command,
    examples=("migrate stamp", "migrate stamp base"),
    exit_codes={DONE: "done, or nothing to do", REFUSED: "the database refused, or the table is at another revision"},
)
@where
@click.argument("revision", required=False)
def stamp(url: str, schema: str | None, table: str, revision: str | None) -> None:
    """Note the revision of a job table that something else has migrated, and change nothing else.

    That is how a table which Alembic made becomes this command's to upgrade. `stamp base` is the way back: the note
    goes, and the table stays. Without REVISION it is the one that the table itself says it is at.
    """
    with _opened(url) as engine:
        said = None if _is_absent(engine) else _said(engine, table, schema)
        if revision is None and said is None:
            raise Failure(f"Table {table!r} is not there, or does not say at which revision it is. Name one.")
        wanted = SHORT_NAMES.get(revision or "", revision) or said
        if wanted != SHORT_NAMES["base"] and said is not None and migrations.resolve(str(wanted)) != said:
            raise Failure(f"Table {table!r} says that it is at {said}, not at {revision}.")
        before = _revision(engine, table, schema)
        migrations.stamp(engine, table=table, schema=schema, revision=str(wanted))
        _report(engine, table, schema, before)


def _said(engine: Engine, table: str, schema: str | None) -> str | None:
    from brooq_sa import revision

    with engine.connect() as connection:
        found = revision.found(connection, table_named(table, schema))
    return None if found is None else revision.name(found)


def _confirm(question: str) -> None:
    click.confirm(question, abort=True, err=True)


def _report(engine: Engine, table: str, schema: str | None, before: str | None) -> None:
    after = _revision(engine, table, schema)
    click.echo(f"{table}: {_named(after)}" + (" already" if after == before else f", was {_named(before)}"))


def _named(revision: str | None) -> str:
    return revision or "none"


def _revision(engine: Engine, table: str, schema: str | None) -> str | None:
    # To connect would make the file.
    return None if _is_absent(engine) else migrations.current(engine, table=table, schema=schema)


def _is_absent(engine: Engine) -> bool:
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith("file:"):
        return False
    return name != ":memory:" and not Path(name).exists()


def _use_wal(engine: Engine) -> None:
    """Put a file that has got its job table into WAL mode, as whoever comes first to work in it would."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("PRAGMA journal_mode = WAL"))


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    """An engine; what the database or a migration refuses becomes the command's error."""
    engine = _engine(url)
    try:
        yield engine
    except CommandError as error:
        raise Failure(str(error)) from error
    except SQLAlchemyError as error:
        raise Failure(f"{_shown(engine)}: {database_said(error)}{_hint(error)}") from error
    finally:
        engine.dispose()


def _hint(error: SQLAlchemyError) -> str:
    if getattr(getattr(error, "orig", None), "sqlstate", None) != DENIED:
        return ""
    return ". Migrate as the table's owner, or, to make one, have GRANT CREATE, USAGE ON SCHEMA ... run for this role."


def _engine(url: str) -> Engine:
    try:
        return create_engine(readable_url(url), poolclass=pool.NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError, TypeError) as error:
        raise click.BadParameter(f"{error}. {EXAMPLES}", param_hint="--url") from error


def _shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)
