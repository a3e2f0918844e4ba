"""The jobs that workers run while they are measured."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from functools import cache
from pathlib import Path

from benchmarks.tally import Tally
from brooq_sa import AsyncClaim, Claim, JobBase

TALLY = "BENCH_TALLY"
"""The variable that names the tally's file, in a worker process."""

SHORT = 0.005
"""Seconds that a short handler takes."""


@cache
def tally() -> Tally:
    return Tally(Path(os.environ[TALLY]))


class BenchJob(JobBase): ...


class Mail(BenchJob, abstract=True):
    """A payload of a hundred bytes, whose values stand for what such a job usually carries."""

    user: int = 1_234_567
    to: str = "someone@example.com"
    template: str = "order.shipped"
    token: str = "0123456789abcdefghi"


PAYLOAD = '{"user":1234567,"to":"someone@example.com","template":"order.shipped","token":"0123456789abcdefghi"}'
"""The same as JSON text."""


class Noop(Mail, topic="noop"):
    async def run(self, claim: AsyncClaim) -> None:
        tally().hit()


class NoopInThread(Mail, topic="noop-in-thread"):
    def run(self, claim: Claim) -> None:
        tally().hit()


class Short(Mail, topic="short"):
    async def run(self, claim: AsyncClaim) -> None:
        tally().hit()
        await asyncio.sleep(SHORT)


class ShortInThread(Mail, topic="short-in-thread"):
    def run(self, claim: Claim) -> None:
        tally().hit()
        time.sleep(SHORT)


class Numbered(BenchJob, topic="numbered"):
    """Says when its handler began."""

    number: int

    async def run(self, claim: AsyncClaim) -> None:
        tally().note(self.number)


class Long(BenchJob, topic="long", attempt_timeout="2h", max_execution_timeout="3h"):
    """Runs until it is told to stop."""

    async def run(self, claim: AsyncClaim) -> None:
        tally().hit()
        await asyncio.sleep(timedelta(hours=2).total_seconds())
