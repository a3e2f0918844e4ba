"""A process that puts jobs: commits and rolls back, uses savepoints, keys, delays, priorities and many at once."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from brooq_sa import NewJob, Session
from chaos import jobs, ledger
from databases import make_engine

STARTED = "producer_started"

KEYS = 6
"""How many keys the producers fight over at any time; now and then all of them are new."""

WEIGHTS: dict[Callable[..., Any], float] = {
    jobs.Quick: 30,
    jobs.Slow: 3,
    jobs.Failing: 8,
    jobs.Late: 3,
    jobs.Preserving: 4,
    jobs.GivingUp: 2,
    jobs.Writing: 12,
    jobs.WritingAsync: 12,
    jobs.Chaining: 5,
    jobs.ChainingAndWriting: 6,
    jobs.Overlong: 2,
    jobs.OverlongAsync: 2,
    jobs.Swallowing: 1,
    jobs.Deaf: 0.7,
    jobs.Hogging: 0.3,
    jobs.Pulled: 3,
}


def run(url: str, seed: str, rate: str) -> None:
    """Put jobs in `rate` transactions a second, in an order that follows from the seed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # One that begins again after a kill goes on, and does not put the same once more.
    producer = Producer(make_engine(url), Random(f"{seed} {os.environ[ledger.NAME]}"))
    period = 1 / float(rate)
    while True:
        if producer.transact():
            time.sleep(period)
        else:
            time.sleep(0.2)


class Producer:
    def __init__(self, engine: Engine, chance: Random) -> None:
        self._engine = engine
        self._chance = chance
        self._book = ledger.own()
        self._was_reached = False
        self._number = 0

    def transact(self) -> bool:
        """One transaction; whether the database took part in it."""
        batch = secrets.token_hex(8)
        wants_commit = self._chance.random() < 0.8
        # Drawn before the database can fail, so that what is put follows from the seed.
        steps = [self._step() for _ in range(self._chance.choice([1, 1, 1, 2, 3]))]
        session = Session(self._engine)
        try:
            for step in steps:
                step(session, batch)
        except DBAPIError:
            self._end(session, batch, ledger.ROLLED_BACK)
            return False
        if not wants_commit:
            self._end(session, batch, ledger.ROLLED_BACK)
            return True
        try:
            session.commit()
        except DBAPIError as error:
            # An answer that says no is one; none at all leaves it open.
            self._end(session, batch, ledger.IN_DOUBT if error.connection_invalidated else ledger.ROLLED_BACK)
            return False
        self._end(session, batch, ledger.COMMITTED)
        return True

    def _end(self, session: Session, batch: str, answer: str) -> None:
        self._book.answered(batch, answer)
        try:
            session.close()
        except DBAPIError:
            session.invalidate()
        if not self._was_reached and answer == ledger.COMMITTED:
            self._was_reached = True
            print(STARTED, flush=True)

    def _step(self) -> Callable[[Session, str], None]:
        match self._chance.choices(["one", "keyed", "many", "savepoint"], [10, 3, 2, 3]):
            case ["one"]:
                job, options = self._job(), self._options()
                return lambda session, batch: self._put(session, batch, job, options)
            case ["keyed"]:
                job, key = self._job(), self._key()
                return lambda session, batch: self._put(session, batch, job, {"key": key})
            case ["many"]:
                many = [NewJob(self._job(), **self._options()) for _ in range(self._chance.randint(2, 12))]
                return lambda session, batch: self._put_many(session, batch, many)
            case _:
                job, is_kept = self._job(), self._chance.random() < 0.5
                return lambda session, batch: self._put_in_savepoint(session, batch, job, is_kept)

    def _job(self) -> Any:
        [kind] = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        return kind(number=self._chance.randrange(1_000_000_000))

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._chance.random() < 0.15:
            options["delay"] = f"{self._chance.randint(1, 4_000)}ms"
        if self._chance.random() < 0.15:
            options["priority"] = self._chance.randint(-3, 3)
        return options

    def _key(self) -> str:
        self._number += 1
        return f"{self._number // 30}-{self._chance.randrange(KEYS)}"

    def _put(self, session: Session, batch: str, job: Any, options: dict[str, Any], *, is_kept: bool = True) -> None:
        answer = session.enqueue(job, **options)
        self._book.enqueued(answer.id, batch, job.__kind__.topic, is_new=answer.created, is_kept=is_kept)
        if answer.created:
            self._beside(session, [answer.id])

    def _put_many(self, session: Session, batch: str, many: list[NewJob]) -> None:
        answers = session.enqueue_many(many)
        for new, answer in zip(many, answers, strict=True):
            topic = new.job.__kind__.topic  # type: ignore[union-attr]
            self._book.enqueued(answer.id, batch, topic, is_new=answer.created, is_kept=True)
        self._beside(session, [answer.id for answer in answers])

    def _put_in_savepoint(self, session: Session, batch: str, job: Any, is_kept: bool) -> None:
        savepoint = session.begin_nested()
        self._put(session, batch, job, {}, is_kept=is_kept)
        if is_kept:
            savepoint.commit()
        else:
            savepoint.rollback()

    @staticmethod
    def _beside(session: Session, ids: list[uuid.UUID]) -> None:
        session.execute(jobs.BOOKING.insert(), [{"job": each} for each in ids])
