"""Enqueuing: what it adds to a transaction, how fast many go in at once, and what wake-ups cost."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Column, Engine, MetaData, Table, Text, Uuid, insert
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from uuid_utils.compat import uuid7

from benchmarks.bench import Bench
from benchmarks.jobs import PAYLOAD, Noop
from benchmarks.measuring import Demand, Figures, Row, Side
from brooq_sa import enqueue, enqueue_many


class Base(DeclarativeBase): ...


class Order(Base):
    """The row that a transaction is about."""

    __tablename__ = "bench_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


BARE = Table("job", MetaData(), Column("id", Uuid, primary_key=True), Column("topic", Text), Column("payload", JSONB))
"""The job table as somebody would write it who only wants to insert into it."""

VALUES: dict[str, Any] = json.loads(PAYLOAD)


# One a transaction.


def transactions(bench: Bench) -> Figures:
    """Milliseconds that a transaction takes which writes a row, alone and with a job; each kind in turn."""
    database = bench.database("ours")
    numbers = iter(range(sys.maxsize))

    def bare(session: Session) -> None:
        session.execute(insert(BARE), {"id": uuid7(), "topic": "noop", "payload": VALUES})

    def keyed(session: Session) -> None:
        enqueue(session, Noop(), key=f"order {next(numbers)}")

    def taken(session: Session) -> None:
        enqueue(session, Noop(), key="taken")

    kinds: dict[str, Callable[[Session], object]] = {
        "row": lambda session: None,
        "with INSERT": bare,
        "with job": lambda session: enqueue(session, Noop()),
        "with key": keyed,
        "with taken key": taken,
    }
    with bench.engine(database) as engine:
        Base.metadata.create_all(engine)
        _clear(engine)
        times = _timed_in_turn(engine, kinds, bench.sizes.transactions)
    return {kind: statistics.median(of_kind) * 1_000 for kind, of_kind in times.items()}


def _timed_in_turn(engine: Engine, kinds: dict[str, Callable[[Session], object]], count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    order = list(kinds)
    for _ in range(count + 20):
        order.append(order.pop(0))  # so that no kind always follows the same one
        for kind in order:
            began = time.perf_counter()
            with Session(engine) as session:
                session.add(Order(customer="somebody"))
                session.flush()
                kinds[kind](session)
                session.commit()
            times[kind].append(time.perf_counter() - began)
    return {kind: of_kind[20:] for kind, of_kind in times.items()}


def _clear(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE job")
        connection.exec_driver_sql("TRUNCATE bench_order")
    with Session(engine) as session, session.begin():
        enqueue(session, Noop(), key="taken")


# Many at once.


def many(bench: Bench) -> Figures:
    """Jobs a second by `enqueue_many` in a session's transaction, its commit included."""
    jobs = [Noop() for _ in range(bench.sizes.bulk)]
    with bench.engine(bench.database("ours")) as engine, Session(engine) as session:
        enqueue_many(session, jobs[: len(jobs) // 10])  # a process compiles its statements once
        session.commit()
        session.connection().exec_driver_sql("TRUNCATE job")
        session.commit()
        session.connection()
        began = time.perf_counter()
        enqueue_many(session, jobs)
        session.commit()
        return {"rate": len(jobs) / (time.perf_counter() - began)}


def copying(encode: Callable[[Any], str]) -> Callable[[Bench], Figures]:
    """The same jobs by psycopg's COPY into the same table, ids made and payloads encoded within the time."""

    def measure(bench: Bench) -> Figures:
        values = [dict(VALUES) for _ in range(bench.sizes.bulk)]
        with bench.server.connect(bench.database("ours")) as connection:
            connection.execute("TRUNCATE job")
            connection.autocommit = False
            began = time.perf_counter()
            with connection.cursor().copy("COPY job (id, topic, payload) FROM STDIN") as rows:
                for each in values:
                    rows.write_row((uuid7(), "noop", encode(each)))
            connection.commit()
            return {"rate": len(values) / (time.perf_counter() - began)}

    return measure


def _encode_fast(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Eight processes that commit.

COMMITTER = """
import sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from benchmarks.jobs import Noop
from brooq_sa import enqueue, wake
url, seconds, sends = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "on"
if not sends:
    wake.may_notify = lambda *_: False
engine = create_engine(url)
count = 0
with Session(engine) as session:
    enqueue(session, Noop())
    session.commit()
    print("ready", flush=True)
    sys.stdin.readline()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        enqueue(session, Noop())
        session.commit()
        count += 1
print(count)
"""


def committing(sends: str) -> Callable[[Bench], Figures]:
    """Transactions a second of eight processes together, each enqueuing one job in each."""

    def measure(bench: Bench) -> Figures:
        database, seconds = bench.database("ours"), bench.sizes.commit_seconds
        command = [sys.executable, "-c", COMMITTER, bench.server.url(database), str(seconds), sends]
        with bench.server.connect(database) as listener:
            listener.execute("TRUNCATE job")
            listener.execute('LISTEN "brooq.job"')  # as a worker would
            started = [
                subprocess.Popen(
                    command, env=bench.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                for _ in range(bench.sizes.committers)
            ]
            try:
                return {"rate": _together(started) / seconds, "hints": _heard(listener, sends)}
            finally:
                for process in started:
                    process.kill()
                    process.communicate()

    return measure


def _together(processes: list[subprocess.Popen[str]]) -> int:
    """How often they committed, all beginning at once."""
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("A committing process did not begin.")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(int(process.communicate()[0]) for process in processes)


def _heard(listener: Any, sends: str) -> int:
    heard = sum(1 for _ in listener.notifies(timeout=0.2))
    if (sends == "on") != (heard > 0):
        raise RuntimeError(f"{heard} wake-ups arrived with wake-ups {sends}")
    return heard


TRANSACTIONS = Side("brooq-sa", transactions)
MANY = Side("brooq-sa, enqueue_many", many)
COPY = Side("psycopg, COPY", copying(json.dumps))
FAST_COPY = Side("psycopg, COPY, encoded by msgspec", copying(_encode_fast))
WAKING = Side("wake-ups on", committing("on"))
SILENT = Side("wake-ups off", committing("off"))


def added(of: Any, kind: str) -> float:
    """What a kind of transaction takes beyond the bare row, in terms of what an INSERT adds."""
    alone = of(TRANSACTIONS.name, "row")
    return float((of(TRANSACTIONS.name, kind) - alone) / (of(TRANSACTIONS.name, "with INSERT") - alone))


ROWS = (
    Row(
        "enqueue",
        "enqueue",
        "what one enqueue adds to an ORM transaction that writes one row, against the bare INSERT in the same session",
        (TRANSACTIONS,),
        (
            Demand("without a key", lambda of: added(of, "with job"), 1.25, 1.1, at_most=True),
            Demand("with a key", lambda of: added(of, "with key"), 1.4, 1.2, at_most=True),
            Demand("with a key that is taken", lambda of: added(of, "with taken key"), 2.2, 2.0, at_most=True),
        ),
    ),
    Row(
        "enqueue-many",
        "enqueue-many",
        "`enqueue_many` of 10,000 in the caller's transaction, against psycopg's COPY into the same table",
        (MANY, COPY, FAST_COPY),
        (
            Demand("of COPY", lambda of: of.ratio(MANY.name, COPY.name), 0.6, 0.9),
            Demand("of COPY, encoded by msgspec", lambda of: of.ratio(MANY.name, FAST_COPY.name)),
        ),
        chart="rate",
    ),
    Row(
        "wake-ups",
        "wake-ups",
        "eight processes that commit an enqueue each time, with wake-ups and without",
        (WAKING, SILENT),
        (Demand("of the rate without", lambda of: of.ratio(WAKING.name, SILENT.name), 0.93, 0.98),),
        chart="rate",
    ),
)
