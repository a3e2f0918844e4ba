"""What a run does follows from its seed."""

from __future__ import annotations

from collections import Counter

from chaos.plan import LENGTHS, ON_SQLITE, PROMOTION, WEIGHTS, plan


def test_a_seed_gives_one_plan() -> None:
    """The same seed plans the same faults at the same moments, and another seed others."""
    assert plan(1, 60) == plan(1, 60)
    assert plan(1, 60) != plan(2, 60)


def test_every_kind_comes() -> None:
    """A minute is enough for every kind of fault, and a promotion comes in every run."""
    for seed in range(50):
        kinds = Counter(fault.name for fault in plan(seed, 60))
        assert set(kinds) == {*WEIGHTS, PROMOTION}
        assert kinds[PROMOTION] == 1
    assert sum(fault.name == PROMOTION for fault in plan(1, 600)) == 4
    assert {fault.name for fault in plan(1, 15, is_sqlite=True)} <= set(ON_SQLITE)


def test_faults_are_in_order_and_in_bounds() -> None:
    """Faults come in order of time, within the run, and last no longer than their kind does."""
    faults = plan(7, 120)
    assert faults == sorted(faults, key=lambda fault: fault.at)
    assert all(0 < fault.at < 120 for fault in faults)
    assert all(fault.length <= LENGTHS.get(fault.name, (0, 0))[1] for fault in faults)


def test_a_plan_of_few_kinds() -> None:
    """`only` leaves out all other faults, the promotion among them."""
    assert {fault.name for fault in plan(1, 60, only=frozenset({"cancel"}))} == {"cancel"}
