"""Drives pgqueuer: ``install URL``, ``enqueue URL COUNT``, ``trickle URL COUNT``, ``worker URL [BATCH]``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import asyncpg  # type: ignore[import-not-found]  # in the peer's own environment
import uvloop  # type: ignore[import-not-found]  # the same
from pgqueuer import PgQueuer  # type: ignore[import-not-found]  # the same
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]  # the same
from pgqueuer.queries import Queries  # type: ignore[import-not-found]  # the same

from benchmarks.peers.pacing import pause
from benchmarks.tally import Tally

TOPIC = "mail"
AT_ONCE = 1_000


async def run(command: str, url: str, *arguments: str) -> None:
    driver = AsyncpgDriver(await asyncpg.connect(url))
    queries = Queries(driver)
    match command:
        case "install":
            await queries.install()
        case "enqueue":
            await enqueue(queries, int(arguments[0]))
        case "trickle":
            await trickle(queries, int(arguments[0]))
        case "worker":
            await work(driver, *map(int, arguments))


async def enqueue(queries: Queries, count: int) -> None:
    payload = os.environ["BENCH_PAYLOAD"].encode()
    while count > 0:
        some = min(count, AT_ONCE)
        await queries.enqueue([TOPIC] * some, [payload] * some, [0] * some)
        count -= some


async def trickle(queries: Queries, count: int) -> None:
    times = []
    for number in range(count):
        await asyncio.sleep(pause(number))
        called = time.time()
        await queries.enqueue(TOPIC, json.dumps({"number": number}).encode(), 0)
        times.append((number, called, time.time()))
    print(json.dumps(times))


async def work(driver: AsyncpgDriver, batch: int | None = None) -> None:
    tally = Tally(Path(os.environ["BENCH_TALLY"]))
    queue = PgQueuer(driver)

    async def noop(job: object) -> None:
        tally.hit()

    async def numbered(job: object) -> None:
        tally.note(json.loads(job.payload)["number"])  # type: ignore[attr-defined]  # pgqueuer's own type

    queue.entrypoint(TOPIC)(noop if batch else numbered)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(**({"batch_size": batch} if batch else {}))


if __name__ == "__main__":
    uvloop.run(run(*sys.argv[1:]))
