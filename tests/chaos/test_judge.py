"""The judge finds each way in which the queue may break its word, and finds nothing in a life without fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos import judge
from chaos.audit import DELETED, INSERTED, UPDATED, Effect, Records, Version
from chaos.judge import OPERATOR
from chaos.ledger import COMMITTED, IN_DOUBT, RETURNED, ROLLED_BACK, Evidence, Promise, Run, Trouble

WORKER, HOLDER = "chaos-w0-1", "host-1"
OTHER, OTHER_HOLDER = "chaos-w1-1", "host-2"
BEGIN = 1_000.0

PUT = Version(BEGIN, "chaos-p0-1", INSERTED, "a", "write", "pending", 0, 0, None, None, BEGIN)
TAKEN = replace(PUT, at=1_001.0, op=UPDATED, state="processing", attempts=1)
CLAIMED = replace(TAKEN, actor=WORKER, holder=HOLDER, until=1_004.0)
RENEWED = replace(CLAIMED, at=1_002.0, until=1_005.0)
DONE = replace(CLAIMED, at=1_003.0, state="done", holder=None, until=None, updated=1_003.0)
REAPED = replace(CLAIMED, at=1_006.0, actor=OTHER, state="pending", crashes=1, holder=None, until=None)
FAILED = replace(DONE, state="failed", error="Broken")
AGAIN = replace(CLAIMED, at=1_007.0, actor=OTHER, attempts=2, crashes=1, holder=OTHER_HOLDER, until=1_010.0)

RAN = Run("a", 1, HOLDER, "write", RETURNED)
RAN_AGAIN = Run("a", 2, OTHER_HOLDER, "write", RETURNED)
WROTE = Effect("a", 1, HOLDER)
WROTE_AGAIN = Effect("a", 2, OTHER_HOLDER)
KEPT = Promise("a", "write", True, COMMITTED)
KILLED = Trouble("killed", WORKER, 1_001.5, math.inf)


def found(
    *versions: Version,
    runs: Sequence[Run] = (RAN,),
    effects: Sequence[Effect] = (WROTE,),
    promise: Promise | None = KEPT,
    bookings: Sequence[str] = ("a",),
    troubles: Sequence[Trouble] = (),
) -> set[str]:
    """What the judge finds in the life of one job."""
    history = {"a": versions} if versions else {}
    evidence = Evidence(promises=[promise] if promise else [], runs=list(runs))
    verdict = judge.judge(Records(history, effects, frozenset(bookings)), evidence, troubles)
    return {what for what, count in verdict.counts.items() if count}


def test_lives_without_fault() -> None:
    """A success, a crash that another worker makes good, an operator's moves, and the end by retention are in order."""
    again = replace(DONE, at=1_008.0, actor=OTHER, attempts=2, crashes=1, updated=1_008.0)
    canceled = replace(FAILED, state="canceled", actor=OPERATOR)
    retried = replace(canceled, state="pending")
    deleted = replace(DONE, at=1_003.0 + judge.RETENTION, op=DELETED)
    assert found(PUT, CLAIMED, RENEWED, DONE, deleted) == set()
    assert (
        found(PUT, CLAIMED, REAPED, AGAIN, again, runs=[RAN, RAN_AGAIN], effects=[WROTE_AGAIN], troubles=[KILLED])
        == set()
    )
    assert found(PUT, CLAIMED, FAILED, canceled, retried, replace(canceled, at=1_009.0), effects=[]) == set()
    assert found(PUT, CLAIMED, DONE, promise=replace(KEPT, answer=IN_DOUBT)) == set()
    assert found(effects=[], runs=[], bookings=[], promise=replace(KEPT, answer=IN_DOUBT)) == set()


def test_promises() -> None:
    """Jobs that were acknowledged and are gone or never ended, and those that should not be, are found."""
    assert found(runs=[], effects=[], bookings=[]) == {judge.LOST}
    assert found(PUT, runs=[], effects=[]) == {judge.LOST}
    assert found(PUT, CLAIMED, DONE, promise=replace(KEPT, answer=ROLLED_BACK)) == {judge.GHOSTS}
    assert found(runs=[RAN], effects=[], bookings=[], promise=None) == {judge.GHOSTS}
    assert found(PUT, CLAIMED, DONE, bookings=[]) == {judge.HALVES}
    assert found(PUT, CLAIMED, DONE, bookings=["a", "b"]) == {judge.HALVES}


def test_terminal_rows() -> None:
    """Whoever changes a terminal row is found, an operator's retry of a done job too."""
    assert found(PUT, CLAIMED, DONE, replace(DONE, at=1_004.0)) == {judge.CHANGED}
    assert judge.CHANGED in found(PUT, CLAIMED, DONE, replace(DONE, state="pending", actor=OPERATOR))
    canceled = replace(CLAIMED, state="canceled", actor=OPERATOR)
    assert judge.CHANGED in found(PUT, CLAIMED, canceled, replace(REAPED, at=1_007.0), effects=[])
    assert found(PUT, CLAIMED, DONE, replace(DONE, at=1_004.0, op=DELETED)) == {judge.TOO_EARLY}
    assert judge.TOO_EARLY in found(PUT, replace(PUT, at=1_900.0, op=DELETED), runs=[], effects=[])


def test_leases() -> None:
    """A lease that is taken over, or taken back before its end, is held by two; one lost for no reason is found."""
    stolen = replace(RENEWED, actor=OTHER, holder=OTHER_HOLDER, attempts=2)
    assert judge.TWICE in found(PUT, CLAIMED, stolen, DONE)
    early = replace(REAPED, at=1_003.0)
    again = replace(DONE, at=1_008.0, actor=OTHER, attempts=2, crashes=1)
    later = {"runs": [RAN, RAN_AGAIN], "effects": [WROTE_AGAIN]}
    assert found(PUT, CLAIMED, early, AGAIN, again, troubles=[KILLED], **later) == {judge.TWICE}  # type: ignore[arg-type]
    assert found(PUT, CLAIMED, REAPED, AGAIN, again, **later) == {judge.NO_REASON}  # type: ignore[arg-type]
    at_its_place = replace(KILLED, who="chaos-w0")
    assert found(PUT, CLAIMED, REAPED, AGAIN, again, troubles=[at_its_place], **later) == set()  # type: ignore[arg-type]
    of_another = replace(KILLED, who=OTHER)
    assert found(PUT, CLAIMED, REAPED, AGAIN, again, troubles=[of_another], **later) == {judge.NO_REASON}  # type: ignore[arg-type]
    long_ago = replace(KILLED, began=900.0, ended=901.0)
    assert found(PUT, CLAIMED, REAPED, AGAIN, again, troubles=[long_ago], **later) == {judge.NO_REASON}  # type: ignore[arg-type]


def test_outcomes() -> None:
    """An outcome by somebody else than the holder is found, and one that the attempt did not have."""
    assert found(PUT, CLAIMED, replace(DONE, actor=OTHER)) == {judge.BY_OTHERS}
    assert found(PUT, CLAIMED, replace(RENEWED, actor=OTHER), DONE) == {judge.BY_OTHERS}
    assert found(PUT, CLAIMED, DONE, runs=[replace(RAN, how="Broken")]) == {judge.UNTRUE}
    assert found(PUT, CLAIMED, DONE, runs=[replace(RAN, how=None)]) == {judge.UNTRUE}
    quick = [replace(version, topic="quick") for version in (PUT, CLAIMED, replace(FAILED, state="dead"))]
    assert found(*quick, effects=[]) == {judge.UNTRUE}
    assert found(*quick, effects=[], runs=[replace(RAN, how="Broken")]) == set()
    # The old attempt's success, written while the same worker holds the job by its second one.
    mixed_up = [replace(version, topic="quick") for version in (PUT, CLAIMED, REAPED, AGAIN)]
    by_same = replace(mixed_up[3], actor=WORKER, holder=HOLDER)
    late = replace(by_same, at=1_008.0, state="done", holder=None, until=None)
    runs = [RAN, replace(RAN, attempt=2, how=None)]
    assert found(*mixed_up[:3], by_same, late, runs=runs, effects=[], troubles=[KILLED]) == {judge.UNTRUE}


@pytest.mark.parametrize(
    "versions",
    [
        (replace(PUT, attempts=1), replace(CLAIMED, attempts=2), replace(DONE, attempts=2)),
        (PUT, replace(CLAIMED, attempts=0), replace(DONE, attempts=0)),
        (PUT, replace(CLAIMED, holder=None, until=None), DONE),
        (PUT, DONE),
        (PUT, CLAIMED, replace(DONE, attempts=2)),
        (PUT, CLAIMED, replace(REAPED, attempts=0), replace(AGAIN, attempts=1)),
    ],
)
def test_moves_of_another_protocol(versions: Sequence[Version]) -> None:
    """States and attempts that do not follow from each other are found."""
    assert judge.STEPS in found(*versions)


def test_effects() -> None:
    """A done job without its effect, or with more, and an effect of an attempt that did not succeed, are found."""
    assert found(PUT, CLAIMED, DONE, effects=[]) == {judge.EFFECTS}
    assert found(PUT, CLAIMED, DONE, effects=[WROTE, WROTE]) == {judge.EFFECTS}
    assert found(PUT, CLAIMED, DONE, effects=[WROTE_AGAIN]) == {judge.EFFECTS}
    dead = replace(FAILED, state="dead")
    assert found(PUT, CLAIMED, dead, runs=[replace(RAN, how="Broken")]) == {judge.EFFECTS}
    assert found(PUT, CLAIMED, DONE, effects=[WROTE, Effect("b", 1, HOLDER)]) == {judge.EFFECTS}


def test_chained_jobs() -> None:
    """A done job without its chained one, and a chained one of a job that is not done, are found."""
    chaining = [replace(version, topic="chain") for version in (PUT, CLAIMED, DONE)]
    assert found(*chaining, effects=[]) == {judge.CHILDREN}
    child = replace(PUT, job="b", topic="child", parent="a", state="pending")
    canceled = replace(child, op=UPDATED, state="canceled", actor=OPERATOR)
    both = {"a": chaining, "b": [child, canceled]}
    evidence = Evidence(promises=[KEPT], runs=[RAN])
    assert not +judge.judge(Records(both, [], frozenset("a")), evidence, []).counts
    dead = {"a": [*chaining[:2], replace(chaining[2], state="dead", error=judge.HUNG)], "b": [child, canceled]}
    assert +judge.judge(Records(dead, [], frozenset("a")), evidence, []).counts == {judge.CHILDREN: 1}
