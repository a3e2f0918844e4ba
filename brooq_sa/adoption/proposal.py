"""What ``brooq-sa alembic init`` proposes: edits that bring our branch into a project, each shown as a diff.

An edit is proposed only if Alembic, reading the edited text, finds all that it found before, and our folder besides.
Where no edit passes that, `Proposal.instructions` says what to do by hand.
"""

from __future__ import annotations

import ast
import configparser
import difflib
import os
import re
import shlex
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.script import Script

from .project import ENTRY, Project, ProjectError
from .text import IniText, TomlText

DEFAULT_LABEL = "app"
UNSAFE = ("os", ":")
"""Separators that split our entry at its colon: "os" is the colon everywhere but on Windows."""
OLD = re.compile(r", *|(?: +)")
"""How Alembic splits version_locations where no separator is given."""


@dataclass(frozen=True)
class Edit:
    """A file with another text."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"{self.path} (now)",
            f"{self.path} (proposed)",
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)

    def apply(self) -> None:
        self.path.write_bytes(self.after.encode())


@dataclass
class Proposal:
    """What to change, and what to do by hand.

    Attributes:
        edits: of files, each once.
        instructions: what is missing, and no edit could do.
        hints: what to know from now on.
    """

    edits: list[Edit] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)


def propose(
    project: Project,
    *,
    label: str = DEFAULT_LABEL,
    table: str | None = None,
    schema: str | None = None,
    database: str | None = None,
) -> Proposal:
    """What it takes for the branch to be one of this project's.

    Args:
        label: for their own branch, if it needs one.
        table: the job table's name, if it is not to be the default.
        schema: where it lies.
        database: which of several databases gets it.

    Raises:
        ProjectError: the project cannot be read, or has several databases and none is named.
    """
    options = {
        f"brooq_{name}": value
        for name, value in (("table", table), ("schema", schema), ("database", _database(project, database)))
        if value is not None
    }
    proposal = Proposal()
    changed = _configured(project, options)
    if isinstance(changed, Edit):
        if changed.after != changed.before:
            proposal.edits.append(changed)
    else:
        proposal.instructions.append(changed)
    _name_their_branch(project, label, proposal)
    return proposal


def _database(project: Project, wanted: str | None) -> str | None:
    """The database that gets the table, in an environment that has several."""
    listed = project.config.file_config.get(project.section, "databases", fallback=None)
    if listed is None or project.option("brooq_database") is not None:
        return wanted
    known = re.split(r",\s*", listed.strip())
    if wanted is None or wanted not in known:
        raise ProjectError(
            f"This project migrates several databases: {', '.join(known)}. Name the one that gets the job table:"
            f" --database {known[0]}"
        )
    return wanted


# The configuration.


def _configured(project: Project, options: dict[str, str]) -> Edit | str:
    """The configuration file as it should be; instructions if it cannot be edited."""
    path = project.ini if project.is_in_ini else project.toml
    try:
        before = path.read_bytes().decode()
        tries = _ini_tries(project) if project.is_in_ini else [_edit_toml]
    except (OSError, UnicodeDecodeError):
        return _by_hand(project, options)
    if project.is_in_ini and any(character in value for value in options.values() for character in "%\n"):
        options = {name: value.replace("%", "%%") for name, value in options.items()}
    for edit in tries:
        try:
            after = edit(project, before, options)
        except LookupError:
            continue
        if _is_right(project, after, options):
            return Edit(path, before, after)
    return _by_hand(project, options)


EditText = Callable[[Project, str, dict[str, str]], str]


def _ini_tries(project: Project) -> list[EditText]:
    keeping, changing = _edit_ini_keeping, _edit_ini_changing
    return [keeping] if project.lists_ours else [keeping, changing]


def _edit_ini_keeping(project: Project, text: str, options: dict[str, str]) -> str:
    """The separator stays."""
    ini = IniText(text, project.section)
    if not project.lists_ours:
        separator = _separator(project)
        if separator in UNSAFE:
            raise LookupError(separator)
        _list_ours(project, ini, separator)
    return _with_options(ini, project, options)


def _list_ours(project: Project, ini: IniText, separator: str | None) -> None:
    if not ini.has("version_locations"):
        if separator is None:
            raise LookupError(separator)  # splitting at spaces and commas is deprecated, and warns from now on
        own = _own_folder(project)
        if separator == "newline":
            ini.add("version_locations", [own, ENTRY], after=_PLACES)
        else:
            ini.add("version_locations", (";" if separator == ";" else " ").join([own, ENTRY]), after=_PLACES)
    elif separator == "newline":
        ini.add_line_to_value("version_locations", ENTRY)
    else:
        ini.append_to_value("version_locations", f"{';' if separator == ';' else ' '}{ENTRY}")


_PLACES = ("version_locations", "prepend_sys_path", "script_location")


def _edit_ini_changing(project: Project, text: str, options: dict[str, str]) -> str:
    """From now on newlines separate."""
    ini = IniText(text, project.section)
    raw = project.config.file_config
    listed = raw.get(project.section, "version_locations", raw=True, fallback="")
    entries = [*_split(listed, _separator(project)), ENTRY] if listed else [_own_folder(project), ENTRY]
    if ini.has("version_locations"):
        ini.replace_by_list("version_locations", entries)
    else:
        ini.add("version_locations", entries, after=_PLACES)
    _separate_by_newline(project, ini)
    return _with_options(ini, project, options)


def _separate_by_newline(project: Project, ini: IniText) -> None:
    if not ini.has("path_separator") and ini.has("version_path_separator"):
        ini.replace_value("version_path_separator", "newline")
        return
    paths = project.config.file_config.get(project.section, "prepend_sys_path", raw=True, fallback="")
    if ini.has("path_separator"):
        ini.replace_value("path_separator", "newline")
        parts = _split(paths, _separator(project))
    else:
        ini.add("path_separator", "newline", after=["path_separator", "version_locations"])
        parts = [part for part in re.split(r", *|(?: +)|\:", paths) if part]
    if len(parts) > 1:
        ini.replace_by_list("prepend_sys_path", parts)


def _with_options(ini: IniText, project: Project, options: dict[str, str]) -> str:
    for name, value in options.items():
        if ini.has(name):
            if project.config.file_config.get(project.section, name, raw=True) != value:
                ini.replace_value(name, value)
        else:
            ini.add(name, value, after=["version_locations", "script_location"])
    return str(ini)


def _edit_toml(project: Project, text: str, options: dict[str, str]) -> str:
    toml = TomlText(text, "tool.alembic")
    if not project.lists_ours:
        if toml.has("version_locations"):
            toml.add_to_array("version_locations", ENTRY)
        else:
            own = f"{project.config.toml_alembic_config['script_location']}/versions"
            toml.add("version_locations", [own, ENTRY], after=["prepend_sys_path", "script_location"])
    for name, value in options.items():
        if toml.has(name):
            raise LookupError(name)
        toml.add(name, value.replace("%", "%%"), after=["version_locations", "script_location"])
    return str(toml)


def _separator(project: Project) -> str | None:
    raw = project.config.file_config
    for name in ("path_separator", "version_path_separator"):
        if raw.has_option(project.section, name):
            return raw.get(project.section, name)
    return None


def _split(value: str, separator: str | None) -> list[str]:
    if separator is None:
        return OLD.split(value.strip())
    character = {"os": os.pathsep, "newline": "\n", "space": " "}.get(separator, separator)
    return [part.strip() for part in value.split(character) if part.strip()]


def _own_folder(project: Project) -> str:
    """Where their revisions lie so far, written as they write where their scripts lie."""
    raw = project.config.file_config
    if raw.has_option(project.section, "script_location"):
        return f"{raw.get(project.section, 'script_location', raw=True)}/versions"
    return f"{project.option('script_location')}/versions".replace("%", "%%")


def _is_right(project: Project, text: str, options: dict[str, str]) -> bool:
    """Whether Alembic, reading this text, finds what it found before, and what was to be added."""
    try:
        edited = _reading(project, text)
        before, after = _everything(project.config, project), _everything(edited, project)
        locations = _locations(edited)
        paths_agree = _paths(edited) == _paths(project.config)
    except (configparser.Error, tomllib.TOMLDecodeError, ValueError, KeyError):
        return False
    expected = project.locations if project.lists_ours else [*project.locations, ENTRY]
    wanted = {("alembic", name): value.replace("%%", "%") for name, value in options.items()}
    return paths_agree and locations == expected and after == {**before, **wanted}


def _reading(project: Project, text: str) -> Config:
    edited = Config(str(project.ini), toml_file=str(project.toml), ini_section=project.section)
    _ = project.config.file_config  # which tells both where they are
    edited.config_args.update(project.config.config_args)
    if project.is_in_ini:
        parser = configparser.ConfigParser(project.config.config_args)
        parser.read_string(text)
        edited.__dict__["file_config"] = parser
        edited.__dict__["toml_alembic_config"] = project.config.toml_alembic_config
    else:
        edited.__dict__["toml_alembic_config"] = tomllib.loads(text)["tool"]["alembic"]
    edited.toml_args.update(project.config.toml_args)
    return edited


_MOVING = frozenset({"version_locations", "path_separator", "version_path_separator", "prepend_sys_path"})
"""Options that are compared by what Alembic makes of them, not by their text."""


def _everything(config: Config, project: Project) -> dict[tuple[str, str], Any]:
    ini = config.file_config
    found: dict[tuple[str, str], Any] = {
        (section, name): value
        for section in ini.sections()
        for name, value in ini.items(section, raw=True)
        if name not in _MOVING
    }
    found = {(("alembic" if section == project.section else section), name): v for (section, name), v in found.items()}
    for name, value in config.toml_alembic_config.items():
        if name not in _MOVING:
            found.setdefault(("alembic", name), value)
    return {key: value.replace("%%", "%") if isinstance(value, str) else value for key, value in found.items()}


def _locations(config: Config) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return list(config.get_version_locations_list() or [])


def _paths(config: Config) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return list(config.get_prepend_sys_paths_list() or [])


def _by_hand(project: Project, options: dict[str, str]) -> str:
    entries = [*(each for each in project.locations if each != ENTRY), ENTRY]
    if project.is_in_ini:
        listed = "".join(f"\n        {entry.replace('%', '%%')}" for entry in entries)
        lines = [f"    path_separator = newline\n    version_locations ={listed}"]
        lines += [f"    {name} = {value}" for name, value in options.items()]
        return (
            f"{project.ini} cannot be edited safely. In its section [{project.section}], see to it that these hold"
            " (prepend_sys_path too is split by path_separator):\n" + "\n".join(lines)
        )
    listed = ", ".join(f'"{entry}"' for entry in entries)
    lines = [f"    version_locations = [{listed}]", *(f'    {name} = "{value}"' for name, value in options.items())]
    return f"{project.toml} cannot be edited safely. In its table [tool.alembic], see to it that these hold:\n" + (
        "\n".join(lines)
    )


# Their own branch.


def _name_their_branch(project: Project, label: str, proposal: Proposal) -> None:
    """With two heads, theirs should have a name; nobody should have to write down an id."""
    theirs = project.their_revisions
    if not theirs:
        if not project.lists_ours or project.scripts.get_heads():
            proposal.hints.append(_first_revision(project, label))
        return
    if any(set(script.branch_labels) - {"brooq"} for script in theirs) or _are_merged(theirs):
        return
    heads = [script for script in theirs if not any(_precedes(script, other) for other in theirs)]
    if len(heads) > 1:
        shown = ", ".join(script.revision for script in heads)
        proposal.instructions.append(
            f"Your own revisions have several heads: {shown}. Merge them, or name each line with branch_labels, so that"
            " `alembic revision --head NAME@head` finds it."
        )
        return
    bases = [script for script in theirs if script.down_revision is None]
    chosen = bases[0] if len(bases) == 1 else heads[0]
    edit = _labelled(chosen, label)
    if edit is not None:
        proposal.edits.append(edit)
        return
    proposal.instructions.append(
        f'In {chosen.path}, set branch_labels = ("{label}",), so that `alembic revision --head {label}@head` finds your'
        " branch."
    )


def _first_revision(project: Project, label: str) -> str:
    folder = next((each for each in project.locations if each != ENTRY), "FOLDER")
    return (
        "You have no revision of your own yet. Make the first one like this; otherwise Alembic would put it on top of"
        " ours, in our folder:\n"
        f'    alembic revision --head base --branch-label {label} --version-path {_shown(folder)} -m "..."'
    )


def _shown(folder: str) -> str:
    try:
        relative = os.path.relpath(folder)
    except ValueError:  # another drive
        relative = folder
    return shlex.quote(folder if relative.startswith("..") else relative)


def _precedes(script: Script, other: Script) -> bool:
    return script.revision in _downs(other)


def _are_merged(theirs: Sequence[Script]) -> bool:
    """Whether a revision of theirs follows one of ours."""
    known = {script.revision for script in theirs}
    return any(set(_downs(script)) - known for script in theirs)


def _downs(script: Script) -> tuple[str, ...]:
    down = script.down_revision
    if down is None:
        return ()
    return (down,) if isinstance(down, str) else tuple(down)


def _labelled(script: Script, label: str) -> Edit | None:
    """The revision's file with a label, if there is one plain place for it."""
    path = Path(script.path)
    try:
        before = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    places = list(re.finditer(r"^branch_labels[^=\n]*=[ \t]*(None)(?=[ \t]*(?:#.*)?\r?$)", before, re.MULTILINE))
    if len(places) != 1:
        return None
    start, end = places[0].span(1)
    after = f'{before[:start]}("{label}",){before[end:]}'
    return Edit(path, before, after) if _differs_in_labels_alone(before, after, label) else None


def _differs_in_labels_alone(before: str, after: str, label: str) -> bool:
    def assigned(text: str) -> Iterator[str]:
        for node in ast.parse(text).body:
            yield ast.dump(node)

    changed = [new for old, new in zip(assigned(before), assigned(after), strict=True) if old != new]
    return len(changed) == 1 and f"value='{label}'" in changed[0]
