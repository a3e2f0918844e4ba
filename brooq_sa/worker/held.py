"""The claims that a worker holds: from the moment they are taken until their outcome is written."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ..store import Holding

AnyClaim = Any
"""A Claim or an AsyncClaim."""


class Held:
    """Claims by job and attempt, shared by the threads of a worker."""

    def __init__(self) -> None:
        self._claims: dict[Holding, AnyClaim] = {}
        self._lock = threading.Lock()
        self._fewer = threading.Condition(self._lock)
        self._some = threading.Event()

    def add(self, claims: Iterable[AnyClaim], *, rouses: bool = True) -> None:
        """Hold claims.

        Args:
            rouses: whether to let `wait` return now, or only with `rouse`.
        """
        with self._lock:
            self._claims.update((claim._holding, claim) for claim in claims)
        if rouses:
            self.rouse()

    def rouse(self) -> None:
        """Let `wait` return, if something is held."""
        with self._lock:
            if self._claims:
                self._some.set()

    def discard(self, claims: Iterable[AnyClaim]) -> None:
        """Hold these no more; but another claim of the same job at the same attempt, which may follow a give-back."""
        with self._lock:
            for claim in claims:
                held = self._claims.pop(claim._holding, None)
                if held is not None and held is not claim:
                    self._claims[claim._holding] = held
            self._fewer.notify_all()
            if not self._claims:
                self._some.clear()

    def wait_until_told(self, holding: Holding, timeout: float) -> bool:
        """Wait until an attempt that has ended is held no more, `timeout` seconds at most; whether it is so."""

        def is_told() -> bool:
            claim = self._claims.get(holding)
            return claim is None or not claim._has_ended

        with self._lock:
            return self._fewer.wait_for(is_told, timeout)

    def snapshot(self) -> dict[Holding, AnyClaim]:
        with self._lock:
            return dict(self._claims)

    def wait(self, timeout: float) -> bool:
        """Wait until something is held, `timeout` seconds at most."""
        return self._some.wait(timeout)

    def release_waiters(self) -> None:
        """Let `wait` return, for a shutdown."""
        self._some.set()

    def __contains__(self, holding: Holding) -> bool:
        return holding in self._claims

    def __len__(self) -> int:
        return len(self._claims)
