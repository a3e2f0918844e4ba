"""``brooq-sa migrate``: the job table without Alembic's own command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, inspect, pool
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from brooq_sa import migrations

from .database import blocking_url

NOT_NEWEST = 3
SHORT_NAMES = {"head": "brooq@head", "base": "brooq@base"}

Command = Callable[..., None]


@click.group()
def migrate() -> None:
    """Make, change and drop the job table.

    For people who have no Alembic environment. Those who have one list `brooq_sa:migrations/versions` in its
    version_locations instead, and run `alembic upgrade brooq@head`. Use one way or the other for a database: this
    command keeps its revision in a table of its own, beside the job table.

    Exit codes: 0 done, 1 the database or the migration refused, 2 wrong usage; `current --check` has one more.
    """


def _where(command: Command) -> Command:
    """The options that say which job table is meant."""
    options = (
        click.option(
            "--url",
            envvar="DATABASE_URL",
            show_envvar=True,
            required=True,
            help="The database, such as postgresql://user@host/name or sqlite:///jobs.db.",
        ),
        click.option("--schema", help="Where the job table lies.  [default: the connection's own schema]"),
        click.option("--table", default="job", show_default=True, help="The job table's name."),
    )
    for option in reversed(options):
        command = option(command)
    return command


_sql = click.option("--sql", is_flag=True, help="Print the SQL, and connect to nothing.")


@migrate.command()
@_where
@_sql
@click.argument("revision", default="head")
def upgrade(url: str, schema: str | None, table: str, sql: bool, revision: str) -> None:
    """Bring the job table to REVISION (default: head, the newest).

    All of it happens or nothing. Several may run at once, for instance one in each replica: they take turns. A schema
    that is absent is made.

    Exit codes: 0 done, or nothing to do; 1 the database or the migration refused; 2 wrong usage.
    """
    revision = SHORT_NAMES.get(revision, revision)
    with _opened(url) as engine:
        if sql:
            migrations.upgrade(engine, table=table, schema=schema, revision=revision, out=sys.stdout)
            return
        before = migrations.current(engine, table=table, schema=schema)
        migrations.upgrade(engine, table=table, schema=schema, revision=revision)
        _report(engine, table, schema, before)


@migrate.command()
@_where
@_sql
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("revision")
def downgrade(url: str, schema: str | None, table: str, sql: bool, yes: bool, revision: str) -> None:
    """Take the job table back to REVISION; `base` drops it with its jobs.

    The schema it lies in stays. With --sql, REVISION may be a range, such as brooq_0002:brooq_0001.

    Exit codes: 0 done, or nothing to do; 1 the database or the migration refused, or the answer was no; 2 wrong usage.
    """
    revision = SHORT_NAMES.get(revision, revision)
    with _opened(url) as engine:
        if sql:
            migrations.downgrade(engine, table=table, schema=schema, revision=revision, out=sys.stdout)
            return
        before = migrations.current(engine, table=table, schema=schema)
        if before is not None and not yes:
            shown = engine.url.render_as_string(hide_password=True)
            click.confirm(
                f"Take table {table!r} in {shown} back to {revision}? Jobs may be lost.", abort=True, err=True
            )
        migrations.downgrade(engine, table=table, schema=schema, revision=revision)
        _report(engine, table, schema, before)


@migrate.command()
@_where
@click.option("--json", "as_json", is_flag=True, help="Print an object: table, schema, revision, head.")
@click.option("--check", is_flag=True, help=f"Exit with {NOT_NEWEST} unless the job table is at the newest revision.")
def current(url: str, schema: str | None, table: str, as_json: bool, check: bool) -> None:
    """Show the job table's revision, and the newest one that this installation has.

    Exit codes: 0 shown; 1 the database refused; 2 wrong usage; with --check, 3 if the two differ.
    """
    with _opened(url) as engine:
        revision, newest = migrations.current(engine, table=table, schema=schema), migrations.head()
        if as_json:
            click.echo(json.dumps({"table": table, "schema": schema, "revision": revision, "head": newest}))
        else:
            click.echo(f"{table}: {_named(revision)}, newest is {newest}")
        if revision is None and inspect(engine).has_table(table, schema=schema):
            click.echo(
                f"Table {table!r} is there, but `brooq-sa migrate` did not make it. Ask what did: `alembic current`?",
                err=True,
            )
    if check and revision != newest:
        raise click.exceptions.Exit(NOT_NEWEST)


def _report(engine: Engine, table: str, schema: str | None, before: str | None) -> None:
    after = migrations.current(engine, table=table, schema=schema)
    click.echo(f"{table}: {_named(after)}" + (" already" if after == before else f", was {_named(before)}"))


def _named(revision: str | None) -> str:
    return revision or "none"


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    """An engine; what the database or a migration refuses becomes the command's error."""
    engine = _engine(url)
    try:
        yield engine
    except CommandError as error:
        raise click.ClickException(str(error)) from error
    except SQLAlchemyError as error:
        shown = engine.url.render_as_string(hide_password=True)
        raise click.ClickException(f"{shown}: {_cause(error)}") from error
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    try:
        return create_engine(blocking_url(url), poolclass=pool.NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        # The URL itself is not repeated: it may hold a password.
        raise click.BadParameter(
            f"{error}. Give one such as postgresql://user@host/name or sqlite:///jobs.db.", param_hint="--url"
        ) from error


def _cause(error: SQLAlchemyError) -> str:
    """What the database said, without the statement and the link that SQLAlchemy adds."""
    return str(getattr(error, "orig", None) or error).strip()
