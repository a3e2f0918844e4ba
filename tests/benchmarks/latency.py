"""An idle queue: how long from a commit to the handler's beginning, and what being idle costs the database."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from benchmarks.bench import Bench, wait
from benchmarks.jobs import Numbered
from benchmarks.measuring import Demand, Figures, Medians, Row, Side
from benchmarks.peers.pacing import pause
from benchmarks.queues import Graphile, Pgqueuer
from benchmarks.server import LOGGED
from benchmarks.tally import noted
from brooq_sa import enqueue

Sent = tuple[int, float, float]
"""A job's number, when its enqueuing was begun and when it was committed."""


def ours(bench: Bench) -> Figures:
    """Two slots, and every setting as it comes."""
    database = bench.database("ours")
    with bench.server.connect(database) as connection:
        connection.execute("TRUNCATE job")
    with (
        bench.engine(database) as engine,
        bench.process(bench.ours(bench.server.url(database), ["numbered"])) as worker,
    ):
        _put(engine, -1)
        wait(lambda: worker.count, "the first job", check=worker.check)
        time.sleep(bench.sizes.warm_up)
        sent = [_put(engine, number) for number in range(bench.sizes.trickled)]
        wait(lambda: worker.count > len(sent), "the last job", check=worker.check)
        return waits(sent, noted(worker.tally))


def _put(engine: Engine, number: int) -> Sent:
    time.sleep(pause(max(number, 0)))
    with Session(engine) as session:
        called = time.time()
        enqueue(session, Numbered(number=number))
        session.commit()
        return number, called, time.time()


def theirs(peer: type[Pgqueuer] | type[Graphile]) -> Callable[[Bench], Figures]:
    """A peer whose every setting is as it comes."""

    def measure(bench: Bench) -> Figures:
        queue = peer(bench)
        queue.empty()
        command = [part for part in queue.worker() if part not in queue.best]
        address = bench.server.address(queue.database)
        with bench.process(command) as worker:
            bench.peers.run(peer.name, "trickle", address, "1")
            wait(lambda: worker.count, "the first job", check=worker.check)
            time.sleep(bench.sizes.warm_up)
            sent = json.loads(bench.peers.run(peer.name, "trickle", address, str(bench.sizes.trickled)))
            wait(lambda: worker.count > len(sent), "the last job", check=worker.check)
            begun = noted(worker.tally)
        # The job of the warm-up had the number 0 too.
        return waits([tuple(each) for each in sent if each[0] > 0], begun)

    return measure


def waits(sent: list[Sent], begun: dict[int, float]) -> Figures:
    """Milliseconds from the commit's return, and from the call, to the handler's beginning."""
    waited = sorted((begun[number] - committed) * 1_000 for number, _, committed in sent)
    from_call = sorted((begun[number] - called) * 1_000 for number, called, _ in sent)
    return {
        "p50": part(waited, 0.5),
        "p99": part(waited, 0.99),
        "p50 from call": part(from_call, 0.5),
        "p99 from call": part(from_call, 0.99),
    }


def part(ordered: list[float], share: float) -> float:
    """The value below which a share of them lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def idle(bench: Bench) -> Figures:
    """Statements a second of a worker with nothing to do, as the server logs them."""
    database = bench.database("ours")
    with bench.server.connect(database) as connection:
        connection.execute("TRUNCATE job")
    url = f"{bench.server.url(database)}?options={LOGGED.replace(' ', '%20').replace('=', '%3D')}"
    with bench.process(bench.ours(url, ["numbered"])) as worker, bench.engine(database) as engine:
        _put(engine, 0)
        wait(lambda: worker.count, "the first job", check=worker.check)
        time.sleep(bench.sizes.warm_up)
        start = bench.server.log_end()
        time.sleep(bench.sizes.idle_seconds)
        statements = list(bench.server.logged(start))
    return {"statements": len(statements) / bench.sizes.idle_seconds}


OURS = Side("brooq-sa", ours)
IDLE = Side("brooq-sa, idle", idle)
PGQUEUER = Side("pgqueuer", theirs(Pgqueuer), "pgqueuer")
GRAPHILE = Side("graphile-worker", theirs(Graphile), "graphile-worker")


def _of_the_best(of: Medians, figure: str) -> float:
    return of(OURS.name, figure) / min(of(side.name, figure) for side in (PGQUEUER, GRAPHILE))


ROWS = (
    Row(
        "latency",
        "latency",
        "idle queue, commit to handler start, every setting as it comes",
        (OURS, IDLE, PGQUEUER, GRAPHILE),
        (
            Demand("p50", lambda of: of(OURS.name, "p50"), 2.5, 1.5, at_most=True, unit=" ms"),
            Demand("p99", lambda of: of(OURS.name, "p99"), 8.0, 4.0, at_most=True, unit=" ms"),
            Demand("idle", lambda of: of(IDLE.name, "statements"), 2.0, None, at_most=True, unit=" statements/s"),
            Demand("of the best peer's p50", lambda of: _of_the_best(of, "p50"), None, 1.0, at_most=True),
            Demand("of the best peer's p99", lambda of: _of_the_best(of, "p99"), None, 1.0, at_most=True),
        ),
        chart="p50",
    ),
)
