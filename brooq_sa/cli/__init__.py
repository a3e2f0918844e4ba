"""The command ``brooq-sa``: one file for each group of commands, loaded when one of them is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from .failing import reported

GROUPS = {
    "Jobs": {
        "enqueue": ("enqueue", "Put a job of TOPIC into the table."),
        "worker": ("worker", "Run the jobs of MODULE:BASE until told to stop."),
        "consume": ("consume", "Run a command for each job of the topics, one by one, in order."),
    },
    "Looking and deciding": {
        "jobs": ("look", "List jobs that fit every filter, the last changed first."),
        "show": ("look", "Show the whole row of one job."),
        "why": ("why", "Say why a job is where it is: what it waits for, who has it, or how it ended."),
        "stats": ("look", "Show how many jobs each topic has in each state."),
        "top": ("top", "Show topics, live workers and running jobs on a screen that keeps itself up to date."),
        "doctor": ("doctor", "Look for what may be wrong with the queue and its database, and say what to do."),
        "cancel": ("operate", "Cancel jobs, waiting or running."),
        "retry": ("operate", "Send failed, dead or canceled jobs round again, now."),
        "run-now": ("operate", "Make jobs due now that are scheduled for later, or wait for a retry."),
        "delete": ("operate", "Delete jobs that have ended, or wait."),
        "pause": ("pausing", "Let no worker start jobs of TOPIC, until it is resumed."),
        "resume": ("pausing", "Let workers start jobs of TOPIC again."),
    },
    "Setting up": {
        "migrate": ("migrate", "Make, change and drop the job table."),
        "alembic": ("alembic_project", "Bring the job table's migrations into your Alembic project, and check them."),
        "demo": ("demo", "See it work: two workers, one of them killed, and not an effect lost or doubled."),
    },
}
"""By heading: each command, the module that has it, and its help in a line, so that --help loads none of them."""

COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}


class CommandLine(click.Group):
    """Loads a command when it is used, and turns what goes wrong into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __name__)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        with reported(show_traceback=ctx.params["traceback"]):
            return super().invoke(ctx)

    def main(self, *arguments: Any, **options: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")  # text that the terminal's encoding lacks is no reason to fail
        return super().main(*arguments, **options)


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from brooq_sa import __version__

        click.echo(f"brooq-sa {__version__}")
        ctx.exit()


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--traceback", is_flag=True, envvar="BROOQ_TRACEBACK", show_envvar=True, help="Show where an error came from."
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def main(traceback: bool) -> None:
    """A job queue in the database that SQLAlchemy already talks to.

    Commands find the database by --url, the environment's DATABASE_URL, or that variable in a file .env of the current
    folder. Modules of the current folder can be imported.

    Exit codes: 0 done; 1 refused, not found, or failed; 2 wrong usage. `brooq-sa COMMAND --help` has the rest.
    """
