"""The invariants hold in every interleaving that the model has, and each guard is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.moves import AGAIN, GUARDS, SPARE, STATES, TERMINAL
from model.protocol import RULES, Budget
from model.scopes import QUICK, Scope, scope_without

NEEDED = [guard.full_name for guard in GUARDS if guard.full_name not in SPARE] + list(RULES)

BREAKS = {
    "claim.ready": "I2",
    "claim.due": "I10",
    "claim.lock": "I3",
    "renew.state": "I3",
    "renew.holder": "I12",
    "renew.attempt": "I12",
    "settle_done.job": "I12",
    "settle_done.state": "I3",
    "settle_done.holder": "I12",
    "settle_done.attempt": "I12",
    "settle_otherwise.state": "I3",
    "settle_otherwise.holder": "I12",
    "settle_otherwise.attempt": "I12",
    "release_unknown.unknown": "I12",
    "release_unknown.state": "I3",
    "release_unknown.holder": "I12",
    "reap.state": "I3",
    "reap.lapsed": "I2",
    "cancel_waiting.job": "aim",
    "cancel_waiting.state": "I3",
    "cancel_processing.job": "aim",
    "cancel_processing.state": "I3",
    "retry.job": "aim",
    "retry.state": "I3",
    "purge.state": "U2",
    "purge.old": "U2",
    "purge.lock": "U2",
    "rule.give_backs_first": "I11",
    "rule.whole_give_back": "I11",
    "rule.whole_release": "I12",
    "rule.whole_session": "I11",
    "rule.last_attempt": "I7",
    "rule.claim_charges": "I6",
    "rule.claim_leases": "I1",
    "rule.reap_keeps_attempts": "I6",
    "rule.reap_is_no_failure": "I7",
}
"""What the nearest counter-example breaks, by the guard or rule that is missing."""


@pytest.mark.parametrize("scope", QUICK, ids=str)
def test_the_invariants_hold(scope: Scope) -> None:
    """No interleaving of workers, reaper, operator, retention and faults breaks one (I1, I2, I3, I6, I7, I11, I12)."""
    found = scope.explore()
    assert found.counter_example is None, f"\n{found.counter_example}"


@pytest.mark.parametrize("name", NEEDED)
def test_each_guard_is_needed(name: str) -> None:
    """Without any one of the guards and rules an invariant breaks (I1, I2, I3, I6, I7, I11, I12)."""
    found = scope_without(name).explore(name, tells_time=True).counter_example
    assert found is not None
    print(f"\nwithout {name}:\n{found}")
    assert BREAKS[name] in {each.split(":")[0] for each in found.broken}


@pytest.mark.parametrize("name, other", SPARE.items())
def test_a_spare_guard_is_covered_by_another(name: str, other: str) -> None:
    """A guard that another one covers can go alone, but not together with that one (I3, I12)."""
    scope = scope_without(name)
    assert scope.explore(name).counter_example is None
    found = scope.explore(name, other).counter_example
    assert found is not None
    print(f"\nwithout {name} and {other}:\n{found}")


def test_the_tables_name_every_guard_once() -> None:
    """A guard is either needed or spare, and none is left out."""
    names = [guard.full_name for guard in GUARDS] + list(AGAIN)
    assert len(names) == len(set(names))
    assert set(BREAKS) == set(NEEDED)
    assert set(SPARE) <= set(names)


PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def test_the_page_tells_of_every_guard_and_shows_a_true_counter_example() -> None:
    """The documentation has each guard and rule, with what breaks, and the counter-example that is printed."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in (*NEEDED, *SPARE):
        [row] = [line for line in rows if line.startswith(f"| `{name}`")]
        assert row.endswith(f" spare: `{SPARE[name]}` |" if name in SPARE else f" {BREAKS[name]} |")
    shown = scope_without("settle_done.attempt").explore("settle_done.attempt", tells_time=True).counter_example
    assert f"```\n{shown}\n```" in page


KINDS = {
    "claim",
    "claim lost",
    "claim orphaned",
    "claim arrives",
    "settle",
    "settle, refused",
    "settle lost",
    "settle lost, refused",
    "session lost",
    "session lost, refused",
    "settle again",
    "settle again, refused",
    "settle sent",
    "settle arrives",
    "settle arrives, refused",
    "settle orphaned",
    "orphan arrives",
    "orphan arrives, refused",
    "settle given up",
    "settle given up, refused",
    "give up",
    "give up, refused",
    "release unknown",
    "renew",
    "renew, refused",
    "renew sent",
    "renew arrives",
    "renew arrives, refused",
    "distrust",
    "sleep",
    "lapse",
    "due",
    "grow old",
    "crash",
    "reap",
    "purge",
    "cancel",
    "cancel in SQL",
    "retry",
    "nothing found",
}

ROADS = {
    ("settle", "done"),
    ("settle", "dead"),
    ("settle", "canceled"),
    ("settle", "failed"),
    ("settle", "pending"),
    ("settle again", "done"),
    ("settle arrives", "dead"),
    ("orphan arrives", "done"),
    ("cancel", "canceled"),
    ("cancel in SQL", "canceled"),
    ("reap", "pending"),
    ("retry", "pending"),
    ("give up", "pending"),
    ("purge", "deleted"),
}


def test_the_model_is_not_empty() -> None:
    """Every kind of step happens, every state is reached, and terminal ones by every road, dead by no reaping (I7)."""
    kinds: set[str] = set()
    roads: set[tuple[str, str]] = set()
    states: set[str] = set()
    for budget in (
        Budget(crash=1, sleep=1, lost=1),
        Budget(sleep=1, delay=1, cancel=1),
        Budget(lost=2),
        Budget(delay=1, stop=1),
        Budget(lost=1, stop=1),
        Budget(sleep=1, stop=1),
        Budget(cancel=1, retry=1),
    ):
        found = Scope(budget).explore(tells_time=True)
        kinds.update(found.kinds)
        roads |= found.roads
        states |= found.states
    assert kinds == KINDS
    assert states == set(STATES)
    assert roads >= ROADS
    into = {state: {kind for kind, to in roads if to == state} for state in TERMINAL}
    settling = {"settle", "settle lost", "settle again", "settle arrives", "orphan arrives"}
    assert into["dead"] == settling
    assert into["done"] == settling | {"session lost", "settle given up"}
    assert into["canceled"] == settling | {"cancel", "cancel in SQL"}
