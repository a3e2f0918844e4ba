"""``brooq-sa doctor``: what may be wrong, why it matters, what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from .codes import DONE, FINDINGS, REFUSED, Command
from .options import json_option, table_named, where
from .printing import clean, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brooq_sa.doctor import Finding


@click.command(
    cls=Command,
    examples=("doctor", "doctor --retention-ttl 7d --json"),
    exit_codes={
        DONE: "nothing is wrong; there may be notes",
        REFUSED: "the database refused, or cannot be reached",
        FINDINGS: "there are warnings or faults",
    },
)
@where
@click.option(
    "--retention-ttl",
    envvar="QUEUE_RETENTION_TTL",
    show_envvar=True,
    default="30d",
    show_default=True,
    metavar="DURATION",
    help="How long your workers keep jobs that have ended; 0 is for ever.",
)
@click.option(
    "--long-transaction",
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long a transaction may be open before it is told of.",
)
@click.option("--quiet", is_flag=True, help="Leave out what is well.")
@json_option
def doctor(
    url: str, schema: str | None, table: str, retention_ttl: str, long_transaction: str, quiet: bool, as_json: bool
) -> None:
    """Look for what may be wrong with the queue and its database, and say what to do.

    Everything is looked at and nothing is changed; what the role may not see is said. Each finding is one of ok, note,
    warning and fault.

    With --json, one object: `findings`, a list of `check`, `level`, `what`, `why`, `cure` and `facts`; and `worst`, the
    worst level.
    """
    from brooq_sa.doctor import Level, examine
    from brooq_sa.durations import parse_duration

    from .database import opened

    job = table_named(table, schema)
    kept, open_for = parse_duration(retention_ttl), parse_duration(long_transaction)
    with opened(url, wal=False) as engine, engine.connect() as plain_connection:
        connection = plain_connection.execution_options(brooq_begin="DEFERRED")
        findings = list(examine(connection, job, retention_ttl=kept, long_transaction=open_for))
    shown = [each for each in findings if each.level is not Level.OK] if quiet else findings
    if as_json:
        worst = max((each.level for each in findings), key=list(Level).index)
        print_json({"worst": str(worst), "findings": [each.plain() for each in shown]})
    else:
        _print(shown)
        counts = Counter(each.level for each in findings)
        click.echo(", ".join(f"{counts[level]} {level}" for level in Level))
    if any(each.level.is_trouble for each in findings):
        raise click.exceptions.Exit(FINDINGS)


def _print(findings: Sequence[Finding]) -> None:
    for each in findings:
        click.echo(f"{each.level:<8} {each.check}: {clean(each.what)}")
        for line in (each.why, each.cure and f"To do: {each.cure}"):
            if line:
                click.echo(f"{'':<8} {clean(line)}")
