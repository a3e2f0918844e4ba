"""``python -m benchmarks.worker``: ``brooq-sa worker`` for the jobs of the benchmarks, until SIGTERM."""

from __future__ import annotations

import argparse

from benchmarks.jobs import tally
from brooq_sa.cli import main as brooq_sa


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--setting", action="append", default=[], help="name=value, of WorkerSettings")
    given = parser.parse_args()
    options = [f"--url={given.url}", "--log-level=warning", "--http-addr=off"]
    options += [f"--topic={topic}" for topic in given.topics]
    options += [f"--{setting.replace('_', '-')}" for setting in given.setting]
    if given.slots:
        options.append(f"--workers={given.slots}")
    tally()  # opens its file before the first handler, which is what the clock starts with
    brooq_sa(["worker", *options, "benchmarks.jobs:BenchJob"])


if __name__ == "__main__":
    main()
