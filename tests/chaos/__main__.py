"""``python -m chaos``: a run of the suite, and its report. Exits with 1 if anything is off."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from chaos.mutants import MUTANTS
from chaos.plan import PROMOTION, WEIGHTS, plan
from chaos.suite import Options, Report, run


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = Options(
        seconds=arguments.seconds or arguments.minutes * 60,
        seed=secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed,
        workers=arguments.workers,
        is_sqlite=arguments.sqlite,
        only=frozenset(arguments.only),
        mutant=arguments.mutant,
        folder=arguments.folder,
        postgresql=arguments.pg,
    )
    print(f"seed {options.seed}", flush=True)
    if arguments.plan:
        for fault in plan(options.seed, options.seconds, is_sqlite=options.is_sqlite, only=options.only):
            print(fault)
        return 0
    began = time.monotonic()
    report = run(options, say=lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True))
    _print(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(_plain(report)), encoding="utf-8")
    return 1 if report.off else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to torment  [default: 10]")
    parser.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("--seed", type=int, help="of a run to be repeated  [default: chance]")
    parser.add_argument("--workers", type=int, default=3, help="worker processes  [default: 3]")
    parser.add_argument("--sqlite", action="store_true", help="on a SQLite file, with kills and cancels only")
    parser.add_argument("--only", action="append", default=[], choices=[*WEIGHTS, PROMOTION], help="only these faults")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="break the workers in this way")
    parser.add_argument("--pg", default=os.environ.get("BROOQ_PG", "18"), help="PostgreSQL's version, or its folder")
    parser.add_argument("--folder", type=Path, help="for logs and ledgers  [default: a temporary one]")
    parser.add_argument("--json", type=Path, help="a file for the report")
    parser.add_argument("--plan", action="store_true", help="print which faults there would be, and do nothing")
    return parser


def _print(report: Report) -> None:
    options = report.options
    database = "SQLite" if options.is_sqlite else f"PostgreSQL {options.postgresql}"
    print(f"\nchaos on {database}: {options.seconds:g} seconds, seed {options.seed}, {options.workers} workers")
    _section("faults", dict(sorted(report.injected.items())))
    _section("faults that another one kept from happening", report.missed)
    _section("not planned", report.troubles)
    _section("work", report.work)
    _section("must be 0", report.counts)
    for what in report.off:
        print(f"\n{what}, for example:")
        for example in report.examples.get(what, []):
            print(f"    {example}")
    print("\nall is well" if not report.off else f"\nOFF: {', '.join(report.off)}\nlogs: {report.folder}")


def _section(title: str, numbers: Mapping[str, int]) -> None:
    if numbers:
        print(f"\n{title}")
    for name, number in numbers.items():
        print(f"  {number:6}  {name}")


def _plain(report: Report) -> dict[str, object]:
    return {
        "seed": report.options.seed,
        "injected": report.injected,
        "missed": report.missed,
        "work": report.work,
        "counts": report.counts,
        "examples": report.examples,
    }


if __name__ == "__main__":
    sys.exit(main())
