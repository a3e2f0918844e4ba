"""Runs of the suite by tests: each a process of its own, which cleans up after itself however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from chaos.fleet import TESTS

PATIENCE = 400.0
LAST = 60.0


class Ran(NamedTuple):
    """How a run ended.

    Attributes:
        report: as JSON; empty if it did not come to that.
        output: for people.
    """

    code: int
    report: dict[str, Any]
    output: str

    @property
    def off(self) -> set[str]:
        """What must be nought, and is not."""
        return {what for what, count in self.report["counts"].items() if count}


def run(folder: Path, *arguments: str) -> Ran:
    """``python -m chaos`` with the arguments."""
    file = folder / "report.json"
    command = [sys.executable, "-m", "chaos", "--json", str(file), "--folder", str(folder / "run"), *arguments]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except BaseException:
        process.terminate()  # it ends what it has started
        process.communicate(timeout=LAST)
        raise
    report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    print(output)
    return Ran(process.returncode, report, output)
