"""``python -m benchmarks``: measure the rows of the table. Exits with 1 if a floor did not hold."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measuring import verdicts
from benchmarks.peers.installing import NoPeers, Peers
from benchmarks.running import chosen, measure, number
from benchmarks.sizes import FULL, QUICK, TINY
from benchmarks.table import ROWS


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = chosen(ROWS, arguments.only)
    sizes = TINY if arguments.tiny else QUICK if arguments.quick else FULL
    changed = {"repetitions": arguments.reps, "steady_minutes": arguments.minutes, "drained": arguments.jobs}
    sizes = dataclasses.replace(sizes, **{name: value for name, value in changed.items() if value})
    began = time.monotonic()
    peers = NoPeers() if arguments.ours else Peers()
    with Bench(sizes, peers, postgresql=arguments.pg, slots=arguments.slots) as bench:
        measured = measure(bench, rows, lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True))
    for row in rows:
        for verdict in verdicts(row, measured.samples[row.name]):
            print(
                row.name,
                verdict.demand.what,
                verdict.value and number(verdict.value),
                verdict.floor_held,
                verdict.goal_reached,
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this row, or group of rows")
    parser.add_argument("--reps", type=int, help="runs of each side")
    parser.add_argument("--minutes", type=float, help="how long an old snapshot is held  [default: 10]")
    parser.add_argument("--jobs", type=int, help="in a drain  [default: 100,000]")
    parser.add_argument("--slots", type=int, default=10, help="of our workers in drains  [default: 10]")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; the figures are rough")
    parser.add_argument("--tiny", action="store_true", help="sizes at which figures mean nothing, to see that all runs")
    parser.add_argument("--ours", action="store_true", help="without peers")
    parser.add_argument("--pg", default=os.environ.get("BROOQ_PG", "18"), help="PostgreSQL's version, or its folder")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--from", type=Path, action="append", default=[], dest="files", help="results of earlier runs")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
