"""Whether the jobs get on: topics that nobody serves, leases that nobody reaps, rows that nobody deletes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import func, literal_column, select

from .. import __version__
from ..functions import now, now_plus, seconds_since
from ..schema import pause_table
from ..statements import depths, inspect
from ..statements.guards import in_states, is_processing
from ..states import TERMINAL
from .finding import Finding, fault, note, warning
from .look import Look, listed, long

MOST_HEADS = 2_000
"""How many topics and priorities are looked at."""

MOST_LEASES = 10_000
"""How many leases are looked at."""

UNREAPED = 60.0
"""Seconds after its end from which on a lease ought to have been reaped."""


def unserved(look: Look) -> Iterator[Finding]:
    """Topics that have ready jobs, and no live worker that serves them."""
    workers = look.live_workers()
    served = {topic for each in workers for topic in each["topics"]}
    paused = set(look.connection.execute(select(pause_table(look.job).c.topic)).scalars())
    due: dict[str, float] = {}
    later: set[str] = set()
    for topic, seconds in look.connection.execute(depths.heads(look.job), {"most": MOST_HEADS}):
        if topic in served or topic in paused:
            continue
        if seconds >= 0:
            due[topic] = max(due.get(topic, 0.0), float(seconds))
        else:
            later.add(topic)
    if due:
        named = listed(f"{topic} (oldest due for {long(seconds)})" for topic, seconds in sorted(due.items()))
        several = (
            f"{len(workers)} live workers serve others" if len(workers) > 1 else "the one live worker serves others"
        )
        live = several if workers else "no worker is live at all"
        make = warning if workers else fault
        yield make(
            f"Nobody serves {named}; {live}.",
            "These jobs wait, unharmed, until a worker comes that knows the topic.",
            "Start a worker whose base has a class for it, or deploy the release that has one; `brooq-sa why ID` says"
            " more.",
            topics=due,
        )
    if only_later := sorted(later - due.keys()):
        yield note(
            f"Nobody serves {listed(only_later)}, whose jobs are not due yet.",
            "They will wait.",
            "Start a worker for it before they are due.",
            topics=only_later,
        )


def paused(look: Look) -> Iterator[Finding]:
    """Topics that somebody has paused."""
    pauses = pause_table(look.job)
    query = select(pauses.c.topic, pauses.c.paused_by, pauses.c.reason, seconds_since(pauses.c.paused_at))
    for topic, who, reason, seconds in look.connection.execute(query.order_by(pauses.c.topic)):
        by = f" by {who}" if who else ""
        because = f": {reason}" if reason else ""
        yield note(
            f"Topic {topic} has been paused for {long(seconds)}{by}{because}.",
            "No worker starts its jobs.",
            f"`brooq-sa resume {topic}`, if that is over.",
            topic=topic,
            seconds=float(seconds),
        )


def leases(look: Look) -> Iterator[Finding]:
    """Leases that ran out a while ago, and were not reaped."""
    some = (
        select(seconds_since(look.job.c.locked_until).label("over"))
        .where(
            look.job.c.locked_by.is_not(None),
            is_processing(look.job),
            look.job.c.locked_until < now_plus(literal_column(str(-UNREAPED))),
        )
        .order_by(look.job.c.locked_by, look.job.c.id)
        .limit(literal_column(str(MOST_LEASES)))
        .subquery("some")
    )
    count, oldest = look.connection.execute(select(func.count(), func.max(some.c.over))).one()
    if count:
        yield fault(
            f"{count} {'lease has' if count == 1 else 'leases have'} run out unreaped, the oldest {long(oldest)} ago.",
            "Their workers are gone, and the jobs do not come back by themselves while no worker reaps.",
            "Start a worker; if some are live, look in their logs for what keeps upkeep from its work.",
            leases=count,
            oldest_seconds=float(oldest),
        )


def retention(look: Look) -> Iterator[Finding]:
    """Ended jobs that are older than they should get."""
    ttl = look.retention_ttl
    if not ttl:
        return
    ended = look.job.c.updated_at
    query = select(seconds_since(ended)).where(in_states(look.job, *TERMINAL)).order_by(ended).limit(1)
    oldest = look.connection.execute(query).scalar()
    slack = max(timedelta(hours=1), ttl / 12)
    if oldest is not None and oldest > (ttl + slack).total_seconds():
        yield warning(
            f"A job that ended {long(oldest)} ago is still there, though ended jobs are kept for"
            f" {long(ttl.total_seconds())}.",
            "The table grows. No worker deletes, they keep jobs for longer than was asked here, more ends than they"
            " delete, or a foreign key of yours refers to these jobs.",
            "Look in the workers' logs for retention_behind and jobs_referenced; `brooq-sa delete --older-than ...`"
            " deletes by hand; --retention-ttl tells this check how long yours keep them.",
            oldest_seconds=float(oldest),
        )


def suspects(look: Look) -> Iterator[Finding]:
    """Jobs whose workers crash again and again."""
    rows = look.connection.execute(inspect.suspects(look.job)).mappings().all()
    if rows:
        named = listed(f"{row['id']} of {row['topic']} ({row['crashes']} crashes)" for row in rows)
        yield warning(
            f"Jobs crash their workers, or were there each time one crashed: {named}.",
            "Each crash takes the other jobs of that worker back with it.",
            'Cancel them (`brooq-sa cancel ID`), or run their kind apart: isolation="process", max_crashes=.',
            jobs=[{"id": str(row["id"]), "topic": row["topic"], "crashes": row["crashes"]} for row in rows],
        )


def versions(look: Look) -> Iterator[Finding]:
    """Live workers of different versions of brooq-sa."""
    found = Counter(each["version"] for each in look.live_workers())
    if len(found) > 1:
        yield warning(
            f"Live workers are of different versions: {listed(f'{n} of {name}' for name, n in sorted(found.items()))}.",
            "During a deployment that is as it should be; after it, somebody was forgotten.",
            "Restart those that are left behind; `brooq-sa top` lists them with their hosts.",
            versions=dict(found),
        )
    elif found and __version__ not in found:
        [other] = found
        yield note(f"This is version {__version__}, and the live workers are of {other}.", versions=dict(found))


def clock(look: Look) -> Iterator[Finding]:
    """How far this host's clock is from the database's."""
    before = look.host_clock()
    there = look.connection.execute(select(now())).scalar_one()
    after = look.host_clock()
    apart = there.timestamp() - (before + after) / 2
    if abs(apart) > MOST_APART + (after - before) / 2:
        yield warning(
            f"The clock of this host is {long(apart)} {'behind' if apart > 0 else 'ahead of'} the database's.",
            "Leases and due times go by the database's clock alone, so no job runs twice for it; but a time that your"
            " code computes here, `available_at` or a log line, is off by as much.",
            "Have both synchronized (chrony, systemd-timesyncd).",
            seconds=apart,
        )


MOST_APART = 1.0
"""Seconds that clocks may be apart before it is told, beside what the look itself took."""
