"""What a worker sends, counted; and drains to count it in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from apps.embedding import job_class, put_many
from brooq_sa import Worker
from brooq_sa.events import Event, JobDone
from databases import Database
from waiting import wait_until

Sent = Counter[str]
"""How many statements were sent, by their first word."""


@contextmanager
def sent() -> Iterator[Sent]:
    """Count the statements of every engine of the process during the block."""
    counted: Sent = Counter()
    lock = threading.Lock()

    def count(_connection: Any, _cursor: Any, sql: str, *_others: Any) -> None:
        with lock:
            counted[sql.split(maxsplit=1)[0]] += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        yield counted
    finally:
        event.remove(Engine, "before_cursor_execute", count)


def writing_transactions(db: Database) -> int:
    """A number that each transaction which writes has raised by one, and this question too."""
    [row] = db.execute("SELECT pg_current_xact_id()::text::bigint AS number")
    return int(row["number"])


class Done:
    """How many jobs a worker has done; keeps nothing of them."""

    def __init__(self, worker: Worker) -> None:
        self._count = 0
        worker.events.subscribe(self)

    def __call__(self, event: Event) -> None:
        self._count += isinstance(event, JobDone)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self._count >= count, timeout=60, what=f"{count} jobs being done")


def noop_class(*, is_async: bool) -> Any:
    """A job class whose handler has nothing to do."""

    def nothing(job: Any, claim: Any) -> None: ...

    async def nothing_async(job: Any, claim: Any) -> None: ...

    return job_class(nothing_async if is_async else nothing)


def put_batches(db: Database, job: Any, count: int) -> None:
    for start in range(0, count, 500):
        put_many(db, [job(number=number) for number in range(start, min(start + 500, count))])
