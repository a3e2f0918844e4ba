"""The short forms of the chaos suite; ``tox run -e chaos`` is the long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos.plan import PROMOTION
from chaos.running import run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are stopped and killed by POSIX signals")


def test_a_minute_of_chaos(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Processes, network and server are killed, stopped and cut, and every promise is kept (I1 to I7, I11 to I13)."""
    ran = run(tmp_path, "--seconds", "60", "--pg", str(pytestconfig.getoption("--pg")))
    assert ran.code == 0, ran.output
    assert ran.off == set()
    # Had it done nothing, it would have found nothing.
    injected, work = ran.report["injected"], ran.report["work"]
    assert len(injected) > 12
    assert injected[PROMOTION] == 1
    assert min(work[what] for what in ["jobs committed", "ended done", "effects"]) > 20
    assert work["leases reaped"] > 0


def test_kills_on_sqlite(tmp_path: Path) -> None:
    """Processes on one SQLite file are killed, and every promise is kept (I3, I7, I11, I12, S2)."""
    ran = run(tmp_path, "--seconds", "15", "--sqlite", "--workers", "2")
    assert ran.code == 0, ran.output
    assert ran.off == set()
    assert ran.report["injected"]["kill worker"] > 0
    assert min(ran.report["work"][what] for what in ["jobs committed", "ended done", "effects"]) > 5
