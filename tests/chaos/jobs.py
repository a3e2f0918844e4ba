"""The jobs of the suite: every kind of handler that there is.

What a handler does depends on its job and attempt alone, so that a run can be told again.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, Uuid

from brooq_sa import AsyncClaim, CancelJob, Claim, JobBase, PreserveAttempt, RetryAfter
from chaos import ledger

META = MetaData()

EFFECT = Table(
    "effect",
    META,
    Column("number", Integer, primary_key=True),
    Column("job", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker", Text, nullable=False),
)
"""What handlers write through ``claim.session``: nothing in it keeps a job from writing twice."""

BOOKING = Table("booking", META, Column("job", Uuid, primary_key=True))
"""What producers write beside each job, as a user's own data."""

LEASE = 3.0
"""Seconds; of every worker."""

IN_SESSION = frozenset({"write", "write-async", "chain-write"})
"""Topics whose done jobs have exactly one effect, and whose completion may fail with its transaction."""

CHAINING = frozenset({"chain", "chain-write"})
"""Topics whose done jobs have exactly one child."""

PULLED = "pull"
"""The topic of ``consume``."""


class Broken(Exception):
    """What failing handlers raise."""


class ChaosJob(JobBase):
    metadata = META


class Quick(ChaosJob, topic="quick"):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            pass


class Slow(ChaosJob, topic="slow"):
    """Outlasts its lease."""

    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            if claim.should_stop.wait(LEASE * chance(claim).uniform(1.1, 1.7)):
                raise Broken("told to stop")


class Failing(ChaosJob, topic="failing", max_attempts=3):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            if chance(claim).random() < 0.6:
                raise Broken(f"attempt {claim.attempt}")


class Late(ChaosJob, topic="retry-after"):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            if claim.attempt < 3:
                raise RetryAfter("200ms")


class Preserving(ChaosJob, topic="preserve"):
    """Its attempts stay the same, so chance alone lets it end."""

    number: int

    async def run(self, claim: AsyncClaim) -> None:
        with recorded(claim):
            if Random(os.urandom(8)).random() < 0.5:
                raise PreserveAttempt("not yet")


class GivingUp(ChaosJob, topic="cancel"):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            raise CancelJob("lost its point")


class Writing(ChaosJob, topic="write", max_attempts=50):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            if _has_one_writer(claim.session):
                claim.should_stop.wait(_pause(claim))
            claim.session.execute(EFFECT.insert(), _effect(claim))
            if not _has_one_writer(claim.session):
                claim.should_stop.wait(_pause(claim))


class WritingAsync(ChaosJob, topic="write-async", max_attempts=50):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        with recorded(claim):
            if _has_one_writer(claim.session):
                await asyncio.sleep(_pause(claim))
            await claim.session.execute(EFFECT.insert(), _effect(claim))
            if not _has_one_writer(claim.session):
                await asyncio.sleep(_pause(claim))


class Child(ChaosJob, topic="child"):
    parent: str

    async def run(self, claim: AsyncClaim) -> None:
        with recorded(claim):
            await asyncio.sleep(0.01)


class Chaining(ChaosJob, topic="chain"):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            claim.chain(Child(parent=claim.id.hex))


class ChainingAndWriting(ChaosJob, topic="chain-write", max_attempts=50):
    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            claim.session.execute(EFFECT.insert(), _effect(claim))
            claim.chain(Child(parent=claim.id.hex), delay="300ms")
            if chance(claim).random() < 0.3:
                raise Broken("after it has written")


class Overlong(ChaosJob, topic="overlong", max_attempts=2, attempt_timeout="700ms", max_execution_timeout="1500ms"):
    """Is told to stop, and does."""

    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            claim.should_stop.wait(10)
            raise Broken(f"told to stop: {claim.cause}")


class OverlongAsync(ChaosJob, topic="overlong-async", max_attempts=2, attempt_timeout="500ms"):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        with recorded(claim):
            await asyncio.sleep(10)


class Swallowing(ChaosJob, topic="swallowing", max_attempts=2, attempt_timeout="500ms"):
    """Swallows its cancellation, and ends in success all the same: in time, or when it has been given up as hung."""

    number: int

    async def run(self, claim: AsyncClaim) -> None:
        with recorded(claim):
            ends = time.monotonic() + chance(claim).choice([1.0, 4.5])
            while (left := ends - time.monotonic()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue


class Deaf(ChaosJob, topic="deaf", max_attempts=2, attempt_timeout="500ms", max_execution_timeout="1s"):
    """Never looks whether it should stop."""

    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            time.sleep(4.0)


class Hogging(ChaosJob, topic="hogging"):
    """Holds the interpreter's lock for longer than the lease, so that nothing of its process runs meanwhile.

    Only at first: a handler that always does never keeps its lease to the end.
    """

    number: int

    def run(self, claim: Claim) -> None:
        with recorded(claim):
            if claim.attempt == 1:
                with ledger.own().trouble("lock of the interpreter held"):
                    ctypes.PyDLL(None).usleep(int(LEASE * 1.2 * 1_000_000))


class Pulled(ChaosJob, topic=PULLED, max_attempts=50):
    """Taken by `consume`: has no handler."""

    number: int


@contextmanager
def recorded(claim: Claim | AsyncClaim) -> Iterator[None]:
    """The handler's run as the ledger has it: written before the worker can know how it ended."""
    book = ledger.own()
    run = book.ran(claim.id, claim.attempt, claim.worker, claim.topic)
    try:
        yield
    except BaseException as error:
        book.ended(run, type(error).__name__)
        raise
    book.ended(run, ledger.RETURNED)


def chance(claim: Claim | AsyncClaim) -> Random:
    """Chance that depends on the job and the attempt alone."""
    return Random(f"{claim.payload} {claim.attempt}")


def _has_one_writer(session: Any) -> bool:
    """Whether all others would wait for as long as the session's transaction is open."""
    return bool(session.get_bind().dialect.name == "sqlite")


def _pause(claim: Claim | AsyncClaim) -> float:
    return chance(claim).choice([0.0, 0.05, 1.0, LEASE * 1.3])


def _effect(claim: Claim | AsyncClaim) -> dict[str, Any]:
    return {"job": claim.id, "attempt": claim.attempt, "worker": claim.worker}
