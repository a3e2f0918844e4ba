"""What the command line says of itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brooq_sa import __version__
from brooq_sa.cli import COMMANDS, main
from brooq_sa.cli.codes import Command
from brooq_sa.cli.settings import COMPUTED, SETTINGS
from brooq_sa.settings import NAMES, WorkerSettings

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its name as typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


ALL = dict(leaves(main))


def test_help_loads_no_library() -> None:
    """--help is quick: none of the libraries that commands use is loaded for it."""
    heavy = "{'sqlalchemy', 'alembic', 'msgspec', 'rich', 'structlog', 'psycopg', 'asyncio'}"
    source = f"""
import sys
from brooq_sa.cli import main
try:
    main(["--help"])
finally:
    print(sorted({heavy} & sys.modules.keys()))
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("Usage: ")
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


def test_version() -> None:
    """--version prints the package's version."""
    assert CliRunner().invoke(main, ["--version"]).output == f"brooq-sa {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_listed_with_its_own_help(name: str) -> None:
    """The help in a line, which the list of commands shows without loading it, is the beginning of the command's."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert (command.help or "").startswith(COMMANDS[name][1].rstrip("."))
    assert f"  {name} " in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_examples_and_exit_codes(name: str) -> None:
    """The help of each command shows how it is called and what its exit codes mean, wrong usage among them."""
    command = ALL[name]
    assert isinstance(command, Command)
    output = CliRunner().invoke(main, [*name.split(), "--help"]).output
    assert all(f"  brooq-sa {example}\n" in output for example in command.examples)
    assert all(example.startswith(name) for example in command.examples)
    assert {0, 1, 2} <= command.exit_codes.keys()
    assert all(re.search(rf"^  {re.escape(str(code))} ", output, re.MULTILINE) for code in command.exit_codes)


@pytest.mark.parametrize("name", ALL)
def test_options_are_explained(name: str) -> None:
    """Each option of each command says in its help what it does."""
    options = [each for each in ALL[name].params if isinstance(each, click.Option)]
    assert options
    assert [option.name for option in options if not option.help] == []


def test_every_setting_is_an_option() -> None:
    """The worker takes each setting of WorkerSettings, and says its default or how it is computed (U3)."""
    assert tuple(SETTINGS) == NAMES
    assert set(COMPUTED) == {name for name in NAMES if getattr(WorkerSettings, name) is None}
    assert {*NAMES, "http_addr"} <= {parameter.name for parameter in ALL["worker"].params}


def documented_codes() -> Mapping[str, dict[str, str]]:
    """The table of exit codes in the documentation: by command, what each code means."""
    found: dict[str, dict[str, str]] = {}
    for name, code, meaning in re.findall(r"^\| `([a-z -]+)` \| ([\d, ]+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE):
        found.setdefault(name, {})[code] = meaning
    return found


def test_documented_exit_codes_are_those_of_the_commands() -> None:
    """The table in docs/cli.md has every command with every exit code, in the words of its help."""
    commands = {
        name: {str(code): meaning for code, meaning in command.exit_codes.items() if code != 2}
        for name, command in ALL.items()
        if isinstance(command, Command)
    }
    assert documented_codes() == commands


def test_every_command_is_documented() -> None:
    """docs/cli.md has a section for each command."""
    headings = re.findall(r"^##+ `brooq-sa ([a-z -]+)`$", DOCS.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)
