"""What type checkers make of declaring and enqueuing jobs. Checked by mypy and pyright, never run.

A line that must be an error carries an ignore comment: checkers report one that ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from typing import assert_type

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from brooq_sa import AsyncClaim, Claim, Enqueued, JobBase, enqueue


class AppJob(JobBase):
    pass


class SendReceipt(AppJob, topic="email.receipt", max_attempts=5, attempt_timeout="30s"):
    order_id: int
    to: str = "nobody"

    def run(self, claim: Claim) -> None:
        assert_type(claim.session, Session)
        assert_type(claim.attempt, int)


class Index(AppJob, topic="index"):
    word: str


@Index.handler
async def index(job: Index, claim: AsyncClaim) -> None:
    assert_type(job.word, str)
    assert_type(claim.attempt, int)


job = SendReceipt(order_id=1)
assert_type(job.order_id, int)
SendReceipt(order_id=1, to="somebody")
SendReceipt(order_id="1")  # type: ignore[arg-type]
SendReceipt()  # type: ignore[call-arg]
SendReceipt(1)  # type: ignore[call-arg]
SendReceipt(order_id=1, colour="red")  # type: ignore[call-arg]
job.to = "somebody"  # type: ignore[misc]


def enqueues(session: Session, connection: Connection) -> None:
    assert_type(enqueue(session, job, key="receipt-1", delay="5m"), Enqueued)
    assert_type(enqueue(connection, job), Enqueued)
    enqueue(session, "job")  # type: ignore[call-overload]


async def enqueues_from_async(session: AsyncSession) -> None:
    assert_type(await enqueue(session, job), Enqueued)
