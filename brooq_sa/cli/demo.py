"""``brooq-sa demo``: see it work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .codes import DONE, REFUSED, Command
from .failing import Failure

if TYPE_CHECKING:
    from brooq_sa.demo.databases import Place


@click.command(
    cls=Command,
    examples=("demo", "demo --keep demo.db", "demo --postgres", "demo --url postgresql://me@localhost/scratch"),
    exit_codes={
        DONE: "every number is right",
        REFUSED: "a number is off; or the demonstration could not run here",
        "129, 130, 143": "interrupted by SIGHUP, SIGINT or SIGTERM, and cleaned up",
    },
)
@click.option(
    "--keep", type=click.Path(dir_okay=False, path_type=Path), help="Keep the SQLite file, under this name, to look at."
)
@click.option("--postgres", is_flag=True, help="On a PostgreSQL server started for it. Needs brooq-sa[demo].")
@click.option("--url", help="In a database of your own. DATABASE_URL is left alone.")
@click.option("--keep-tables", is_flag=True, help="Do not drop the tables in your own database.")
def demo(keep: Path | None, postgres: bool, url: str | None, keep_tables: bool) -> None:
    """See it work: two workers, one of them killed, and not an effect lost or doubled.

    A row and a job are added for each module of Python's standard library, in one transaction. Two worker processes
    parse the modules and write what they find. Meanwhile a batch of enqueues is rolled back, some jobs fail once, and
    a worker is killed while it holds jobs; another one takes its place. The numbers at the end are counted in the
    database, and the exit code says whether all of them are right.

    It takes some ten seconds, in a temporary SQLite file unless told otherwise. In a database of your own it makes
    tables whose names begin with brooq_demo_, refuses to start if one of them is there, and drops them at the end.
    """
    place = _place(keep, postgres, url, keep_tables)

    from brooq_sa.demo.children import ChildEnded
    from brooq_sa.demo.databases import Occupied
    from brooq_sa.demo.demonstration import NotDone, demonstrate
    from brooq_sa.demo.server import NoServer

    try:
        is_well = demonstrate(place)
    except (ChildEnded, LookupError, NoServer, NotDone, Occupied) as error:
        raise Failure(str(error)) from error
    if not is_well:
        raise Failure("A number is off.")


def _place(keep: Path | None, postgres: bool, url: str | None, keep_tables: bool) -> AbstractContextManager[Place]:
    if sum((keep is not None, postgres, url is not None)) > 1:
        raise click.UsageError("Give one of --keep, --postgres and --url.")
    if keep_tables and url is None:
        raise click.UsageError("--keep-tables is for --url. A SQLite file is kept by --keep.")

    from brooq_sa.demo import databases

    if postgres:
        return databases.own_server()
    if url is None:
        return databases.sqlite_file(keep)

    from .database import readable_url

    chosen = readable_url(url)
    if chosen.get_backend_name() == "sqlite":
        chosen = chosen.set(database=str(Path(chosen.database or "").absolute()))
    return databases.users_database(chosen, keep_tables=keep_tables)
