"""``python -m benchmarks``: measure the rows of the table. Exits with 1 if a floor does not hold or a side failed."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

from benchmarks import page
from benchmarks.bench import Bench
from benchmarks.conditions import conditions
from benchmarks.measuring import Result, verdicts
from benchmarks.peers.installing import NoPeers, Peers
from benchmarks.running import chosen, measure
from benchmarks.sizes import FULL, QUICK, TINY, Sizes
from benchmarks.table import ROWS

BUSY = 0.7


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = [] if arguments.files and not arguments.only else _measure(arguments)
    measured = {result.row for result in results}
    everything = [*(result for result in page.load(arguments.files) if result.row not in measured), *results]
    if arguments.json:
        page.save(everything, arguments.json)
    if arguments.write:
        page.write(ROWS, everything)
    return _judge(everything)


def _measure(arguments: argparse.Namespace) -> list[Result]:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    load, rows = os.getloadavg()[0], chosen(ROWS, arguments.only)
    if load > BUSY:
        say(f"The load of this machine is {load:.2f} already: what else runs will show in the figures.")
    peers = NoPeers() if arguments.ours else Peers()
    with Bench(_sizes(arguments), peers, postgresql=arguments.pg, slots=arguments.slots) as bench:
        results = list(measure(bench, rows, say))
        where = conditions(bench, _command(sys.argv[1:]), load)
    return [dataclasses.replace(result, conditions=where) for result in results]


def _command(given: list[str]) -> str:
    """How the run was started, less where results were put and taken from."""
    with_files = {"--json", "--from"}
    kept = [part for before, part in pairwise(["", *given]) if not with_files & {before, part}]
    return " ".join(["python -m benchmarks", *kept])


def _sizes(arguments: argparse.Namespace) -> Sizes:
    sizes = TINY if arguments.tiny else QUICK if arguments.quick else FULL
    changes = {"repetitions": arguments.reps, "steady_minutes": arguments.minutes, "drained": arguments.jobs}
    return dataclasses.replace(sizes, **{name: value for name, value in changes.items() if value})


def _judge(results: list[Result]) -> int:
    """Print what came of each demand; the exit code."""
    is_well = True
    by_row = {result.row: result for result in results}
    print()
    for row in ROWS:
        if (result := by_row.get(row.name)) is not None:
            print(*page.said(row, result), sep="\n")
            is_well &= not result.failed
            is_well &= all(verdict.floor_held is not False for verdict in verdicts(row, result))
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this row, or group of rows")
    parser.add_argument("--reps", type=int, help="runs of each side  [default: 5]")
    parser.add_argument("--minutes", type=float, help="how long an old snapshot is held  [default: 10]")
    parser.add_argument("--jobs", type=int, help="in a drain  [default: 100,000]")
    parser.add_argument("--slots", type=int, default=10, help="of our workers in drains  [default: 10]")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; the figures are rough")
    parser.add_argument("--tiny", action="store_true", help="sizes whose figures mean nothing, to see that all runs")
    parser.add_argument("--ours", action="store_true", help="without peers")
    parser.add_argument("--pg", default=os.environ.get("BROOQ_PG", "18"), help="PostgreSQL's version, or its folder")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument(
        "--from",
        type=Path,
        action="append",
        default=[],
        dest="files",
        metavar="JSON",
        help="take the results of an earlier run too; without --only nothing is measured",
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its chart")
    return parser


if __name__ == "__main__":
    sys.exit(main())
