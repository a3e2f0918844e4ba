"""Drives litequeue on a SQLite file: ``PATH COUNT`` enqueues jobs, takes and runs them, and prints both rates."""

from __future__ import annotations

import json
import os
import sys
import time

from litequeue import LiteQueue  # type: ignore[import-not-found]  # in the peer's own environment


def main(path: str, count: int) -> None:
    payload = os.environ["BENCH_PAYLOAD"]
    queue = LiteQueue(path)
    queue.conn.execute("PRAGMA synchronous = FULL")  # it comes with NORMAL, which may lose commits in a power cut
    ran = []
    began = time.perf_counter()
    for _ in range(count):
        queue.put(payload)
    enqueued = time.perf_counter()
    while job := queue.pop():
        ran.append(json.loads(job.data)["user"])
        queue.done(job.message_id)
    ended = time.perf_counter()
    assert len(ran) == count
    print(json.dumps({"rate": count / (ended - enqueued), "enqueue": count / (enqueued - began)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
