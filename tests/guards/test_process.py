"""What jobs cost the process that runs them, in numbers that do not hang on how fast the machine is."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc

import pytest

from apps.embedding import FAST, base_of
from brooq_sa import Worker
from databases import Database
from guards.watching import Done, noop_class, put_batches
from waiting import wait_until

KINDS = pytest.mark.parametrize("is_async", [True, False], ids=["async def", "def"])


@KINDS
def test_no_cyclic_garbage(pg: Database, is_async: bool) -> None:
    """A job leaves nothing to the garbage collector, whose full collections would otherwise stop all slots."""
    found = [_garbage_of(pg, count, is_async=is_async) for count in (500, 1500)]
    assert found[1] - found[0] <= 50, found  # of a thousand jobs more


def _garbage_of(pg: Database, count: int, *, is_async: bool) -> int:
    """How many objects only the collector could free, after a drain of so many jobs."""
    job = noop_class(is_async=is_async)
    put_batches(pg, job, count)
    worker = Worker(pg.engine, base_of(job), **FAST)
    done = Done(worker)
    gc.collect()
    gc.disable()
    try:
        with worker:
            done.wait_for(count)
        return gc.collect()
    finally:
        gc.enable()


@KINDS
def test_memory_is_flat(pg: Database, is_async: bool) -> None:
    """A worker that has run 2,000 jobs has all the memory that it needs for 2,000 more."""
    job = noop_class(is_async=is_async)
    put_batches(pg, job, 2000)
    worker = Worker(pg.engine, base_of(job), **FAST)
    done = Done(worker)
    tracemalloc.start()
    try:
        with worker:
            done.wait_for(2000)
            before = _traced()
            put_batches(pg, job, 2000)
            done.wait_for(4000)
            # The threads may still be about to let go of the last batch.
            wait_until(lambda: _traced() - before <= 2000 * EACH, what="the memory of the jobs being free again")
    finally:
        tracemalloc.stop()


EACH = 50
"""Bytes; a single id kept of each job would be more."""


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@KINDS
def test_threads(pg: Database, is_async: bool) -> None:
    """A worker has a thread for each part, and one for each slot of def handlers or one for all async def ones."""
    job = noop_class(is_async=is_async)
    put_batches(pg, job, 1000)
    others = set(threading.enumerate())
    worker = Worker(pg.engine, base_of(job), **FAST | {"workers": 8})
    done = Done(worker)
    with worker:
        counts = []
        for total in (100, 1000):
            done.wait_for(total)
            counts.append(len(set(threading.enumerate()) - others))
    parts = len(worker._loops)
    assert max(counts) <= parts + (1 if is_async else 8), counts


def modules_after(statement: str) -> set[str]:
    """What is imported in a fresh interpreter after the statement."""
    asked = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    "unneeded",
    ["alembic", "click", "greenlet", "prometheus_client", "psycopg", "rich", "sqlalchemy.ext.asyncio", "structlog.dev"],
)
def test_imports(unneeded: str, imported: set[str]) -> None:
    """An application that enqueues imports no more than it needs."""
    assert unneeded not in imported


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return modules_after("import brooq_sa")
