"""An old snapshot: while one is held, no dead row can be removed, and those of finished claims lie in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from benchmarks.bench import Bench, Working, wait
from benchmarks.drains import drain, full
from benchmarks.jobs import Long, Noop, Numbered
from benchmarks.latency import Sent, part
from benchmarks.measuring import Demand, Figures, Row, Side
from benchmarks.queues import Ours
from benchmarks.server import Logged
from benchmarks.tally import noted
from brooq_sa import enqueue, enqueue_many

SPARE = 10
"""Slots beside those that long jobs hold."""

LEASE = "15s"
"""So that leases are renewed every five seconds."""

RELEASED = 4 / 3
"""How many times as long as before it we go on after the snapshot, of which the last quarter counts."""


@contextmanager
def old_snapshot(bench: Bench, database: str) -> Iterator[None]:
    """Hold a snapshot, as a long report or a forgotten transaction does."""
    with bench.server.connect(database) as connection:
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM job")
        yield
        connection.rollback()


# A drain.


def draining(*, is_held: bool) -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        count = bench.sizes.drained
        queue = full(bench, Ours(bench, Noop), count)
        bench.calm(queue.database)
        if not is_held:
            return drain(bench, queue, count, is_calm=False)
        with old_snapshot(bench, queue.database):
            return drain(bench, queue, count, is_calm=False)

    return measure


# Jobs that trickle in while others run on.


def steady(bench: Bench) -> Figures:
    """Milliseconds of claims, and from commits to handlers, before, at the end of and after an old snapshot."""
    sizes, database = bench.sizes, bench.database("steady")
    aside, held = sizes.aside_minutes * 60, sizes.steady_minutes * 60
    sampled = 0.1 if held > 100 else 1.0
    url = f"{bench.server.url(database)}?options=-c%20log_transaction_sample_rate%3D{sampled}"
    command = bench.ours(url, ["numbered", "long"], slots=sizes.long + SPARE, lease=LEASE, grace="0s")
    with bench.server.connect(database) as connection:
        connection.execute("TRUNCATE job")
    bench.calm(database)
    with bench.process(command) as worker, bench.engine(database) as engine:
        _begin_long_ones(engine, worker, sizes.long)
        start = bench.server.log_end()
        trickle = _Trickle(engine, sizes.rate)
        began = time.time()
        trickle.on_until(began + aside)
        with old_snapshot(bench, database):
            trickle.on_until(began + aside + held)
        ended = began + aside + held + aside * RELEASED
        trickle.on_until(ended)
        wait(lambda: len(noted(worker.tally)) == len(trickle.sent), "the last job", check=worker.check)
        begun = noted(worker.tally)
        claims = [statement for statement in bench.server.logged(start) if is_claim(statement)]
    spans = {
        "before": (began + aside / 2, began + aside),
        "held": (began + held, began + aside + held),
        "released": (ended - aside * RELEASED / 4, ended),
    }
    figures: Figures = {}
    for name, span in spans.items():
        figures[f"claim p95 {name}"] = _p95(_claims_within(claims, span))
        figures[f"start p95 {name}"] = _p95(_starts_within(trickle.sent, begun, span))
    return figures


def _begin_long_ones(engine: Engine, worker: Working, count: int) -> None:
    with Session(engine) as session, session.begin():
        enqueue_many(session, [Long() for _ in range(count)])
    wait(lambda: worker.count == count, "the long jobs", check=worker.check)


class _Trickle:
    """Puts jobs at an even rate, each in a transaction of its own.

    Attributes:
        sent: what has been put so far.
    """

    def __init__(self, engine: Engine, rate: int) -> None:
        self._engine = engine
        self._apart = 1 / rate
        self._next_at = time.time()
        self.sent: list[Sent] = []

    def on_until(self, end: float) -> None:
        """Go on until a time of the host's clock."""
        with Session(self._engine) as session:
            while time.time() < end:
                time.sleep(max(0.0, self._next_at - time.time()))
                called = time.time()
                enqueue(session, Numbered(number=len(self.sent)))
                session.commit()
                self.sent.append((len(self.sent), called, time.time()))
                self._next_at = max(self._next_at + self._apart, called)


def is_claim(statement: Logged) -> bool:
    """Whether it takes jobs: it locks, and returns their payloads."""
    return "SKIP LOCKED" in statement.text and "payload" in statement.text


def _claims_within(claims: list[Logged], span: tuple[float, float]) -> list[float]:
    return [claim.milliseconds for claim in claims if span[0] <= claim.at < span[1]]


def _starts_within(sent: list[Sent], begun: dict[int, float], span: tuple[float, float]) -> list[float]:
    return [(begun[number] - committed) * 1_000 for number, _, committed in sent if span[0] <= committed < span[1]]


def _p95(values: list[float]) -> float:
    if not values:
        raise RuntimeError("No claim stands in the server's log.")
    return part(sorted(values), 0.95)


FREE = Side("brooq-sa, no old snapshot", draining(is_held=False))
HELD = Side("brooq-sa, old snapshot held", draining(is_held=True))
STEADY = Side("brooq-sa, jobs trickling in", steady)


def _times_before(of: Callable[[str, str], float], when: str) -> float:
    return of(STEADY.name, f"claim p95 {when}") / of(STEADY.name, "claim p95 before")


ROWS = (
    Row(
        "snapshot-drain",
        "snapshot-drain",
        "drain while an old snapshot is held: its last fifth, against that of a drain without",
        (FREE, HELD),
        (Demand("of the rate without", lambda of: of.ratio(HELD.name, FREE.name, "last fifth"), 0.8, 0.95),),
        chart="last fifth",
    ),
    Row(
        "snapshot-steady",
        "snapshot-steady",
        "an old snapshot held for 10 minutes at 200 jobs a second beside 50 long jobs renewing: p95 of claims",
        (STEADY,),
        (
            Demand("at its end, of before", lambda of: _times_before(of, "held"), 3.0, 1.5, at_most=True),
            Demand("a minute after it, of before", lambda of: _times_before(of, "released"), 1.5, 1.1, at_most=True),
        ),
        once=True,
    ),
)
