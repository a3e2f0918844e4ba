"""How much is explored: which faults, how often each, on how many jobs."""

from __future__ import annotations

from typing import NamedTuple

from .explorer import Exploration, explore
from .moves import SPARE
from .protocol import Budget, Protocol


class Scope(NamedTuple):
    """What may happen in an exploration.

    Attributes:
        takings: how often a job may be taken in all.
    """

    budget: Budget
    jobs: int = 1
    takings: int = 3

    def __str__(self) -> str:
        faults = [f"{name} {often}" for name, often in zip(Budget._fields, self.budget, strict=True) if often]
        return f"{self.jobs} job{'s' * (self.jobs > 1)}, {', '.join(faults)}"

    def explore(self, *without: str, tells_time: bool = False) -> Exploration:
        """Explore the protocol, without some of its guards and rules."""
        protocol = Protocol(
            self.budget, jobs=self.jobs, takings=self.takings, without=frozenset(without), tells_time=tells_time
        )
        return explore(protocol)


QUICK = (
    Scope(Budget(crash=1, sleep=2, lost=1)),
    Scope(Budget(crash=1, sleep=1, delay=1)),
    Scope(Budget(lost=2)),
    Scope(Budget(lost=1, delay=1, stop=1)),
    Scope(Budget(sleep=1, lost=1, stop=1)),
    Scope(Budget(sleep=1, delay=1, cancel=1, retry=1)),
    Scope(Budget(lost=1, cancel=1, retry=1)),
    Scope(Budget(sleep=1, lost=1), takings=4),
    Scope(Budget(crash=1, delay=1), jobs=2, takings=2),
    Scope(Budget(sleep=1, cancel=1), jobs=2, takings=2),
)
"""Each fault with every other that matters to it; seconds in all."""

DEEP = (
    Scope(Budget(crash=1, sleep=1, lost=1, delay=1, cancel=1, retry=1)),
    Scope(Budget(sleep=1, lost=1, delay=1, cancel=1, stop=1)),
    Scope(Budget(sleep=1, lost=1, delay=1), takings=4),
    Scope(Budget(crash=1, sleep=1, lost=1, retry=1), jobs=2, takings=2),
    Scope(Budget(sleep=1, lost=1, delay=1), jobs=2, takings=2),
)
"""All of them together; minutes."""

FOR_ONE = Scope(Budget(sleep=1, lost=1, delay=1, cancel=1, retry=1, stop=1))
FOR_TWO = Scope(Budget(sleep=1, cancel=1, retry=1), jobs=2, takings=2)
LOST_ON_TWO = Scope(Budget(lost=1), jobs=2, takings=2)

_SCOPES = {
    "release_unknown.unknown": LOST_ON_TWO,
    "release_unknown.holder": LOST_ON_TWO,
    "rule.whole_release": Scope(Budget(lost=2)),
    "purge.lock": Scope(Budget(cancel=1, retry=1)),
    "purge.again": Scope(Budget(cancel=1, retry=1)),
}


def scope_without(name: str) -> Scope:
    """Where taking away a guard or a rule shows."""
    if name in _SCOPES:
        return _SCOPES[name]
    if name in SPARE:
        return _scope_without_spare(name)
    return FOR_TWO if name.endswith(".job") else FOR_ONE


def _scope_without_spare(name: str) -> Scope:
    """One that can be explored to its end, since there may be nothing to find."""
    if name.endswith(".job"):
        return Scope(Budget(sleep=1), jobs=2, takings=2)
    return Scope(Budget(lost=1, cancel=1) if name.startswith("release") else Budget(sleep=1, cancel=1))
