"""The page about watching says all that there is to see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from brooq_sa import events, log
from brooq_sa.metrics import Families
from test_monitoring import families

PACKAGE = Path(log.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "observability.md").read_text(encoding="utf-8")

LOOPS = ("claiming", "settling", "heartbeat", "upkeep", "watchdog", "listener", "metrics", "gauges")


def metric_rows() -> list[str]:
    """The rows of the table of metrics, as the code has them."""
    return [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type}"
        f" | {', '.join(labels_of(family))} | {family.documentation} |"
        for family in families()
    ]


def labels_of(family: Metric) -> list[str]:
    own = Families.of(REGISTRY)
    wrapped = {each._name: each._labelnames for each in vars(own).values() if isinstance(each, MetricWrapperBase)}
    if family.name in wrapped:
        return list(wrapped[family.name])
    return sorted({label for sample in family.samples for label in sample.labels}, reverse=True)


REGISTRY = CollectorRegistry()


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Every call that writes a line of our own."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                logger = node.func.value
                if isinstance(logger, ast.Call) and getattr(logger.func, "id", "") == "get_logger":
                    yield path, node


def names_of(call: ast.Call) -> set[str]:
    """The event names that a call may write."""
    first = call.args[0]
    if isinstance(first, ast.Constant):
        return {str(first.value)}
    assert isinstance(first, ast.JoinedStr)
    ending = first.values[-1]
    assert isinstance(ending, ast.Constant)
    return {f"{loop}{ending.value!s}" for loop in LOOPS}


def written() -> dict[str, set[str]]:
    """Every event name there is, with the levels it is written at."""
    found: dict[str, set[str]] = {}
    for _, call in calls():
        assert isinstance(call.func, ast.Attribute)
        level = {"exception": "error"}.get(call.func.attr, call.func.attr)
        for name in names_of(call):
            found.setdefault(name, set()).add(level)
    for kind in events.Event.__subclasses__():
        shape: Any = log._shape
        name, level, _ = shape(kind)
        found.setdefault(name, set()).add(level)
    return found


def documented() -> dict[str, str]:
    """The page's table of events: each name and its level."""
    table = PAGE.partition("### Every event")[2]
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \|", table, re.MULTILINE)
    return {name: level for names, level in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_event_is_documented() -> None:
    """Each event name is written at one level, and stands on the page with that; no other does (W3)."""
    found = written()
    assert {name: levels for name, levels in found.items() if len(levels) > 1} == {}
    assert {name: level for name, [level] in found.items()} == documented()


def test_events_are_named_alike() -> None:
    """An event's name is lowercase words (W3)."""
    assert [name for name in written() if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)] == []


@pytest.mark.parametrize(
    "path, call",
    [pytest.param(path, call, id=f"{path.stem}-{min(names_of(call))}") for path, call in calls()],
)
def test_each_line_says_whose_it_is(path: Path, call: ast.Call) -> None:
    """A line about a job has its id, topic, attempt and worker; any other has the worker (W3)."""
    given = {keyword.arg for keyword in call.keywords}
    if None in given:  # **about(claim), which has them all
        return
    assert given >= (set(log.ABOUT) if "job_id" in given else {"worker"})


@pytest.mark.parametrize("row", metric_rows())
def test_every_metric_is_documented(row: str) -> None:
    """Each metric stands on the page, with its type, labels and help (W2)."""
    assert f"\n{row}\n" in PAGE


def test_no_other_metric_is_documented() -> None:
    """The page's table has no metric that does not exist."""
    table = PAGE.partition("| metric | type |")[2].partition("\n\n")[0]
    assert len(re.findall(r"^\| `", table, re.MULTILINE)) == len(metric_rows())
