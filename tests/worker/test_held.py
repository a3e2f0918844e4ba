"""The claims that a worker holds."""

from __future__ import annotations

import threading

from apps.embedding import bare_claim
from brooq_sa.worker.held import Held


def test_claims_are_held_by_job_and_attempt() -> None:
    """Two attempts at one job are two holdings (I12)."""
    held, first = Held(), bare_claim(attempt=1)
    second = bare_claim(id=first.id, attempt=2)
    held.add([first, second])
    held.discard([first])
    assert held.snapshot() == {(first.id, 2): second}


def test_discarding_what_is_not_held() -> None:
    """Discarding twice is as good as once."""
    held, claim = Held(), bare_claim()
    held.add([claim])
    held.discard([claim])
    held.discard([claim])
    assert len(held) == 0


def test_a_snapshot_does_not_change() -> None:
    """Whoever iterates over a snapshot is not disturbed by what comes and goes."""
    held, claim = Held(), bare_claim()
    held.add([claim])
    snapshot = held.snapshot()
    held.discard([claim])
    assert snapshot == {claim._holding: claim}


def test_waiting_for_something_held() -> None:
    """`wait` returns as soon as there is a claim, and says so; an empty one makes it wait again."""
    held, claim = Held(), bare_claim()
    assert not held.wait(0.01)
    threading.Timer(0.01, lambda: held.add([claim])).start()
    assert held.wait(10)
    held.discard([claim])
    assert not held.wait(0.01)


def test_a_shutdown_ends_waiting() -> None:
    """`release_waiters` lets a waiting thread go though nothing is held."""
    held = Held()
    held.release_waiters()
    assert held.wait(10)


def test_what_is_held_anew_stays() -> None:
    """A claim that follows a give-back at the same attempt is held, though the one before it is let go late (I12)."""
    held = Held()
    before = bare_claim()
    after = bare_claim(id=before.id)
    held.add([before])
    held.add([after])
    held.discard([before])
    assert held.snapshot() == {after._holding: after}
    held.discard([after])
    assert len(held) == 0
