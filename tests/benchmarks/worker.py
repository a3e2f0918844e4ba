"""``python -m benchmarks.worker``: a worker as a user would start it, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import Any

from sqlalchemy import create_engine

from benchmarks.jobs import BenchJob, tally
from brooq_sa import Worker, sqlite


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("topics", nargs="+")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--setting", action="append", default=[], help="name=value, of WorkerSettings")
    given = parser.parse_args()
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in given.setting)
    if given.slots:
        settings["workers"] = given.slots
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    tally()  # opens its file before the first handler, which is what the clock starts with
    engine = create_engine(given.url)
    if engine.dialect.name == "sqlite":
        sqlite.configure(engine)
    with Worker(engine, BenchJob, topics=given.topics, **settings):
        ended.wait()


if __name__ == "__main__":
    main()
