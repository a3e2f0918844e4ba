"""Handlers that set a context variable, and fail if they find one set."""

from __future__ import annotations

from contextvars import ContextVar

from brooq_sa import AsyncClaim, JobBase

FOUND: ContextVar[int | None] = ContextVar("FOUND", default=None)


class Contexts(JobBase):
    pass


class InChildren(JobBase):
    pass


async def set_it(number: int) -> None:
    before = FOUND.get()
    FOUND.set(number)
    if before is not None:
        raise ValueError(f"job {number} has found what job {before} set")


class Setting(Contexts, topic="setting", max_attempts=1):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        await set_it(self.number)


class Isolated(InChildren, topic="isolated", max_attempts=1, isolation="process"):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        await set_it(self.number)
