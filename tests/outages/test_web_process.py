"""A worker inside a web process: threads, no signals, started and stopped by the ASGI lifespan."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from apps.embedding import FAST, base_of, job_class, put
from brooq_sa import StopCause, Worker
from databases import Database
from waiting import wait_until

Lifespan = Callable[[], AbstractAsyncContextManager[None]]


def application(lifespan: Lifespan) -> Any:
    """An ASGI application of nothing but its lifespan, as frameworks implement it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        assert (await receive())["type"] == "lifespan.startup"
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
        await send({"type": "lifespan.shutdown.complete"})

    return app


async def serve(app: Any, while_it_runs: Callable[[], Any]) -> list[str]:
    """Do what a server does: start the application, serve, shut it down; what it sent."""
    received: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    sent: list[str] = []
    started = asyncio.Event()

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])
        started.set()

    received.put_nowait({"type": "lifespan.startup"})
    running = asyncio.create_task(app({"type": "lifespan"}, received.get, send))
    await started.wait()
    await asyncio.to_thread(while_it_runs)
    received.put_nowait({"type": "lifespan.shutdown"})
    ticks = 0
    while not running.done():
        await asyncio.sleep(0.01)  # the loop serves others while the worker stops
        ticks += 1
    await running
    sent.append("ticked" if ticks > 10 else "stood still")
    return sent


def lifespan_of(worker: Worker, grace: str) -> Lifespan:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(worker.stop, grace)

    return lifespan


def test_the_lifespan(db: Database) -> None:
    """It lives as long as the application; what outlasts the grace goes back; signals stay the server's (T6)."""
    causes: list[StopCause | None] = []
    started = threading.Event()

    def handler(job: Any, claim: Any) -> None:
        if job.number == 2:
            started.set()
            claim.should_stop.wait(30)
            causes.append(claim.cause)
            raise RuntimeError("stopped")

    job = job_class(handler)
    worker = Worker(db.engine, base_of(job), **FAST)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    ids = []

    def use() -> None:
        ids.append(put(db, job(number=1)))
        wait_until(lambda: db.row(ids[0])["state"] == "done", what="a job being done")
        ids.append(put(db, job(number=2)))
        assert started.wait(10)

    sent = asyncio.run(serve(application(lifespan_of(worker, "500ms")), use))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "ticked"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert causes == [StopCause.SHUTDOWN]
    row = db.row(ids[1])
    assert (row["state"], row["attempts"], row["locked_by"]) == ("pending", 0, None)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("brooq")] == []
