"""From the records to a verdict: every way in which the queue may have broken its word, counted.

It looks at nothing but the audit of the rows, the rows that handlers and producers wrote, and the ledgers; it knows the
protocol's rules and none of its code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from chaos.audit import DELETED, Records, Version, told
from chaos.jobs import CHAINING, IN_SESSION, LEASE, PULLED
from chaos.ledger import COMMITTED, RETURNED, ROLLED_BACK, Evidence, Trouble

OPERATOR = "chaos-operator"
"""How the operator's connections are named."""

RETENTION = 15.0
"""Seconds for which finished jobs are kept."""

RECOVERY = 7.0
"""Seconds after a trouble within which a worker is back: its longest pause between tries, and a connect."""

HUNG = "did not stop within"
READY = ("pending", "failed")
TERMINAL = ("done", "dead", "canceled")
SHOWN = 3

LOST: Final = "jobs lost"
GHOSTS: Final = "jobs that ran or exist without a committed enqueue"
HALVES: Final = "jobs without their producer's row, or the reverse"
BY_OTHERS: Final = "outcomes and renewals by others than the holder"
UNTRUE: Final = "outcomes that the attempt did not have"
EFFECTS: Final = "done jobs without exactly one effect, effects of others"
CHILDREN: Final = "done jobs without exactly one chained job, chained jobs of others"
CHANGED: Final = "terminal rows changed"
TWICE: Final = "leases held by two"
STEPS: Final = "moves that the protocol does not have"
NO_REASON: Final = "leases lost although nothing had befallen their holder"
TOO_EARLY: Final = "jobs deleted before their time"

VERDICTS = (
    LOST, GHOSTS, HALVES, BY_OTHERS, UNTRUE, EFFECTS, CHILDREN, CHANGED, TWICE, STEPS, NO_REASON, TOO_EARLY,
)  # fmt: skip


@dataclass
class Verdict:
    """How often each promise was broken, with a few examples.

    Attributes:
        reaps: leases that ran out and were taken back.
    """

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(VERDICTS, 0)))
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    reaps: int = 0

    def add(self, what: str, example: str) -> None:
        self.counts[what] += 1
        if len(self.examples[what]) < SHOWN:
            self.examples[what].append(example)


def judge(records: Records, evidence: Evidence, troubles: Iterable[Trouble]) -> Verdict:
    """The verdict over a run that has ended and whose queue has been worked off."""
    verdict = Verdict()
    _judge_promises(records, evidence, verdict)
    outcomes = _Outcomes(evidence)
    reaps: list[tuple[Version, str | None, Version]] = []
    for versions in records.history.values():
        _History(versions, outcomes, verdict, reaps).judge()
    _judge_reaps(reaps, [*troubles, *evidence.troubles], verdict)
    _judge_effects(records, verdict)
    _judge_children(records, verdict)
    return verdict


def final(versions: Sequence[Version]) -> Version:
    """The job as it was last, before retention deleted it."""
    return versions[-1]


def _judge_promises(records: Records, evidence: Evidence, verdict: Verdict) -> None:
    history = records.history
    for promise in evidence.promises:
        exists = promise.job in history
        if promise.answer == COMMITTED and not exists:
            verdict.add(LOST, f"{promise.topic} {promise.job} was acknowledged, and never was in the table")
        if promise.answer == ROLLED_BACK and promise.is_new and exists:
            verdict.add(GHOSTS, f"{promise.topic} {promise.job} was rolled back, and is in the table")
    for run in evidence.runs:
        if run.job not in history:
            verdict.add(GHOSTS, f"{run.topic} {run.job} ran, and never was in the table")
    for job, versions in history.items():
        if final(versions).state not in TERMINAL:
            verdict.add(LOST, f"{versions[-1].topic} {job} never came to an end:\n{_told(versions)}")
        if versions[0].parent is None and job not in records.bookings:
            verdict.add(HALVES, f"{versions[0].topic} {job} has no booking")
    for job in records.bookings - history.keys():
        verdict.add(HALVES, f"the booking of {job} has no job")


class _Outcomes:
    """How attempts ended, by those who ran them."""

    def __init__(self, evidence: Evidence) -> None:
        self._ends: dict[tuple[str, int, str | None], set[str | None]] = defaultdict(set)
        for run in evidence.runs:
            self._ends[run.job, run.attempt, run.worker].add(run.how)

    def fits(self, held: Version, outcome: Version) -> bool:
        """Whether the attempt that held the job can have ended in what was written."""
        ends = self._ends[held.job, held.attempts, held.holder]
        match outcome.state:
            case "done":
                return RETURNED in ends
            case "canceled":
                return "CancelJob" in ends
            case _:
                if HUNG in (outcome.error or "") or ends - {RETURNED, None}:
                    return True
                # What has a transaction of its own may fail in it.
                return RETURNED in ends and held.topic in IN_SESSION | CHAINING | {PULLED}


class _History:
    """One job's versions, looked at in pairs."""

    def __init__(
        self,
        versions: Sequence[Version],
        outcomes: _Outcomes,
        verdict: Verdict,
        reaps: list[tuple[Version, str | None, Version]],
    ) -> None:
        self._versions = versions
        self._outcomes = outcomes
        self._verdict = verdict
        self._reaps = reaps
        self._claimer: str | None = None

    def judge(self) -> None:
        first = self._versions[0]
        if (first.op, first.state, first.attempts, first.holder) != ("I", "pending", 0, None):
            self._add(STEPS, first, first)
        for old, new in pairwise(self._versions):
            if problem := self._problem(old, new):
                self._add(problem, old, new)

    def _add(self, what: str, old: Version, new: Version) -> None:
        place = self._versions.index(new)
        near = self._versions[max(0, place - 4) : place + 3]
        self._verdict.add(what, f"{new.topic} {new.job}, {old.state} -> {new.state}:\n{_told(near)}")

    def _problem(self, old: Version, new: Version) -> str | None:
        if new.op == DELETED:
            return None if old.state in TERMINAL and new.at - new.updated >= RETENTION else TOO_EARLY
        if old.state in TERMINAL:
            return None if self._is_retry(old, new) else CHANGED
        if old.state in READY:
            return self._from_ready(old, new)
        return self._from_processing(old, new)

    @staticmethod
    def _is_retry(old: Version, new: Version) -> bool:
        is_allowed = new.actor == OPERATOR and old.state != "done" and new.state == "pending"
        return is_allowed and (new.attempts, new.crashes, new.holder) == (old.attempts, 0, None)

    def _from_ready(self, old: Version, new: Version) -> str | None:
        match new.state:
            case "processing":
                self._claimer = new.actor
                is_leased = new.holder is not None and new.until is not None and new.until > new.at
                return None if is_leased and new.attempts == old.attempts + 1 else STEPS
            case "canceled" | "pending" if new.actor in (OPERATOR, None):
                return None if new.attempts == old.attempts and (old.state, new.state) != ("pending",) * 2 else STEPS
            case _:
                return STEPS

    def _from_processing(self, old: Version, new: Version) -> str | None:
        is_holder = new.actor == self._claimer
        charged = new.attempts - old.attempts
        match new.state:
            case "processing":
                if new.holder != old.holder or charged:
                    return TWICE
                return None if is_holder and (new.until or 0) >= (old.until or 0) else BY_OTHERS
            case "pending" if new.crashes == old.crashes + 1:
                self._verdict.reaps += 1
                self._reaps.append((old, self._claimer, new))
                if charged:
                    return STEPS
                return None if (old.until or 0) < new.at else TWICE
            case "pending":
                return BY_OTHERS if not is_holder else None if charged == -1 else STEPS
            case "canceled" if new.actor == OPERATOR:
                return STEPS if charged else None
            case _:
                if charged not in ((0, -1) if new.state == "failed" else (0,)):
                    return STEPS
                if not is_holder:
                    return BY_OTHERS
                if new.state == "canceled" and new.actor is None:
                    return None  # an operator's, perhaps: this database does not tell
                return None if self._outcomes.fits(old, new) else UNTRUE


def _judge_reaps(
    reaps: Iterable[tuple[Version, str | None, Version]], troubles: Sequence[Trouble], verdict: Verdict
) -> None:
    for held, claimer, reaped in reaps:
        last_sign = (held.until or 0) - LEASE
        is_explained = any(
            trouble.befell(claimer) and trouble.began <= reaped.at and trouble.ended + RECOVERY >= last_sign
            for trouble in troubles
        )
        if claimer is not None and not is_explained:
            verdict.add(NO_REASON, f"{held.topic} {held.job} of {claimer}:\n{_told([held, reaped])}")


def _judge_effects(records: Records, verdict: Verdict) -> None:
    effects = defaultdict(list)
    for effect in records.effects:
        effects[effect.job].append(effect)
    for job, versions in records.history.items():
        found = [(effect.attempt, effect.worker) for effect in effects.pop(job, [])]
        held = _held_when_done(versions)
        wanted = [] if held is None else [(held.attempts, held.holder)]
        is_right = found == wanted
        if versions[0].topic not in IN_SESSION:  # one that is pulled may have an effect, others have none
            is_right = found in ([], wanted if versions[0].topic == PULLED else [])
        if not is_right:
            verdict.add(EFFECTS, f"{versions[0].topic} {job} has {found}, not {wanted}:\n{_told(versions)}")
    for job, found_of_none in effects.items():
        verdict.add(EFFECTS, f"{job} never was in the table, and has {found_of_none}")


def _held_when_done(versions: Sequence[Version]) -> Version | None:
    """The job as it was held by the attempt that was recorded as its success; None if there was none."""
    for old, new in pairwise(versions):
        if new.state == "done":
            return old
    return None


def _judge_children(records: Records, verdict: Verdict) -> None:
    children = Counter(versions[0].parent for versions in records.history.values())
    for job, versions in records.history.items():
        wanted = versions[0].topic in CHAINING and final(versions).state == "done"
        if children.pop(job, 0) != wanted:
            verdict.add(CHILDREN, f"{versions[0].topic} {job}, {final(versions).state}")
    del children[None]
    for parent in children:
        verdict.add(CHILDREN, f"{parent} never was in the table")


def _told(versions: Iterable[Version]) -> str:
    return "\n".join(f"      {told(version)}" for version in versions)
