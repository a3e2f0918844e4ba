"""Drives huey on a SQLite file: ``PATH COUNT`` enqueues jobs, takes and runs them, and prints both rates."""

from __future__ import annotations

import json
import os
import sys
import time

from huey import SqliteHuey  # type: ignore[import-not-found]  # in the peer's own environment


def main(path: str, count: int) -> None:
    payload = json.loads(os.environ["BENCH_PAYLOAD"])
    queue = SqliteHuey(filename=path, journal_mode="wal", fsync=True, results=False)
    ran = []

    @queue.task()  # type: ignore[untyped-decorator]  # huey has no types
    def mail(given: dict[str, object]) -> None:
        ran.append(given["user"])

    began = time.perf_counter()
    for _ in range(count):
        mail(payload)
    enqueued = time.perf_counter()
    while job := queue.dequeue():
        queue.execute(job)
    ended = time.perf_counter()
    assert len(ran) == count
    print(json.dumps({"rate": count / (ended - enqueued), "enqueue": count / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
