"""What a job costs besides time: write-ahead log, dead rows, heartbeats."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

from sqlalchemy.orm import Session

from benchmarks.bench import Bench, scalar, wait
from benchmarks.drains import drain
from benchmarks.jobs import Long, Noop
from benchmarks.measuring import Demand, Figures, Medians, Row, Side
from benchmarks.queues import Graphile, Ours, Pgqueuer, Queue
from benchmarks.server import LOGGED, Logged
from brooq_sa import enqueue_many

LEASE = 3.0
"""Seconds; it is renewed every third of it."""

_WRITES = "SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables"
_UPDATES = "SELECT sum(n_tup_upd) FROM pg_stat_user_tables"
_HOT = "SELECT sum(n_tup_hot_upd) FROM pg_stat_user_tables"
_WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


# A job's whole life.


def life(queue_of: Callable[[Bench], Queue]) -> Callable[[Bench], Figures]:
    """Bytes of write-ahead log and dead rows a job, from its enqueuing (many at once) to its end."""

    def measure(bench: Bench) -> Figures:
        queue, count = queue_of(bench), bench.sizes.drained
        queue.empty()
        with bench.server.connect(queue.database) as connection:
            # A page that is written for the first time since a checkpoint goes into the log as a whole.
            connection.execute("CHECKPOINT")

            def read(query: str) -> float:
                return float(scalar(connection, query) or 0)

            at_first, writes, updates, hot = read(_WAL), read(_WRITES), read(_UPDATES), read(_HOT)
            queue.enqueue(count)
            connection.execute("ANALYZE")
            enqueued = read(_WAL)
            drain(bench, queue, count, is_calm=False)
            done = read(_WAL)
            # A server's process that has ended has reported what it did.
            wait(lambda: read(_WRITES) - writes >= count, "the count of dead rows")
            return {
                "WAL": (done - at_first) / count,
                "WAL of the enqueue": (enqueued - at_first) / count,
                "WAL of the drain": (done - enqueued) / count,
                "dead rows": (read(_WRITES) - writes) / count,
                "HOT": (read(_HOT) - hot) / max(1.0, read(_UPDATES) - updates),
            }

    return measure


# Heartbeats.


def heartbeat(bench: Bench) -> Figures:
    """Milliseconds and statements of a heartbeat that renews all the running jobs, as the server logs them."""
    database, held = bench.database("held"), bench.sizes.held
    url = f"{bench.server.url(database)}?options={LOGGED.replace(' ', '%20').replace('=', '%3D')}"
    with bench.server.connect(database) as connection, bench.engine(database) as engine:
        connection.execute("TRUNCATE job")
        with Session(engine) as session, session.begin():
            enqueue_many(session, [Long() for _ in range(held)])
        connection.execute("VACUUM ANALYZE")
        command = bench.ours(url, ["long"], slots=held, lease=f"{LEASE:g}s", grace="0s")
        with bench.process(command) as worker:
            wait(lambda: worker.count == held, "the jobs", check=worker.check)
            time.sleep(LEASE / 3)
            start = bench.server.log_end()
            updates, hot = scalar(connection, _UPDATES), scalar(connection, _HOT)
            time.sleep(LEASE / 3 * bench.sizes.beats + LEASE / 6)
            renewals = [statement for statement in bench.server.logged(start) if is_renewal(statement)]
            updates = scalar(connection, _UPDATES) - updates
            hot = scalar(connection, _HOT) - hot
    beats = _beats(renewals)
    return {
        "ms": statistics.median(sum(each.milliseconds for each in beat) for beat in beats),
        "statements": len(renewals) / len(beats),
        "HOT": float(hot / updates) if updates else 0.0,
    }


def is_renewal(statement: Logged) -> bool:
    """Whether it moves the ends of leases and changes nothing else."""
    return re.match(r"(WITH .*)?UPDATE \S+ (AS \w+ )?SET locked_until\s*=", statement.text, re.DOTALL) is not None


def _beats(renewals: list[Logged]) -> list[list[Logged]]:
    """Those that came together."""
    if not renewals:
        raise RuntimeError("No renewal of leases stands in the server's log.")
    beats = [[renewals[0]]]
    for before, renewal in pairwise(renewals):
        if renewal.at - before.at > LEASE / 6:
            beats.append([])
        beats[-1].append(renewal)
    return beats


OURS = Side("brooq-sa", life(lambda bench: Ours(bench, Noop)))
PGQUEUER = Side("pgqueuer", life(Pgqueuer), "pgqueuer")
GRAPHILE = Side("graphile-worker", life(Graphile), "graphile-worker")
HEARTBEAT = Side("brooq-sa", heartbeat)


def _of_pgqueuer(of: Medians, figure: str) -> float:
    return of.ratio(OURS.name, PGQUEUER.name, figure)


ROWS = (
    Row(
        "writes",
        "writes",
        "write-ahead log and dead rows a job, from enqueue to done; pgqueuer and graphile-worker delete the row",
        (OURS, PGQUEUER, GRAPHILE),
        (
            Demand("WAL, of pgqueuer's", lambda of: _of_pgqueuer(of, "WAL"), None, 1.0, at_most=True),
            Demand("dead rows, of pgqueuer's", lambda of: _of_pgqueuer(of, "dead rows"), None, 1.0, at_most=True),
            Demand("WAL", lambda of: of(OURS.name, "WAL"), unit=" bytes"),
            Demand("dead rows", lambda of: of(OURS.name, "dead rows"), unit=""),
        ),
    ),
    Row(
        "heartbeat",
        "heartbeat",
        "heartbeat of 1,000 running jobs",
        (HEARTBEAT,),
        (
            Demand("statements", lambda of: of(HEARTBEAT.name, "statements"), 1.0, None, at_most=True, unit=""),
            Demand("takes", lambda of: of(HEARTBEAT.name, "ms"), 20.0, None, at_most=True, unit=" ms"),
            Demand("share of HOT updates", lambda of: of(HEARTBEAT.name, "HOT"), None, 0.95, unit=""),
        ),
    ),
)
