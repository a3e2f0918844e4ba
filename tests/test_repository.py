"""The repository and the package hold what they should, and nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path

import pytest

import brooq_sa
from processes import Processes

ROOT = Path(__file__).parent.parent
KEPT_AT_THE_TOP = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "alembic",
    "alembic.ini",
    "brooq_sa",
    "docs",
    "pyproject.toml",
    "tests",
    "tox.ini",
}
GENERATED = {"__pycache__", "_build", "brooq.db", "build", "dist"}


def kept_files() -> Iterator[Path]:
    """The files of the repository: what is kept at the top, less what tools leave there."""
    for name in KEPT_AT_THE_TOP:
        top = ROOT / name
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and not GENERATED.intersection(path.relative_to(ROOT).parts):
                yield path


def test_the_alembic_folder_is_no_package() -> None:
    """alembic/ has no __init__.py, with which it would shadow Alembic itself."""
    assert (ROOT / "alembic" / "env.py").is_file()
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_nothing_else_lies_at_the_top() -> None:
    """The top level holds the agreed names; tools may add hidden folders and what they build."""
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert {name for name in found - KEPT_AT_THE_TOP - GENERATED if not name.endswith(".egg-info")} == set()


@pytest.mark.parametrize(
    "pattern",
    [
        r"/(root|home/\w+|Users/\w+)/",
        re.escape(f"{ROOT}/"),  # where the repository lies here, whatever machine this is
        r"[.]pyenv",
        r"://(pypi|files)[.]python",
        r"pythonhosted",
    ],
)
def test_no_path_of_a_machine_is_kept(pattern: str) -> None:
    """No file names a folder of somebody's machine or the host of a package index."""
    own = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in kept_files()
        if path != own
        for match in re.finditer(pattern, path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_the_package_is_whole() -> None:
    """What is installed has the migrations and the marker of its types, beside the modules."""
    package = files("brooq_sa")
    revisions = [entry.name for entry in package.joinpath("migrations/versions").iterdir()]
    assert any(name.endswith(".py") for name in revisions)
    assert package.joinpath("py.typed").is_file()


def test_the_version_has_one_source() -> None:
    """The version that is installed is the package's own, and stands nowhere in pyproject.toml."""
    assert version("brooq-sa") == brooq_sa.__version__
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_command_is_installed() -> None:
    """`brooq-sa` is a command, and what it names can be imported."""
    [command] = entry_points(group="console_scripts", name="brooq-sa")
    assert callable(command.load())


def test_the_reference_has_every_public_name() -> None:
    """The reference page documents each name that `brooq_sa` has, once, and no other."""
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(brooq_sa._LAZY)


WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None
from brooq_sa import *
assert callable(consume) and callable(Worker)
import brooq_sa
assert set(dir(brooq_sa)) >= {*brooq_sa.__all__, "AsyncSession", "sqlite"}
"""


def test_everything_is_imported_without_greenlet(processes: Processes) -> None:
    """`from brooq_sa import *` gives all but the async sessions where greenlet is not installed."""
    child = processes.script(WITHOUT_GREENLET)
    assert (child.wait(), child.output()) == (0, "")
