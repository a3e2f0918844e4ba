"""Where, when and with what a run was made."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psycopg

from benchmarks.bench import Bench
from benchmarks.peers.installing import PEERS
from benchmarks.server import disk
from benchmarks.sizes import FULL, QUICK

OURS = ("brooq-sa", "SQLAlchemy", "psycopg", "msgspec")


def conditions(bench: Bench, command: str, load: float) -> dict[str, str]:
    """For a reader who wants to compare, and for one who wants to repeat it.

    Args:
        load: the system's, just before the run, when it should have been next to nothing.
    """
    with bench.server.connect() as connection:
        server = str(connection.execute("SHOW server_version").fetchone()[0])  # type: ignore[index]  # one row
    peers = [f"{name} {number}" for peer in PEERS if bench.peers.has(peer) for name, number in _of(bench, peer)]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command,
        "sizes": "full" if bench.sizes == FULL else "quick" if bench.sizes == QUICK else "changed by options",
        "processor": f"{_processor()}, {os.cpu_count()} cores for server, workers and measuring alike",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "disk": f"fdatasync of 8 kB takes {_fdatasync() * 1e6:.0f} µs",
        "load before": f"{load:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "PostgreSQL": f"{server}, fsync and synchronous_commit on, shared_buffers 512MB, all else as it comes",
        "SQLite": sqlite3.sqlite_version,
        "Python": platform.python_version(),
        "ours": ", ".join(f"{name} {version(name)}" for name in OURS) + f" ({psycopg.pq.__impl__})",
        "peers": ", ".join(peers) or "none",
    }


def _of(bench: Bench, peer: str) -> list[tuple[str, str]]:
    return list(bench.peers.versions(peer).items())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _fdatasync() -> float:
    """Median seconds to bring one page to the disk."""
    sync = getattr(os, "fdatasync", os.fsync)
    times = []
    with tempfile.TemporaryFile(dir=disk()) as file:
        for number in range(200):
            os.pwrite(file.fileno(), bytes(8192), number * 8192)
            began = time.perf_counter()
            sync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)
