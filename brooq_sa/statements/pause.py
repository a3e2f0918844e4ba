"""Keeping claims away from topics, for all workers at once.

A claim asks for itself (`guards.is_paused`), so that a pause holds for every claim that begins after its commit.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Table, Text, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from ..functions import now
from ..schema import pause_table


@cache
def pause(job: Table, dialect: str) -> Executable:
    """Pause a `topic`, for a `reason`, by somebody; yields the topic, or nothing if it was paused already."""
    pauses = pause_table(job)
    insertion = sqlite.insert(pauses) if dialect == "sqlite" else postgresql.insert(pauses)
    values = {name: bindparam(f"new_{name}", type_=Text()) for name in ("topic", "reason", "paused_by")}
    return insertion.values(**values, paused_at=now()).on_conflict_do_nothing().returning(pauses.c.topic)


@cache
def resume(job: Table) -> Executable:
    """Let a `topic` be claimed from again; yields it, or nothing if it was not paused."""
    pauses = pause_table(job)
    return delete(pauses).where(pauses.c.topic == bindparam("topic", type_=Text())).returning(pauses.c.topic)


@cache
def paused(job: Table) -> Executable:
    """The paused topics, in order: topic, paused_at, paused_by, reason."""
    pauses = pause_table(job)
    return select(pauses).order_by(pauses.c.topic)
