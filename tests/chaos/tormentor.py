"""Carries out the plan, and keeps account of what may have cost somebody a lease."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

import brooq_sa
from chaos.fleet import Fleet, Place
from chaos.jobs import ChaosJob
from chaos.judge import OPERATOR
from chaos.ledger import Trouble, now
from chaos.plan import PROMOTION, Fault
from chaos.proxy import Line, Network
from chaos.servers import Servers
from databases import make_engine

JOB = ChaosJob.__table__
ACTIVE = "('pending', 'failed', 'processing')"
CANCEL_IN_SQL = f"""
    UPDATE job SET state = 'canceled', updated_at = statement_timestamp()
    WHERE state IN {ACTIVE} AND id = ANY (ARRAY(
        SELECT id FROM job WHERE state IN {ACTIVE} ORDER BY state = 'processing' DESC, random() LIMIT 4
    ))
"""
TRIES = 4
"""Times that a fault is tried, a second apart, if another one is in its way."""

TICK = 0.05
STALL = 0.4
"""Seconds late that count as a stall of the whole machine."""


class Tormentor:
    """Does to the fleet, its lines and its servers what the plan says.

    Attributes:
        injected: how many faults of each kind were carried out.
        missed: faults that could not be.
        troubles: what may have cost a lease.
    """

    def __init__(self, fleet: Fleet, database: Servers | str, lines: Mapping[str, Line], seed: int) -> None:
        self.injected: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.troubles: list[Trouble] = []
        self.operated: Counter[str] = Counter()
        self._fleet = fleet
        self._database = database
        self._lines = lines
        self._chance = Random(f"operator {seed}")
        self._server_lock = threading.Lock()
        self._is_over = threading.Event()

    def torment(self, faults: Sequence[Fault], seconds: float) -> None:
        """Carry out the plan; return when it is over and every fault that lasts has ended."""
        began = time.monotonic()
        watch = [threading.Thread(target=self._watch_machine, daemon=True)]
        if isinstance(self._database, Servers):
            watch.append(threading.Thread(target=self._watch_server, daemon=True))
        threads: list[threading.Thread] = []
        for thread in watch:
            thread.start()
        for fault in faults:
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            thread = threading.Thread(target=self._carry_out, args=(fault,), daemon=True)
            thread.start()
            threads.append(thread)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        for thread in threads:
            thread.join()

    def heal(self, network: Network | None) -> None:
        """Make everything well again."""
        if network is not None:
            network.heal()
        self._fleet.wake_all()
        if isinstance(self._database, Servers):
            self._database.lets_nobody_write(False)

    def rest(self) -> None:
        """Stop watching."""
        self._is_over.set()

    def _carry_out(self, fault: Fault) -> None:
        for _ in range(TRIES):
            try:
                if self._act(fault):
                    self.injected[fault.name] += 1
                    return
            except (SQLAlchemyError, psycopg.Error):
                pass  # the database is down, from another fault
            time.sleep(1.0)
        self.missed[fault.name] += 1

    def _act(self, fault: Fault) -> bool:
        match fault.name:
            case "kill worker" | "kill consumer" | "kill producer":
                self._kill(self._place(fault))
            case "end worker":
                return self._end(self._place(fault))
            case "end worker twice":
                return self._end_twice(self._place(fault), fault.length)
            case "stop worker" | "stop consumer":
                self._stop(self._place(fault), fault.length)
            case "step a clock":
                return self._step_clock(self._place(fault))
            case "cut line, delay" | "cut line, silence" | "cut line, reset":
                self._cut(fault)
            case "cancel" | "retry" | "cancel in plain SQL":
                return self._operate(fault.name)
            case _:
                self._hurt_server(fault)
        return True

    def _place(self, fault: Fault) -> Place:
        role = next((role for role in ("consumer", "producer") if role in fault.name), "worker")
        places = self._fleet.of(role)
        places = [place for place in places if place.has_begun and not place.is_asked] or places
        return places[fault.target % len(places)]

    @contextmanager
    def _trouble(self, what: str, who: str | None) -> Iterator[None]:
        began = now()
        # Known from the beginning, in case that the run ends within it.
        index = len(self.troubles)
        self.troubles.append(Trouble(what, who, began, math.inf))
        try:
            yield
        finally:
            self.troubles[index] = Trouble(what, who, began, now())

    # Processes.

    def _kill(self, place: Place) -> None:
        with place.lock:
            self.troubles.append(Trouble("killed", place.who, now(), math.inf))
            self._fleet.kill(place)

    def _end(self, place: Place) -> bool:
        with place.lock:
            if not place.has_begun or place.is_asked:  # a second signal would be another fault
                return False
            self._fleet.send(place, signal.SIGTERM, ends=True)
            return True

    def _end_twice(self, place: Place, pause: float) -> bool:
        who = place.who
        if not self._end(place):
            return False
        time.sleep(pause)
        with place.lock:
            if place.who == who:
                self.troubles.append(Trouble("ended at once", who, now(), math.inf))
                self._fleet.send(place, signal.SIGTERM, ends=True)
        return True

    def _stop(self, place: Place, length: float) -> None:
        with self._trouble("stopped", place.who):
            child = place.child
            self._fleet.send(place, signal.SIGSTOP)
            time.sleep(length)
            if child is not None and child.is_running:
                child.send(signal.SIGCONT)

    def _step_clock(self, place: Place) -> bool:
        with place.lock:
            if place.has_begun:  # before that nobody listens for the signal, which would end the process
                self._fleet.send(place, signal.SIGUSR1)
                return True
            return False

    # Lines.

    def _cut(self, fault: Fault) -> None:
        names = sorted(self._lines)
        name = names[fault.target % len(names)]
        with self._trouble(fault.name, f"chaos-{name}"):  # whichever process is there meanwhile
            self._lines[name].cut(fault.name.split(", ")[1])
            time.sleep(fault.length)
            self._lines[name].heal()

    # The server.

    def _hurt_server(self, fault: Fault) -> None:
        assert isinstance(self._database, Servers)
        servers = self._database
        with self._server_lock, self._trouble(fault.name, None):
            match fault.name.split(", "):
                case ["restart server", mode]:
                    servers.stop(mode)
                    time.sleep(fault.length)
                    servers.start()
                case ["end connections"]:
                    servers.execute(f"SELECT pg_terminate_backend(pid) {self._some_backends(fault)}")
                case ["kill connection's process"]:
                    for (pid,) in servers.execute(f"SELECT pid {self._some_backends(fault)} LIMIT 1"):
                        servers.kill_a_backend(pid)
                    self._await_server(servers)
                case ["read-only"]:
                    servers.lets_nobody_write(True)
                    time.sleep(fault.length)
                    servers.lets_nobody_write(False)
                case [name] if name == PROMOTION:
                    servers.promote(["fast", "immediate"][fault.target % 2])
                case _:
                    raise AssertionError(fault)

    @staticmethod
    def _some_backends(fault: Fault) -> str:
        share = [1.0, 0.5, 0.2][fault.target % 3]
        return f"FROM pg_stat_activity WHERE application_name ~ '^chaos-[wcp]' AND random() < {share}"

    @staticmethod
    def _await_server(servers: Servers) -> None:
        """Return when the server takes connections again, after it has ended them all."""
        time.sleep(0.1)
        while True:
            with suppress(psycopg.Error):
                servers.execute("SELECT 1")
                return
            time.sleep(0.05)

    # The operator.

    def _operate(self, name: str) -> bool:
        is_servers = isinstance(self._database, Servers)
        url = self._database.url(application_name=OPERATOR) if isinstance(self._database, Servers) else self._database
        engine = create_engine(url, poolclass=NullPool) if is_servers else make_engine(url)
        try:
            if name == "cancel in plain SQL":
                with engine.begin() as connection:
                    return connection.execute(text(CANCEL_IN_SQL)).rowcount > 0
            states = ["dead", "canceled", "failed"] if name == "retry" else ["processing", "pending", "failed"]
            move: Callable[..., Any] = brooq_sa.retry if name == "retry" else brooq_sa.cancel
            with engine.connect() as connection:
                query = JOB.select().with_only_columns(JOB.c.id).where(JOB.c.state.in_(states))
                ids = [job_id for (job_id,) in connection.execute(query.limit(200))]
            for job_id in self._chance.sample(ids, min(len(ids), 5)):
                with engine.begin() as connection:
                    answer = move(connection, ChaosJob, job_id)
                self.operated[f"{name}: {answer}"] += 1
            return bool(ids)
        finally:
            engine.dispose()

    # What nobody planned.

    def _watch_machine(self) -> None:
        """Note when the whole machine stands still: then a lease may run out though nobody is to blame."""
        before = now()
        while not self._is_over.wait(TICK):
            if now() - before > STALL:
                self.troubles.append(Trouble("the machine stood still", None, before, now()))
            before = now()

    def _watch_server(self) -> None:
        """Note when the server takes long for the least of writes."""
        assert isinstance(self._database, Servers)
        while not self._is_over.wait(4 * TICK):
            with suppress(psycopg.Error), self._database.connect(application_name="chaos-tormentor") as connection:
                while not self._is_over.wait(4 * TICK):
                    began = now()
                    connection.execute("UPDATE pulse SET number = number + 1")
                    if now() - began > STALL:
                        self.troubles.append(Trouble("the server was slow", None, began, now()))
