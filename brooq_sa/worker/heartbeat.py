"""Keeping the leases of all held jobs, in one statement every third of a lease.

::

    row renewed ──────────────▶ the lease holds from when the statement was sent
    row locked by somebody ───▶ still held; nothing changes
    row canceled ─────────────▶ the attempt is told to stop: canceled
    row gone to somebody else ▶ the attempt is told to stop: lease lost
    database out of reach ────▶ tried again, with pauses, until the watchdog says that the lease has run out

An attempt whose outcome has been decided is renewed as long as the outcome is not written, but is not told anything.
"""

from __future__ import annotations

import time

from ..engines import Reserved
from ..settings import WorkerSettings
from ..states import StopCause
from ..store import JobStore
from .held import Held

HURRY = 0.075
HURRY_FOR = 0.4
"""Seconds: the interval after a cancel, and for how long."""


class Heartbeat:
    """Renews leases; `turn` is one beat."""

    def __init__(
        self, store: JobStore, reserved: Reserved, settings: WorkerSettings, *, worker: str, held: Held
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._lease = settings.lease
        self._period = settings.heartbeat_period.total_seconds()
        self._worker = worker
        self._held = held
        self._hurries_until = 0.0

    def hurry(self) -> None:
        """Beat at short intervals for a moment: a cancel is being committed, and may not be seen at once."""
        self._hurries_until = time.monotonic() + HURRY_FOR

    @property
    def is_hurrying(self) -> bool:
        return time.monotonic() < self._hurries_until

    def turn(self) -> float:
        beat_at = time.monotonic()
        # One that has been told that its lease is lost writes nothing any more: let others have the job.
        claims = {
            holding: claim
            for holding, claim in self._held.snapshot().items()
            if claim._is_renewed and (claim._is_over or claim.cause not in (StopCause.LEASE_LOST, StopCause.CANCELED))
        }
        if claims:
            with self._reserved.transaction() as connection:
                renewal = self._store.renew(connection, self._worker, claims.keys(), self._lease)
            for holding, claim in claims.items():
                if holding in renewal.renewed:
                    claim._lease_ends = beat_at + self._lease.total_seconds()
                elif holding not in renewal.kept:
                    claim._stop(StopCause.CANCELED if holding in renewal.canceled else StopCause.LEASE_LOST)
        period = HURRY if beat_at < self._hurries_until else self._period
        return max(0.0, beat_at + period - time.monotonic())
