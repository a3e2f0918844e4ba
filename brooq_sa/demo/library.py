"""The input: the modules of the running Python's standard library."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

TESTS = {"test", "tests", "idle_test"}
"""Packages inside the library that are tests of it; some hold files that are no Python on purpose."""


def modules() -> dict[str, Path]:
    """The source file of each module, by the module's name.

    Raises:
        LookupError: this Python has its library in no files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = {
        _name(path, root): path
        for top in sorted(sys.stdlib_module_names)
        for path in [root / f"{top}.py", *sorted((root / top).rglob("*.py"))]
        if path.is_file() and _is_module(path.relative_to(root))
    }
    if not found:
        raise LookupError(f"There are no source files of the standard library in {root}, so there is no work to show.")
    return found


def _is_module(path: Path) -> bool:
    parts = path.with_suffix("").parts
    return all(part.isidentifier() for part in parts) and not TESTS.intersection(parts[:-1])


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
