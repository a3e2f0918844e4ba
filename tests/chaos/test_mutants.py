"""The suite can fail: each mutant is caught, by a short run or by a named test. `chaos.mutants` has the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import judge, mutants
from chaos.fleet import TESTS
from chaos.running import run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are stopped and killed by POSIX signals")

NAMED = {
    "guard-without-attempts": "conformance/test_fencing.py::test_an_earlier_attempt_cannot_settle",
    "settle-by-id": "conformance/test_fencing.py::test_another_worker_cannot_settle",
    "heartbeat-stopped-at-drain": "chaos/test_drain.py::test_leases_are_renewed_to_the_end_of_a_drain",
    "reaper-without-its-state-guard": "conformance/test_upkeep.py::test_the_reaper_takes_processing_jobs_alone",
    "completion-without-fence": "test_claims.py::TestSession::test_a_lost_lease_rolls_back",
}
"""A test that fails for each mutant."""

RUNS = {
    "settle-by-id": (["cut line, delay", "cut line, silence"], {judge.BY_OTHERS, judge.CHANGED, judge.STEPS}),
    "heartbeat-stopped-at-drain": (["end worker"], {judge.NO_REASON}),
    "reaper-without-its-state-guard": (["cancel in plain SQL"], {judge.CHANGED}),
}
"""The faults under which a run catches a mutant, and as what: one of these at the least."""


def test_every_mutant_is_caught_by_something() -> None:
    """No mutant is left without a test that catches it."""
    assert set(NAMED) == set(mutants.MUTANTS)
    assert set(RUNS) <= set(mutants.MUTANTS)


@pytest.mark.parametrize("mutant", list(NAMED))
def test_a_named_test_catches_it(mutant: str, tmp_path: Path) -> None:
    """The test that stands for the guard fails without the guard (I3, I7, I12, T6)."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "chaos.mutants",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-x",
    ]
    ran = subprocess.run(
        [*command, "-k", "sqlite", "--basetemp", str(tmp_path / "tests"), str(TESTS / NAMED[mutant])],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(TESTS), mutants.VARIABLE: mutant},
        cwd=TESTS.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert " failed" in ran.stdout.splitlines()[-1]
    assert "error" not in ran.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", list(RUNS))
def test_a_short_run_catches_it(mutant: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Twenty seconds under the right faults show the mutant, and show nothing when the queue is whole."""
    faults, expected = RUNS[mutant]
    only = [argument for fault in faults for argument in ("--only", fault)]
    arguments = ["--seconds", "20", "--pg", str(pytestconfig.getoption("--pg")), *only]
    for name, extra in [("whole", []), ("mutant", ["--mutant", mutant])]:
        folder = tmp_path / name
        folder.mkdir()
        ran = run(folder, *arguments, *extra)
        assert bool(ran.off & expected) == (name == "mutant"), ran.output
