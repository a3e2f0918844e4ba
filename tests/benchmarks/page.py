"""The page of the documentation: a table of what was demanded, a chart, all figures, and the conditions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

from benchmarks.measuring import Demand, Result, Row, Verdict, verdicts
from benchmarks.running import number

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, CHART = "benchmarks.md", "benchmarks.svg"

INTRODUCTION = """\
# Benchmarks

How fast the queue is, beside its peers and beside what PostgreSQL itself can do. `tox run -e bench` measures it and
writes this page.

All that is held against each other was measured in one run, on one server with `fsync` and `synchronous_commit` on and
its data on a disk: a turn of ours, a turn of each other side, and so on round. The figures are medians. Workers are
processes of their own; the clock of a drain runs from the beginning of the first handler to the last outcome in the
table. Peers have the settings with which they are fastest, and where latency is measured those that they come with, as
we do.

*Held* is a figure that keeps the floor which we promise ourselves. What could not be measured says so.
"""


def save(results: Sequence[Result], path: Path) -> None:
    """Results as JSON, to be read by `load`."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")


def load(paths: Iterable[Path]) -> list[Result]:
    """The results of several runs; of one row, those of the last."""
    found: dict[str, Result] = {}
    for path in paths:
        for each in json.loads(path.read_text(encoding="utf-8")):
            found[each["row"]] = Result(**each)
    return list(found.values())


def write(rows: Sequence[Row], results: Sequence[Result], docs: Path = DOCS) -> None:
    """Write the page and its chart."""
    by_row = {result.row: result for result in results}
    (docs / PAGE).write_text(page(rows, by_row), encoding="utf-8")
    (docs / CHART).write_text(chart(panels(rows, by_row)), encoding="utf-8")


def page(rows: Sequence[Row], results: dict[str, Result]) -> str:
    """The page in Markdown."""
    measured = [(row, results[row.name]) for row in rows if row.name in results]
    missing = [row for row in rows if row.name not in results]
    parts = [
        INTRODUCTION,
        f"![Jobs a second, and milliseconds to start]({CHART})\n",
        *_demanded(measured),
        *_not_measured(missing),
        *_figures(measured),
        *_conditions([result for _, result in measured]),
    ]
    return "\n".join(parts)


def _demanded(measured: list[tuple[Row, Result]]) -> list[str]:
    lines = ["## What is demanded\n", "| what | figure | floor | goal | |", "|---|---|---|---|---|"]
    for row, result in measured:
        what = row.what
        for verdict in verdicts(row, result):
            lines.append(f"| {what} | {figure(verdict)} | {_bounds(verdict.demand)} | {_said(verdict)} |")
            what = ""
    return [*lines, ""]


def _not_measured(missing: list[Row]) -> list[str]:
    if not missing:
        return []
    return ["Not measured in these runs:\n", *(f"- {row.what}" for row in missing), ""]


def figure(verdict: Verdict) -> str:
    """A verdict's figure for people."""
    demand = verdict.demand
    if verdict.value is None:
        return f"{demand.what}: {verdict.why}"
    value = number(verdict.value)
    return f"{value}{demand.unit} {demand.what}" if demand.unit == "×" else f"{demand.what}: {value}{demand.unit}"


def _bounds(demand: Demand) -> str:
    sign = "≤ " if demand.at_most else "≥ "
    return " | ".join("" if bound is None else f"{sign}{bound:g}{demand.unit}" for bound in (demand.floor, demand.goal))


def _said(verdict: Verdict) -> str:
    """Whether floor and goal are met, in a word or two."""
    if verdict.value is None:
        return "not measured"
    if verdict.floor_held is False:
        return "**not held**"
    if verdict.goal_reached is not None:
        return "goal reached" if verdict.goal_reached else "held" if verdict.floor_held else "goal not reached"
    return "held" if verdict.floor_held else ""


def said(row: Row, result: Result) -> list[str]:
    """The verdicts on a row, a line each, for a terminal."""
    return [
        f"{row.name}: {figure(verdict)}  [{_bounds(verdict.demand).replace('|', ';')}]  {_said(verdict)}"
        for verdict in verdicts(row, result)
    ]


def _figures(measured: list[tuple[Row, Result]]) -> list[str]:
    lines = [
        "## All figures\n",
        "| row | side | figure | median | least | most | runs |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row, result in measured:
        for side, samples in result.samples.items():
            lines += [
                f"| {row.name} | {side} | {name} | {number(median(values))} | {number(min(values))} |"
                f" {number(max(values))} | {len(values)} |"
                for name in (samples[0] if samples else ())
                if (values := [sample[name] for sample in samples])
            ]
        lines += [f"| {row.name} | {side} | absent: {_cell(why)} | | | | |" for side, why in result.absent.items()]
        lines += [f"| {row.name} | {side} | failed: {_cell(why)} | | | | |" for side, why in result.failed.items()]
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.strip().splitlines()[-1][:200].replace("|", "\\|")


def _conditions(results: list[Result]) -> list[str]:
    lines = ["## Where and with what\n"]
    seen: list[dict[str, str]] = []
    for result in results:
        if result.conditions not in seen:
            seen.append(result.conditions)
    for each in seen:
        rows = ", ".join(result.row for result in results if result.conditions == each)
        lines += [
            "| | |",
            "|---|---|",
            f"| rows | {rows} |",
            *(f"| {name} | {value} |" for name, value in each.items()),
            "",
        ]
    return lines


# The chart.

WIDTH, BAR, GAP, LABEL = 760, 18, 6, 220
OWN, OTHER = "#2f6fab", "#9aa5b1"

Panel = tuple[str, list[tuple[str, float]]]
"""A title, and bars: label and value."""


def panels(rows: Sequence[Row], results: dict[str, Result]) -> list[Panel]:
    """What the chart shows: one panel a group of drains, and the latencies."""
    titles = {"drain": "no-op jobs a second, drained", "latency": "idle queue: median ms from commit to handler"}
    found: list[Panel] = []
    for group, title in titles.items():
        bars: dict[str, float] = {}
        for row in rows:
            if row.group == group and row.chart and row.name in results:
                for side, samples in results[row.name].samples.items():
                    if values := [sample[row.chart] for sample in samples if row.chart in sample]:
                        bars[side] = median(values)
        if bars:
            found.append((title, list(bars.items())))
    return found


def chart(shown: Sequence[Panel]) -> str:
    """Bars as SVG."""
    drawn: list[str] = []
    y = 0
    for title, bars in shown:
        y += 24
        drawn.append(f'<text x="0" y="{y}" font-weight="bold">{escape(title)}</text>')
        y += GAP
        most = max(value for _, value in bars) or 1.0
        for label, value in bars:
            drawn += _bar(label, value, value / most, y)
            y += BAR + GAP
        y += GAP
    font = 'font-family="sans-serif" font-size="13" fill="#57606a"'
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>', *drawn, "</svg>", ""])


def _bar(label: str, value: float, share: float, y: int) -> list[str]:
    width = share * (WIDTH - LABEL - 80)
    color = OWN if label.startswith("brooq-sa") else OTHER
    middle = y + BAR - 5
    return [
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{color}"/>',
        f'<text x="{LABEL + width + 6:.1f}" y="{middle}">{number(value)}</text>',
    ]
