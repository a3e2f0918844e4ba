"""The benchmark suite runs. How fast anything is, is no matter of tests: `tox run -e bench` says it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import page
from benchmarks.bench import Bench
from benchmarks.measuring import Demand, Result, Row, Side, verdicts
from benchmarks.peers.installing import NoPeers
from benchmarks.running import chosen, measure
from benchmarks.sizes import TINY
from benchmarks.table import ROWS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes are stopped by POSIX signals")

GROUPS = list(dict.fromkeys(row.group for row in ROWS))


@pytest.fixture(scope="module")
def bench(pytestconfig: pytest.Config) -> Iterator[Bench]:
    with Bench(TINY, NoPeers(), postgresql=str(pytestconfig.getoption("--pg"))) as bench:
        yield bench


@pytest.mark.parametrize("group", GROUPS)
def test_each_row_gives_figures(bench: Bench, group: str) -> None:
    """Every side of ours gives its figures, and every peer that is not there is said to be absent."""
    rows = chosen(ROWS, [group])
    results = {result.row: result for result in measure(bench, rows)}
    for row in rows:
        result = results[row.name]
        assert result.failed == {}
        assert set(result.absent) == {side.name for side in row.sides if side.peer}
        for side in row.sides:
            figures = [figure for sample in result.samples[side.name] for figure in sample.values()]
            assert figures or side.peer
            assert all(math.isfinite(figure) for figure in figures)


def measured(value: float) -> Result:
    return Result("row", {"ours": [{"rate": value}] * 3 + [{"rate": 1e9}], "theirs": [{"rate": 10.0}]})


def row(*, at_most: bool = False) -> Row:
    sides = (Side("ours", lambda _: {}), Side("theirs", lambda _: {}, "peer"))
    demand = Demand("of theirs", lambda of: of.ratio("ours", "theirs"), 2.0, 3.0, at_most)
    return Row("row", "drain", "what", sides, (demand,), chart="rate")


@pytest.mark.parametrize(
    "value, at_most, expected",
    [
        (19.0, False, "**not held**"),
        (20.0, False, "held"),
        (30.0, False, "goal reached"),
        (31.0, True, "**not held**"),
        (20.0, True, "goal reached"),
    ],
)
def test_a_floor_that_does_not_hold_is_said(value: float, at_most: bool, expected: str) -> None:
    """The page says of each demand whether its floor holds and its goal is reached, by the medians."""
    text = page.page([row(at_most=at_most)], {"row": measured(value)})
    assert f"| {value / 10:.2f}× of theirs | " in text
    assert f"| {expected} |" in text


def test_what_is_absent_is_said() -> None:
    """A peer that is not there, a side that failed and a row that was not measured are each named."""
    without = Result("row", {"ours": [{"rate": 1.0}], "theirs": []}, {"theirs": "no network"}, {"ours": "Oops: 1"})
    [verdict] = verdicts(row(), without)
    assert verdict.value is None
    text = page.page([row(), Row("other", "drain", "something else", (), ())], {"row": without})
    assert "| not measured |" in text
    assert "absent: no network" in text
    assert "failed: Oops: 1" in text
    assert "- something else" in text


def test_partial_runs_are_put_together(tmp_path: Path) -> None:
    """Of a row that several runs have measured, the last counts."""
    page.save([measured(1.0)], tmp_path / "first.json")
    page.save([measured(2.0)], tmp_path / "second.json")
    assert page.load([tmp_path / "first.json", tmp_path / "second.json"]) == [measured(2.0)]


def test_the_chart_is_an_image() -> None:
    """The chart is well-formed, and the longest bar is the largest figure's."""
    drawn = ET.fromstring(page.chart(page.panels([row()], {"row": measured(20.0)})))
    widths = [float(bar.attrib["width"]) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == 2
