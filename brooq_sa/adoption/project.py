"""Somebody's Alembic project: its files, and its revisions with ours among them."""

from __future__ import annotations

import configparser
import os
import tomllib
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError

from brooq_sa import migrations

ENTRY = "brooq_sa:migrations/versions"
"""Our folder, as ``version_locations`` names it wherever the package is installed."""

BRANCH = "brooq"
TOML = "pyproject.toml"


class ProjectError(CommandError):
    """A project that cannot be made sense of."""


class Project:
    """What ``alembic`` itself would read, called in the same folder with the same options.

    Args:
        files: those of ``-c``; by default ``ALEMBIC_CONFIG``, ``alembic.ini`` and ``pyproject.toml`` of this folder.
        section: of the ini file, as ``-n`` names it.
        x: what ``-x`` gives to env.py.

    Raises:
        ProjectError: there is no configuration.
    """

    def __init__(self, files: Sequence[str] = (), section: str = "alembic", x: Sequence[str] = ()) -> None:
        self.ini, self.toml = _found(files)
        self.section = section
        self.config = Config(
            str(self.ini), toml_file=str(self.toml), ini_section=section, cmd_opts=Namespace(x=list(x), quiet=True)
        )
        try:
            script_location = self.option("script_location")
        except (configparser.Error, tomllib.TOMLDecodeError, UnicodeDecodeError, ValueError) as error:
            raise ProjectError(f"Alembic cannot read {self.ini} or {self.toml}: {error}") from error
        if script_location is None:
            raise ProjectError(
                f"There is no Alembic here: neither {self.ini} nor {self.toml} names a script_location. Run this where"
                " you run alembic, or name its file with -c. To begin with Alembic: `alembic init migrations`. To do"
                " without: `brooq-sa migrate upgrade`."
            )

    def option(self, name: str) -> str | None:
        """An option as Alembic reads it, from the ini file or else from pyproject.toml."""
        found = self.config.get_alembic_option(name)
        return None if found is None else str(found)

    @property
    def is_in_ini(self) -> bool:
        """Whether Alembic would look for version_locations in the ini file."""
        ini = self.config.file_config
        if ini.has_option(self.section, "version_locations"):
            return True
        return "script_location" not in self.config.toml_alembic_config or ini.has_option(
            self.section, "script_location"
        )

    @property
    def locations(self) -> list[str]:
        """The entries of version_locations; the one folder that it stands for if there are none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of separators that are their own to choose
            listed = self.config.get_version_locations_list()
        return list(listed) if listed else [f"{self.option('script_location')}/versions"]

    @cached_property
    def scripts(self) -> ScriptDirectory:
        """Their revisions, and ours if they are listed.

        Raises:
            ProjectError: Alembic itself cannot read them.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                found = ScriptDirectory.from_config(self.config)
                found.get_heads()
        except (CommandError, RevisionError, ImportError, OSError, SyntaxError, ValueError, KeyError) as error:
            raise ProjectError(f"Alembic cannot read this project's revisions: {error}") from error
        return found

    @property
    def lists_ours(self) -> bool:
        """Whether our folder is among the locations."""
        return any(Path(folder).resolve() == our_folder() for folder in self.scripts._version_locations)

    @property
    def sees_branch(self) -> bool:
        """Whether ``brooq@head`` means something."""
        return any(BRANCH in script.branch_labels for script in self.revisions)

    @property
    def revisions(self) -> Iterator[Script]:
        """All of them, the newest first."""
        return self.scripts.walk_revisions()

    @property
    def their_revisions(self) -> list[Script]:
        return [script for script in self.revisions if not is_ours(script)]

    @property
    def strays(self) -> list[Script]:
        """Revisions of theirs that lie in our folder, which the next installation of this package forgets."""
        known = our_revisions()
        return [script for script in self.revisions if is_ours(script) and script.revision not in known]

    def behind(self, heads: Iterable[str]) -> set[str]:
        """The revisions that these heads stand for: themselves, all before them, and all they depend on.

        Raises:
            alembic.util.CommandError: one of them is none of this project's.
        """
        found: set[str] = set()
        ahead = list(heads)
        while ahead:
            for script in self.scripts.get_revisions(ahead.pop()):
                if script.revision not in found:
                    found.add(script.revision)
                    ahead += [*_each(script.down_revision), *_each(script.dependencies)]
        return found


def our_folder() -> Path:
    """Where our revisions lie."""
    return (migrations.script_location() / "versions").resolve()


def is_ours(script: Script) -> bool:
    """Whether the revision is one of this package's."""
    return Path(script.path).resolve().parent == our_folder()


def our_revisions() -> list[str]:
    """The revisions that this package has, the first one first."""
    found = ScriptDirectory(str(migrations.script_location())).walk_revisions()
    return [script.revision for script in reversed(list(found))]


def _each(revisions: str | Iterable[str] | None) -> tuple[str, ...]:
    if revisions is None:
        return ()
    return (revisions,) if isinstance(revisions, str) else tuple(revisions)


def _found(files: Sequence[str]) -> tuple[Path, Path]:
    """The ini file and the TOML file, told apart by name as Alembic does."""
    given = files or [os.environ.get("ALEMBIC_CONFIG") or "alembic.ini"]
    toml = [Path(name) for name in given if Path(name).name == TOML]
    ini = [Path(name) for name in given if Path(name).name != TOML]
    for kind in (ini, toml):
        if len(kind) > 1:
            raise ProjectError(f"Both {kind[0]} and {kind[1]} are given. Alembic reads one ini file and one {TOML}.")
    if files and (absent := [name for name in given if not Path(name).exists()]):
        raise ProjectError(f"There is no file {absent[0]}.")
    return (ini or [Path("alembic.ini")])[0], (toml or [Path(TOML)])[0]
