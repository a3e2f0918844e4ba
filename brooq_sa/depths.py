"""How deep the table is, read rarely and at a bounded cost, however often somebody asks.

Up to `COUNTED` jobs are counted. What is above that is estimated on PostgreSQL from a random few hundred pages, which
is some 20 % off and does not see what is rare; on SQLite the number is then what was counted, and the truth is more.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import SQLAlchemyError

from .engines import connect, sibling
from .sqlite import BEGIN_OPTION
from .statements import depths
from .states import READY, TERMINAL, State

COUNTED = 10_000
"""How many rows are counted of those that wait, of those that are leased, and of those that have ended."""

LEAST_COUNTED = 100
"""How many of a topic's jobs are counted, however many topics share `COUNTED`."""

MOST_TOPICS = 200
"""How many topics have their jobs counted beside those that whoever asks has named; others are left out."""

MOST_HEADS = 2_000
"""How many topics and priorities are looked at in search of the oldest job, beside those of the topics named."""

SAMPLED_PAGES = 300
"""Of the table, for an estimate."""

STATEMENT_TIMEOUT = "5s"
"""After which PostgreSQL gives a statement up, so that a table in a bad way is not made worse."""

PERIOD = 15.0
"""Seconds between two looks, at the least; more, if a look takes longer than a hundredth of them."""

LEAST_WORTH = 100
"""For as many seconds a look that took one is not repeated."""

PATIENCE = 2.0
"""Seconds that whoever asks waits for a look that is under way."""

STALE = 4
"""After as many periods without a new look, there is none rather than an old one."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the table looked like at one moment.

    Attributes:
        jobs: how many, by topic and state.
        oldest: for how many seconds the oldest due job has been due, by topic; topics without one are left out.
        waiting: the topics that have ready jobs, due or not; all that were named, and up to `MOST_HEADS` others.
        estimated: the states some of whose numbers are estimates, or on SQLite only the least that it can be.
        rows: alive in the table, as PostgreSQL estimates; None on SQLite.
        dead_rows: not yet vacuumed, likewise.
        size: of the table with its indexes, in bytes; likewise.
        oldest_transaction: seconds since the oldest one began that holds vacuum back; likewise.
        seconds: that the look took.
    """

    jobs: Mapping[tuple[str, State], int]
    oldest: Mapping[str, float]
    waiting: frozenset[str]
    estimated: frozenset[State]
    rows: int | None = None
    dead_rows: int | None = None
    size: int | None = None
    oldest_transaction: float | None = None
    seconds: float = 0.0


def look(connection: Connection, table: Table, named: Collection[str] = ()) -> Snapshot:
    """Look once, in the connection's transaction.

    Args:
        named: topics that are looked at in any case, however many others there are.
    """
    begun_at = time.monotonic()
    reading = _Reading(connection, table, named)
    reading.look()
    return Snapshot(
        jobs=dict(reading.jobs),
        oldest=reading.oldest,
        waiting=frozenset(reading.waiting),
        estimated=frozenset(reading.cut),
        seconds=time.monotonic() - begun_at,
        **reading.server,
    )


@dataclass
class _Reading:
    """One look, as it comes together."""

    connection: Connection
    table: Table
    named: Collection[str]
    jobs: Counter[tuple[str, State]] = field(default_factory=Counter)
    oldest: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)
    cut: set[State] = field(default_factory=set)
    server: dict[str, Any] = field(default_factory=dict)

    def look(self) -> None:
        is_postgresql = self.connection.dialect.name == "postgresql"
        if is_postgresql:
            self.connection.execute(depths.restrain(), {"timeout": STATEMENT_TIMEOUT})
        self._look_at_heads()
        self._count_ready()
        self._count_processing()
        self._count_finished()
        if is_postgresql:
            pages = self._ask_server()
            if self.cut and pages:
                self._estimate(pages)

    def _look_at_heads(self) -> None:
        heads = self.connection.execute(depths.heads(self.table), {"most": MOST_HEADS}).all()
        self._note(heads)
        if len(heads) >= MOST_HEADS:  # some topics, or priorities of the last, have not come up
            for topic in sorted(topic for topic in self.named if topic not in self.waiting or topic == heads[-1][0]):
                asked = {"of_topic": topic, "most": MOST_HEADS}
                self._note(self.connection.execute(depths.heads_of_topic(self.table), asked).all())

    def _note(self, heads: Iterable[Any]) -> None:
        for topic, seconds in heads:
            self.waiting.setdefault(topic)
            if seconds > 0:
                self.oldest[topic] = max(float(seconds), self.oldest.get(topic, 0.0))

    def _count_ready(self) -> None:
        named = {*self.named}
        topics = sorted(self.waiting, key=lambda topic: topic not in named)
        looked_at = topics[: max(MOST_TOPICS, len(named.intersection(topics)))]
        if looked_at != topics:
            self.cut.update(READY)
        most = max(LEAST_COUNTED, COUNTED // max(1, len(looked_at)))
        for topic in looked_at:
            rows = self.connection.execute(depths.ready(self.table), {"of_topic": topic, "most": most}).all()
            self.jobs.update({(topic, State(state)): count for state, count in rows})
            if sum(count for _, count in rows) >= most:
                self.cut.update(READY)

    def _count_processing(self) -> None:
        rows = self.connection.execute(depths.processing(self.table), {"most": COUNTED}).all()
        self.jobs.update({(topic, State.PROCESSING): count for topic, count in rows})
        if sum(count for _, count in rows) >= COUNTED:
            self.cut.add(State.PROCESSING)

    def _count_finished(self) -> None:
        rows = self.connection.execute(depths.finished(self.table), {"most": COUNTED}).all()
        self.jobs.update({(topic, State(state)): count for topic, state, count in rows})
        if sum(count for *_, count in rows) >= COUNTED:
            self.cut.update(TERMINAL)

    def _ask_server(self) -> int:
        """What the server knows of the table; how many pages it has."""
        row = self.connection.execute(depths.size(), {"named": _name_of(self.table, self.connection)}).first()
        age = self.connection.execute(depths.oldest_transaction()).scalar()
        self.server["oldest_transaction"] = float(age or 0.0)
        if row is None:
            return 0
        pages, self.server["size"], self.server["rows"], self.server["dead_rows"] = row
        return int(pages)

    def _estimate(self, pages: int) -> None:
        """Put estimates in place of the counts that were cut short, where they are larger."""
        share = min(100.0, 100.0 * SAMPLED_PAGES / pages)
        for topic, state, count in self.connection.execute(depths.sample(self.table), {"share": share}):
            if state in self.cut:
                about = topic, State(state)
                self.jobs[about] = max(self.jobs[about], round(count * 100 / share))


def _name_of(table: Table, connection: Connection) -> str:
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = translated.get(table.schema, table.schema)
    return ".".join(quote(part) for part in (schema, table.name) if part)


class Depths:
    """The last look at a table, not older than need be.

    `turn`, called again and again by a thread of its own, looks when somebody has asked since the last look and that is
    old enough; whoever asks gets what there is, and waits a moment for a look that is due. So a database that is out of
    reach holds up no reader, and a hundred readers a second are no load to it.

    Args:
        engine: on whose database the table is; the connection is apart from its pool.
    """

    def __init__(self, engine: Engine, table: Table, *, period: float = PERIOD) -> None:
        self.table = table
        self._engine = sibling(engine)
        self._engine.hide_parameters = True
        self._period = period
        self._changed = threading.Condition()
        self._snapshot: Snapshot | None = None
        self._looked_at = 0.0
        self._named: frozenset[str] = frozenset()
        self._is_wanted = False
        self._is_closed = False

    def current(self, named: Iterable[str] = (), *, patience: float = PATIENCE) -> Snapshot | None:
        """The last look; None if there was none for a while.

        Args:
            named: topics that looks from now on take in, however many others there are.
        """
        with self._changed:
            self._named |= frozenset(named)
            if self._is_due():
                self._is_wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._is_wanted or self._is_closed, patience)
            is_stale = time.monotonic() - self._looked_at > STALE * self._pause()
            return None if is_stale else self._snapshot

    def turn(self) -> float:
        """Wait until somebody asks, and look.

        Raises:
            SQLAlchemyError: what the database said.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_wanted or self._is_closed)
            if self._is_closed:
                return 60.0
        try:
            self._look()
        finally:
            with self._changed:
                self._is_wanted = False
                self._changed.notify_all()
        return 0.0

    def close(self) -> None:
        """Let `turn` return."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def dispose(self) -> None:
        """Close the connection, after the last turn."""
        with suppress(SQLAlchemyError):
            self._engine.dispose()

    def _is_due(self) -> bool:
        return self._snapshot is None or time.monotonic() - self._looked_at >= self._pause()

    def _pause(self) -> float:
        taken = 0.0 if self._snapshot is None else self._snapshot.seconds
        return max(self._period, taken * LEAST_WORTH)

    def _look(self) -> None:
        # Nothing is written, so on SQLite it need not wait for whoever writes.
        with connect(self._engine).execution_options(**{BEGIN_OPTION: "DEFERRED"}) as connection:
            snapshot = look(connection, self.table, self._named)
        with self._changed:
            self._snapshot, self._looked_at = snapshot, time.monotonic()
