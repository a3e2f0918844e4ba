"""Ways to break the queue, to see that the suite notices. Nothing in `brooq_sa` knows of them.

A process that has ``BROOQ_CHAOS_MUTANT`` in its environment and imports this module before it works is a mutant: the
children of the suite do, and pytest does with ``-p chaos.mutants``.

=============================== ==================================== ===================================================
mutant                          what it does                         caught by
=============================== ==================================== ===================================================
guard-without-attempts          settle and renew by worker and       ``conformance/test_fencing.py``: an earlier attempt
                                state alone                          settles what the same worker holds again
settle-by-id                    settle whatever state and holder     a run with cut lines: outcomes by others than the
                                are                                  holder, terminal rows changed; and
                                                                     ``conformance/test_fencing.py``
heartbeat-stopped-at-drain      no renewals from the moment that a   a run with stops: leases lost although nothing had
                                worker is told to stop               befallen their holder; and ``chaos/test_drain.py``
reaper-without-its-state-guard  reap any row with a lapsed lease     a run with cancels in plain SQL: terminal rows
                                                                     changed; and ``conformance/test_upkeep.py``
completion-without-fence        commit a session whose job is        ``test_claims.py``: what it wrote is there
                                somebody else's by now
=============================== ==================================== ===================================================

A run rarely catches the first and the last: a worker that is stopped or cut off knows by its own clock that its leases
have run out as soon as it goes on, and hardly ever writes before it has looked.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, literal_column, or_

VARIABLE = "BROOQ_CHAOS_MUTANT"

ALWAYS: ColumnElement[bool] = literal_column("(1 = 1)")


def guard_without_attempts() -> None:
    settle, lease = _module("brooq_sa.statements.settle"), _module("brooq_sa.statements.lease")
    is_held = settle.is_held

    def by_worker_and_state(job: Table, attempt: ColumnElement[int]) -> ColumnElement[bool]:
        # The parameter stays: a statement refuses one that it has no place for.
        return and_(is_held(job, job.c.attempts), or_(job.c.attempts == attempt, ALWAYS))

    settle.is_held = lease.is_held = by_worker_and_state


def settle_by_id() -> None:
    settle = _module("brooq_sa.statements.settle")
    is_held = settle.is_held
    settle.is_held = lambda job, attempt: or_(is_held(job, attempt), ALWAYS)


def _module(name: str) -> Any:
    """A module whose names are to be changed, which no type checker likes."""
    return importlib.import_module(name)


def heartbeat_stopped_at_drain() -> None:
    from brooq_sa.worker.worker import Worker

    drain = Worker._drain

    def drain_without_heartbeat(self: Worker, grace: timedelta) -> None:
        self._heartbeat_loop.stop(1.0)
        drain(self, grace)

    Worker._drain = drain_without_heartbeat  # type: ignore[method-assign]


def reaper_without_its_state_guard() -> None:
    _module("brooq_sa.statements.upkeep").is_processing = lambda _job: ALWAYS


def completion_without_fence() -> None:
    from brooq_sa.store import JobStore

    settle = JobStore.settle

    def settle_or_not(self: JobStore, connection: Any, worker: str, outcomes: Any) -> Any:
        settle(self, connection, worker, outcomes)
        return {outcome.holding for outcome in outcomes}

    JobStore.settle = settle_or_not  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "guard-without-attempts": guard_without_attempts,
    "settle-by-id": settle_by_id,
    "heartbeat-stopped-at-drain": heartbeat_stopped_at_drain,
    "reaper-without-its-state-guard": reaper_without_its_state_guard,
    "completion-without-fence": completion_without_fence,
}


def apply() -> None:
    """Make this process the mutant that its environment names, if it names one."""
    if name := os.environ.get(VARIABLE):
        MUTANTS[name]()


apply()
