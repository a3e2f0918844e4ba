"""Drains: how fast a queue that is full becomes empty.

The clock runs from the first handler's beginning to when the last job is done in the table; what a worker needs to
start is not counted.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from benchmarks.bench import START, Bench, Working
from benchmarks.jobs import SHORT, Mail, Noop, NoopInThread, Short, ShortInThread
from benchmarks.measuring import Demand, Figures, Medians, Row, Side
from benchmarks.queues import Graphile, Ours, Pgqueuer, Queue

GLANCE = 0.01
STRAGGLERS = 64
"""How far a tally may be behind that threads write into."""


def drain(bench: Bench, queue: Queue, count: int, *, processes: int = 1, is_calm: bool = True) -> Figures:
    """Work off `count` jobs that are in the queue, and nothing else is."""
    if is_calm:
        bench.calm(queue.database)
    with ExitStack() as stack:
        paused = queue if isinstance(queue, Ours) and processes > 1 else None
        if paused:  # or the first would be at work while the others start
            paused.pause()
        workers = [stack.enter_context(bench.process(queue.worker())) for _ in range(processes)]
        if paused:
            paused.resume_for(processes)
        curve = watch(workers, count - STRAGGLERS)
        ended = _wait_until_done(queue)
        memory = max(worker.memory for worker in workers)
        first = min(worker.first for worker in workers if worker.count)
    return {"rate": count / (ended - first), "memory": memory, "last fifth": last_fifth(curve, count, ended)}


def watch(workers: list[Working], enough: int) -> list[tuple[float, int]]:
    """When how many handlers had begun, until it was enough."""
    curve: list[tuple[float, int]] = []
    last_progress, count = time.monotonic(), 0
    while not curve or count < enough:
        time.sleep(GLANCE)
        for worker in workers:
            worker.check()
        before, count = count, sum(worker.count for worker in workers)
        curve.append((time.time(), count))
        if count > before:
            last_progress = time.monotonic()
        elif time.monotonic() - last_progress > START:
            raise RuntimeError(f"{START:g} seconds passed without progress, {count} of {enough}: {workers[0].output()}")
    return curve


def last_fifth(curve: list[tuple[float, int]], count: int, ended: float) -> float:
    """The rate at which the last fifth of the jobs were worked off."""
    begun, already = next((moment for moment in curve if moment[1] >= count * 0.8), curve[-1])
    return (count - already) / (ended - begun) if ended > begun else 0.0


def _wait_until_done(queue: Queue) -> float:
    deadline = time.monotonic() + START
    while left := queue.left():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{left} jobs of {queue.database} were never done")
        time.sleep(GLANCE)
    return time.time()


def full(bench: Bench, queue: Queue, count: int) -> Queue:
    """The queue with so many jobs in it, and nothing else."""
    queue.empty()
    queue.enqueue(count)
    return queue


# Our side and the peers'.


def ours(job: type[Mail], *, processes: int = 1) -> Callable[[Bench], Figures]:
    """A drain of jobs of a class."""

    def measure(bench: Bench) -> Figures:
        count = bench.sizes.drained
        return drain(bench, full(bench, Ours(bench, job), count), count, processes=processes)

    return measure


def theirs(peer: type[Pgqueuer] | type[Graphile]) -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        count = bench.sizes.drained
        return drain(bench, full(bench, peer(bench), count), count)

    return measure


# The raw limit.

CLAIM = """
    UPDATE job SET state = 'processing', attempts = attempts + 1, locked_by = %s,
        locked_until = statement_timestamp() + interval '120 s', updated_at = statement_timestamp()
    WHERE id = ANY (ARRAY (
        SELECT id FROM job WHERE topic = 'noop' AND priority = 0 AND state IN ('pending', 'failed')
            AND available_at <= statement_timestamp()
        ORDER BY available_at, id LIMIT {batch} FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, topic, payload, attempts
"""
SETTLE = """
    UPDATE job SET state = 'done', locked_by = NULL, locked_until = NULL, updated_at = statement_timestamp()
    WHERE id = ANY (%s) AND state = 'processing' AND locked_by IS NOT DISTINCT FROM %s AND attempts = %s
    RETURNING id
"""
RAW_BATCHES = (100, 500, 1_000)


def raw(batch: int) -> Callable[[Bench], Figures]:
    """The same jobs, taken and settled by bare statements: binary, prepared, fenced, and nothing around them."""

    def measure(bench: Bench) -> Figures:
        count = bench.sizes.drained
        queue = full(bench, Ours(bench, Noop), count)
        bench.calm(queue.database)
        with bench.server.connect(queue.database) as connection:
            connection.prepare_threshold = 0
            with connection.cursor(binary=True) as cursor:
                began = time.time()
                done = _work_off(cursor, CLAIM.format(batch=batch).encode())
                ended = time.time()
        if done != count:
            raise RuntimeError(f"{done} of {count} jobs were done")
        return {"rate": count / (ended - began)}

    return measure


def _work_off(cursor: psycopg.Cursor[tuple[object, ...]], claim: bytes) -> int:
    done = 0
    while jobs := cursor.execute(claim, ["raw"]).fetchall():
        cursor.execute(SETTLE, [[job[0] for job in jobs], "raw", 1])
        done += len(cursor.fetchall())
    return done


# Short handlers.


def short(job: type[Mail]) -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        count = bench.sizes.short
        return drain(bench, full(bench, Ours(bench, job, slots=10), count), count)

    return measure


def plain_loop(bench: Bench) -> Figures:
    """What ten asyncio tasks do that only sleep: an event loop rounds sleeps up."""
    numbers = itertools.count()

    async def slot() -> None:
        while next(numbers) < bench.sizes.short:
            await asyncio.sleep(SHORT)

    async def slots() -> None:
        await asyncio.gather(*(slot() for _ in range(10)))

    began = time.time()
    asyncio.run(slots())
    return {"rate": bench.sizes.short / (time.time() - began)}


OURS_ASYNC = Side("brooq-sa, async def", ours(Noop))
OURS_THREADS = Side("brooq-sa, def in threads", ours(NoopInThread))
OURS_TWO = Side("brooq-sa, two processes", ours(Noop, processes=2))
PGQUEUER = Side("pgqueuer", theirs(Pgqueuer), "pgqueuer")
GRAPHILE = Side("graphile-worker", theirs(Graphile), "graphile-worker")
RAW = tuple(Side(f"psycopg, {batch} at a time", raw(batch)) for batch in RAW_BATCHES)
SHORT_ASYNC = Side("brooq-sa, async def", short(Short))
SHORT_THREADS = Side("brooq-sa, def in threads", short(ShortInThread))
PLAIN_LOOP = Side("ten bare asyncio tasks", plain_loop)

IDEAL = 10 / SHORT


def _bare(of: Medians) -> float:
    """The rate of the bare loop at its best batch."""
    return max(of(side.name) for side in RAW)


ROWS = (
    Row(
        "drain-async",
        "drain",
        "drain of no-op jobs with payloads of 100 bytes, one process, `async def` handlers",
        (OURS_ASYNC, PGQUEUER, GRAPHILE),
        (
            Demand("of pgqueuer", lambda of: of.ratio(OURS_ASYNC.name, PGQUEUER.name), 1.5, 2.0),
            Demand("of graphile-worker", lambda of: of.ratio(OURS_ASYNC.name, GRAPHILE.name), None, 1.0),
        ),
        chart="rate",
    ),
    Row(
        "drain-threads",
        "drain",
        "the same, `def` handlers in threads",
        (OURS_THREADS, PGQUEUER),
        (Demand("of pgqueuer", lambda of: of.ratio(OURS_THREADS.name, PGQUEUER.name), 1.4, 2.0),),
        chart="rate",
    ),
    Row(
        "drain-raw",
        "drain",
        "the same against a bare psycopg loop that claims and settles, at its best batch",
        (OURS_ASYNC, OURS_THREADS, *RAW),
        (
            Demand("of the bare loop, async def", lambda of: of(OURS_ASYNC.name) / _bare(of), 0.8, 1.0),
            Demand("of the bare loop, def in threads", lambda of: of(OURS_THREADS.name) / _bare(of), 0.8, 1.0),
        ),
        chart="rate",
    ),
    Row(
        "two-processes",
        "drain",
        "the same, `async def`, two processes against one",
        (OURS_ASYNC, OURS_TWO),
        (Demand("of one process", lambda of: of.ratio(OURS_TWO.name, OURS_ASYNC.name), 1.3, 1.6),),
        chart="rate",
    ),
    Row(
        "short-handlers",
        "short",
        "ten slots and handlers of 5 ms, against the ideal of 2,000 a second",
        (SHORT_ASYNC, SHORT_THREADS, PLAIN_LOOP),
        (
            Demand("of the ideal, def in threads", lambda of: of(SHORT_THREADS.name) / IDEAL, 0.93, 0.98),
            Demand("of the ideal, async def", lambda of: of(SHORT_ASYNC.name) / IDEAL, 0.93, 0.98),
            Demand("of ten bare asyncio tasks", lambda of: of.ratio(SHORT_ASYNC.name, PLAIN_LOOP.name)),
        ),
        chart="rate",
    ),
)
