"""``brooq-sa alembic``: the branch ``brooq`` among somebody's own migrations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from brooq_sa.adoption.check import check as find
from brooq_sa.adoption.check import upgrade_command
from brooq_sa.adoption.project import Project
from brooq_sa.adoption.proposal import DEFAULT_LABEL, propose

from .bases import load_base
from .codes import DONE, FINDINGS, REFUSED, Command
from .failing import Failure, database_said
from .options import json_option
from .printing import clean, print_json

F = TypeVar("F", bound=Callable[..., Any])


def project_options(command: F) -> F:
    """Options that ``alembic`` has too: ``files``, ``section`` and ``x``."""
    for option in (
        click.option("-x", "x", multiple=True, metavar="NAME=VALUE", help="An argument for env.py, as for alembic."),
        click.option(
            "-n", "--name", "section", default="alembic", show_default=True, help="The section of the ini file."
        ),
        click.option(
            "-c",
            "--config",
            "files",
            multiple=True,
            metavar="FILE",
            help="Alembic's ini file, pyproject.toml, or one of each.  [default: those of this folder]",
        ),
    ):
        command = option(command)
    return command


@click.group()
def alembic() -> None:
    """Bring the job table's migrations into your Alembic project, and check them.

    Run it where you run `alembic`.
    """


@alembic.command(
    cls=Command,
    examples=("alembic init", "alembic init --yes --schema queue", "alembic init -c db/alembic.ini --label shop"),
    exit_codes={
        DONE: "done, or nothing to do",
        REFUSED: "the project cannot be read, or the answer was no",
        FINDINGS: "something is left to do by hand, which it says",
    },
)
@project_options
@click.option("--label", default=DEFAULT_LABEL, show_default=True, help="A name for your own branch, if it has none.")
@click.option("--table", help="Write down this name of the job table.  [default: job]")
@click.option("--schema", help="Write down that the job table lies there.  [default: the connection's own schema]")
@click.option("--database", help="Which one gets the job table, where env.py migrates several.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def init(files: tuple[str, ...], section: str, x: tuple[str, ...], yes: bool, **wanted: str | None) -> None:
    """Make the job table's migrations a branch of your project's.

    It shows what it would change in which file, and changes that once you agree: your version_locations get our folder,
    path_separator is changed if it would split that, and your own branch gets a label if it has none. Nothing else in
    the files changes. No database is connected to. Running it again changes nothing.
    """
    with _read():
        project = Project(files, section, x)
        proposal = propose(project, **wanted)  # type: ignore[arg-type]
    for edit in proposal.edits:
        click.echo(clean(edit.diff(), keep="\n\t"))
    if proposal.edits:
        if not yes:
            click.confirm("Apply this?", abort=True, err=True)
        for edit in proposal.edits:
            edit.apply()
    for instruction in proposal.instructions:
        click.echo(f"Left to you: {clean(instruction, keep=chr(10))}")
    for hint in proposal.hints:
        click.echo(clean(hint, keep="\n"))
    if proposal.instructions:
        raise click.exceptions.Exit(FINDINGS)
    _say_what_is_next(Project(files, section, x), has_changed=bool(proposal.edits))


def _say_what_is_next(project: Project, *, has_changed: bool) -> None:
    with _read():
        if not project.sees_branch:
            raise Failure("Alembic still does not see the branch 'brooq'. Please report this, with the diff above.")
        command = upgrade_command(project)
    click.echo(f"{'Done' if has_changed else 'Nothing to do'}. Next: {command}, then brooq-sa alembic check")
    if has_changed:
        click.echo("From now on 'alembic upgrade heads' is what brings up both; 'head' alone may be ambiguous.")


@alembic.command(
    cls=Command,
    examples=("alembic check", "alembic check app.jobs:AppJob", "alembic check -x tenant=acme --json"),
    exit_codes={
        DONE: "all is well",
        REFUSED: "the project cannot be read, or its env.py does not reach the database",
        FINDINGS: "something is not as it should be",
    },
)
@project_options
@json_option
@click.argument("target", metavar="[MODULE:BASE]", required=False)
def check(files: tuple[str, ...], section: str, x: tuple[str, ...], as_json: bool, target: str | None) -> None:
    """Find what would go wrong without a word.

    Is the branch among your revisions? Is the database at the revision that this version of brooq-sa needs? Are the
    tables as migrated, with all columns, indexes, constraints and settings? With MODULE:BASE: does your code use the
    table that the migrations make? Each finding says what to do. Nothing is changed; the database is reached through
    your env.py.

    With --json, one object: `findings`, a list of `about`, `problem`, `cure` and `is_note`. Notes fail nothing.
    """
    table = None if target is None else load_base(target).__table__
    with _read():
        findings = find(Project(files, section, x), table)
    if as_json:
        print_json({"findings": [finding.plain() for finding in findings]})
    else:
        for finding in findings:
            click.echo(f"{'note: ' if finding.is_note else ''}{clean(finding.about)}: {clean(finding.problem)}")
            click.echo(f"    {clean(finding.cure)}")
        if all(finding.is_note for finding in findings):
            click.echo("All is well.")
    if not all(finding.is_note for finding in findings):
        raise click.exceptions.Exit(FINDINGS)


@contextmanager
def _read() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise Failure(str(error)) from error
    except SQLAlchemyError as error:
        raise Failure(f"The database of env.py: {database_said(error)}") from error
