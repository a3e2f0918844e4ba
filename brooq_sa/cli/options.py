"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sqlalchemy import Table

F = TypeVar("F", bound=Callable[..., Any])

DOTENV = Path(".env")


def _url(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value or ctx.resilient_parsing:
        return value
    from dotenv import dotenv_values

    # As the settings are read: without interpolation, since a password with ${ in it means itself.
    if found := dotenv_values(DOTENV, interpolate=False).get("DATABASE_URL"):
        return found
    raise click.UsageError(
        f"No database is given. Use --url, or set DATABASE_URL in the environment or in {DOTENV}.", ctx
    )


url_option = click.option(
    "--url",
    envvar="DATABASE_URL",
    show_envvar=True,
    callback=_url,
    help="The database, such as postgresql://user@host/name or sqlite:///jobs.db.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def where(command: F) -> F:
    """The options that say which job table is meant: ``url``, ``schema`` and ``table``."""
    for option in (
        click.option("--table", default="job", show_default=True, help="The job table's name."),
        click.option("--schema", help="Where the job table lies.  [default: the connection's own schema]"),
        url_option,
    ):
        command = option(command)
    return command


def table_named(name: str, schema: str | None) -> Table:
    """The job table in a MetaData of its own."""
    from sqlalchemy import MetaData

    from brooq_sa.schema import job_table

    return job_table(MetaData(), name, schema)
