"""How large each measurement is: in full, quickly, or just large enough to show that it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much each measurement does.

    Attributes:
        repetitions: of each side, interleaved with the others.
        drained: jobs in a drain.
        short: jobs whose handlers take 5 ms.
        warm_up: seconds after its first job in which a worker may do whatever it does only at its start.
        trickled: jobs put one by one into an idle queue.
        idle_seconds: how long an idle worker's statements are counted.
        transactions: of each kind, where one is held against another.
        bulk: jobs in one `enqueue_many`.
        committers: processes that commit as fast as they can.
        commit_seconds: how long they do.
        crowd: jobs of each kind that are in the way of a claim, or wait behind a drain.
        steady_minutes: how long an old snapshot is held while jobs trickle in.
        aside_minutes: before that, and after it.
        rate: of those jobs, a second.
        long: jobs that run all the while.
        held: running jobs that one heartbeat renews.
        beats: heartbeats that are looked at.
        footprint: jobs after which a worker's memory is looked at, first and last.
        starts: of a Python process.
        embedded: jobs in a drain on SQLite.
    """

    repetitions: int = 5
    drained: int = 100_000
    short: int = 10_000
    warm_up: float = 2.0
    trickled: int = 200
    idle_seconds: float = 15.0
    transactions: int = 1_000
    bulk: int = 10_000
    committers: int = 8
    commit_seconds: float = 5.0
    crowd: int = 1_000_000
    steady_minutes: float = 10.0
    aside_minutes: float = 1.0
    rate: int = 200
    long: int = 50
    held: int = 1_000
    beats: int = 5
    footprint: tuple[int, int] = (100_000, 1_000_000)
    starts: int = 20
    embedded: int = 20_000


FULL = Sizes()

QUICK = Sizes(
    repetitions=3,
    drained=30_000,
    short=4_000,
    trickled=100,
    idle_seconds=5.0,
    transactions=300,
    commit_seconds=2.0,
    crowd=100_000,
    steady_minutes=1.0,
    aside_minutes=0.4,
    footprint=(20_000, 100_000),
    starts=8,
    embedded=5_000,
)

TINY = Sizes(
    repetitions=1,
    drained=300,
    short=60,
    warm_up=0.3,
    trickled=5,
    idle_seconds=0.5,
    transactions=10,
    bulk=200,
    committers=2,
    commit_seconds=0.3,
    crowd=500,
    steady_minutes=0.02,
    aside_minutes=0.02,
    rate=50,
    long=5,
    held=20,
    beats=1,
    footprint=(200, 400),
    starts=1,
    embedded=100,
)
"""For the tests, which want to know that a figure comes out, and never how large it is."""
