"""What type checkers make of options, fields and handlers. Checked by mypy and pyright, never run.

A line that must be an error carries an ignore comment: checkers report one that ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import assert_type

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from brooq_sa import AsyncClaim, Claim, JobBase, Kind


class Base(DeclarativeBase):
    pass


class AppJob(JobBase):
    metadata = Base.metadata


class Elsewhere(JobBase, metadata=MetaData(), schema="queue", table_name="work"):
    pass


assert_type(AppJob.__table__, Table)
assert_type(AppJob.metadata, MetaData)


class Every(
    AppJob,
    topic="every.option",
    max_attempts=5,
    attempt_timeout="30s",
    max_execution_timeout=timedelta(minutes=1),
    backoff_base="1s",
    backoff_max=timedelta(minutes=1),
    priority=-5,
):
    needed: int
    given: str = "given"
    made: list[int] = dataclasses.field(default_factory=list)


assert_type(Every.__kind__, Kind)
assert_type(Every(needed=1).made, list[int])


class Tenant(AppJob, abstract=True):
    tenant: int


class Import(Tenant, topic="import"):
    path: str


Import(tenant=1, path="-")
Import(path="-")  # type: ignore[call-arg]


class BadAttempts(AppJob, topic="bad.attempts", max_attempts="five"):  # type: ignore[arg-type]
    pass


class BadTimeout(AppJob, topic="bad.timeout", attempt_timeout=30):  # type: ignore[arg-type]
    pass


class BadOption(AppJob, topic="bad.option", retries=5):  # type: ignore[call-arg]
    pass


class BadTopic(AppJob, topic=5):  # type: ignore[arg-type]
    pass


class Plain(AppJob, topic="plain"):
    number: int


class Cooperative(AppJob, topic="cooperative"):
    number: int


class Unhandled(AppJob, topic="unhandled"):
    number: int


@Plain.handler
def run_plain(job: Plain, claim: Claim) -> None:
    assert_type(job.number, int)
    assert_type(claim.session, Session)
    claim.chain(Plain(number=job.number + 1), key="next", delay="1m")
    if claim.should_stop:
        return
    claim.should_stop.wait(timedelta(seconds=1))


@Cooperative.handler
async def run_cooperative(job: Cooperative, claim: AsyncClaim) -> None:
    assert_type(claim.session, AsyncSession)
    claim.chain(Plain(number=job.number))


# The decorator gives back what it was given.
run_plain(Plain(number=1), "claim")  # type: ignore[arg-type]


@Unhandled.handler  # type: ignore[arg-type]
def for_another_class(job: Plain, claim: Claim) -> None:
    pass


@Unhandled.handler  # type: ignore[arg-type]
def without_a_claim(job: Unhandled) -> None:
    pass


@Unhandled.handler  # type: ignore[arg-type]
async def with_a_sync_claim(job: Unhandled, claim: Claim) -> None:
    pass


class Methods(AppJob, topic="methods"):
    number: int

    async def run(self, claim: AsyncClaim) -> None:
        assert_type(self.number, int)
        assert_type(claim.session, AsyncSession)
