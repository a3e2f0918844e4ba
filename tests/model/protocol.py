"""Everything that two workers, a reaper, an operator and retention can do next, and what must never come of it.

Each job carries, beside its row, what nobody in the real world can see at once: which claims have ever been made on it,
how far each is in its worker's memory, whether an outcome of it has been accepted, and which statements about it are
still on their way. The invariants are judged by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from . import moves
from .moves import (
    ACTIVE,
    AHEAD,
    CANCELED,
    CANCELS,
    DEAD,
    DIES,
    FAILS,
    PAST,
    PRESERVED,
    PROCESSING,
    RELEASED,
    SUCCEEDED,
    TERMINAL,
    Moves,
    Outcome,
    Row,
    Terms,
)

WORKERS = (0, 1)
UP, STOPPING, GONE = "up", "stopping", "gone"
MAX_ATTEMPTS = 2
SLOTS = 2
"""How many claims a worker runs at a time: two, so that it can run a job twice at once."""

RULES = {
    "rule.give_backs_first": "A worker does not claim while a give-back of its own is sent and not answered.",
    "rule.whole_give_back": "A give-back whose connection broke is either in the row by then or never will be.",
    "rule.whole_release": "The same of giving back what a lost claim may have taken.",
    "rule.whole_session": "The same of a success in the claim's own session.",
    "rule.last_attempt": "A failure says dead on the last attempt alone.",
    "rule.claim_charges": "A claim adds one to the attempts.",
    "rule.claim_leases": "A claim writes both halves of the lease.",
    "rule.reap_keeps_attempts": "Reaping leaves the attempts alone.",
    "rule.reap_is_no_failure": "Reaping leads to pending, whatever the attempts.",
}
"""What the invariants need beside the guards: of the worker, and of what the statements write."""

RUNNING, WAITING, GIVEN_UP, OVER, UNKNOWN = "running", "waiting", "given up", "over", "unknown"
"""Where a claim is in its worker's memory.

Its handler runs; its outcome is sent and not answered; a stop has released it although its handler still runs; it is no
more; it never was there, since its worker did not get the answer. An Outcome in this place is one that has to be sent
again, since the connection broke before it was answered.
"""


UNSENT = PRESERVED._replace(name="failed, attempt given back, first sent now")
"""What becomes of a success in the claim's own session that was not answered."""

_CHOSEN = ("claim chose", "release chose")
"""First steps whose second one the worker waits for before it claims."""


class Run(NamedTuple):
    """A claim that was made: one taking of the job.

    Attributes:
        phase: one of the above, or the outcome to send again.
        written: the outcome of it that the database has accepted.
    """

    worker: int
    attempt: int
    phase: str | Outcome
    written: Outcome | None = None


class Flight(NamedTuple):
    """A statement on its way.

    Attributes:
        run: the number of the run that it is about, from 0; -1 if it is about none.
    """

    statement: str
    worker: int
    run: int = -1
    outcome: Outcome | None = None


class Job(NamedTuple):
    """A job, seen from everywhere at once.

    Attributes:
        row: None once retention has deleted it.
        holding: the number of the run that the row's lease was given to; -1 for none.
        leased: the number of the run whose lease neither ran out nor was ended by its own outcome or the operator.
    """

    row: Row | None = Row()
    runs: tuple[Run, ...] = ()
    flights: tuple[Flight, ...] = ()
    holding: int = -1
    leased: int = -1


class Budget(NamedTuple):
    """How often each may still happen."""

    crash: int = 0
    sleep: int = 0
    lost: int = 0
    delay: int = 0
    cancel: int = 0
    retry: int = 0
    stop: int = 0


class World(NamedTuple):
    """All there is.

    Attributes:
        workers: whether each is UP, STOPPING or GONE.
    """

    jobs: tuple[Job, ...]
    workers: tuple[str, str]
    budget: Budget


class Step(NamedTuple):
    """Something that happens.

    Attributes:
        kind: what, in a word or two.
        job: the number of the job, from 0.
        details: who, which run, what it came to.
        world: what it leads to.
        broken: the invariants that it breaks, each with the reason.
    """

    kind: str
    job: int
    details: str
    world: World
    broken: tuple[str, ...] = ()


@cache
def _name(worker: int) -> str:
    return f"worker {'AB'[worker]}"


class Protocol:
    """The steps there are from any world.

    Args:
        without: names of guards and rules to do without.
        takings: how often a job may be taken in all.
        tells_time: whether delays and ages pass in steps of their own. Otherwise a job is claimed as soon as it waits
            and deleted as soon as it is terminal, which stands for all the later moments too: nothing but the claim and
            retention looks at either.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        jobs: int = 1,
        takings: int = 3,
        without: frozenset[str] = frozenset(),
        tells_time: bool = False,
    ) -> None:
        known = {guard.full_name for guard in moves.GUARDS} | set(moves.AGAIN) | set(RULES)
        if unknown := without - known:
            raise ValueError(f"no such guard or rule: {', '.join(sorted(unknown))}")
        self.start = World((Job(),) * jobs, (UP, UP), budget)
        self._takings = takings
        self._moves = Moves(without)
        self._fits = cache(self._moves.fits)
        self._without = without
        self._has_give_backs_first = "rule.give_backs_first" not in without
        self._tells_time = tells_time
        self._active_grow_old = "purge.state" in without  # otherwise it makes no difference

    def steps(self, world: World) -> Iterator[Step]:
        """Whatever can happen next."""
        for number, job in enumerate(world.jobs):
            for worker in WORKERS:
                if world.workers[worker] is UP:
                    yield from self._claims(world, number, worker)
                if job.row is not None and job.row.holder == worker:
                    yield from self._releases(world, number, worker)
            for run in range(len(job.runs)):
                if job.runs[run].phase not in (OVER, UNKNOWN):
                    yield from self._settles(world, number, run)
                    yield from self._renewals(world, number, run)
            yield from self._arrivals(world, number)
            yield from self._time(world, number)
            if job.row is not None:
                yield from self._upkeep(world, number)
                yield from self._operator(world, number)
            yield from self._crashes(world, number)

    # Claiming.

    def _claims(self, world: World, number: int, worker: int) -> Iterator[Step]:
        job, lost = world.jobs[number], world.budget.lost
        if len(job.runs) >= self._takings or _is_mirror_image(world, number, worker) or self._is_busy(world, worker):
            return
        row = None if job.row is None else self._aged(job.row)
        if row is not None and self._fits("claim", row, Terms(worker=worker)):
            if "claim" in self._moves.unlocked:
                chosen = _send(job, Flight("claim chose", worker))
                yield _step("choose", world, number, chosen, f"{_name(worker)} chooses it for a claim, locking nothing")
                return
            taken, broken = self._taken(job, row, worker, RUNNING)
            yield _step("claim", world, number, taken, _claim_text(taken), broken)
            if lost:
                taken, broken = self._taken(job, row, worker, UNKNOWN)
                text = f"{_claim_text(taken)}, but its acknowledgement is lost: the worker knows nothing of it"
                yield _step("claim lost", _spend(world, lost=lost - 1), number, taken, text, broken)
        if lost and not _has_flight(job, "claim", worker):
            sent = _send(job, Flight("claim", worker))
            text = f"{_name(worker)} sends a claim, its connection breaks, and the statement is still on its way"
            yield _step("claim orphaned", _spend(world, lost=lost - 1), number, sent, text)

    def _is_busy(self, world: World, worker: int) -> bool:
        """Whether a worker cannot claim: no slot is free, or a give-back is to be answered first."""
        running = 0
        for job in world.jobs:
            for run in job.runs:
                if run.worker == worker and run.phase not in (OVER, UNKNOWN):
                    if self._has_give_backs_first and _is_giving_back(job, run):
                        return True
                    running += 1
            if any(flight.worker == worker and flight.statement in _CHOSEN for flight in job.flights):
                return True
        return running >= SLOTS

    def _taken(self, job: Job, row: Row, worker: int, phase: str) -> tuple[Job, tuple[str, ...]]:
        broken = []
        after = moves.claimed(row, worker)
        if "rule.claim_charges" in self._without:
            after = after._replace(attempts=row.attempts)
        if "rule.claim_leases" in self._without:
            after = after._replace(until=None)
        if job.leased >= 0:
            broken.append(f"I2: run {job.leased + 1} still has an unexpired lease on the job")
        if not row.is_due:
            broken.append("I10: the job was not due yet")
        broken += _judge(row, after)
        runs = (*job.runs, Run(worker, after.attempts, phase))
        return Job(after, runs, job.flights, len(job.runs), len(job.runs)), tuple(broken)

    # Settling.

    def _settles(self, world: World, number: int, run: int) -> Iterator[Step]:
        job, lost, delay = world.jobs[number], world.budget.lost, world.budget.delay
        phase = job.runs[run].phase
        if isinstance(phase, Outcome):
            yield from self._settle(world, number, run, phase, "settle again")
            return
        if phase is GIVEN_UP:
            # What its handler raises now counts as the stop's doing, and would release the job again.
            yield from self._settle(world, number, run, SUCCEEDED, "settle given up")
            yield from self._settle(world, number, run, RELEASED, "settle given up")
        if phase is not RUNNING:
            return
        if world.budget.stop:
            workers = _with_worker(world.workers, job.runs[run].worker, STOPPING)
            stopping = World(world.jobs, workers, world.budget._replace(stop=world.budget.stop - 1))
            yield from self._settle(stopping, number, run, RELEASED, "give up", then=GIVEN_UP)
        for outcome in self._endings(job.runs[run].attempt):
            yield from self._settle(world, number, run, outcome, "settle")
            if lost:
                unanswered = _spend(world, lost=lost - 1)
                yield from self._settle(unanswered, number, run, outcome, "settle lost", then=outcome)
                if outcome is SUCCEEDED:
                    yield from self._settle(unanswered, number, run, outcome, "session lost", then=UNSENT)
                yield from self._orphans(unanswered, number, run, outcome)
            if delay:
                waiting = _send(_in_phase(job, run, WAITING), Flight("settle", job.runs[run].worker, run, outcome))
                text = f"{_run_text(job, run)} sends '{outcome.name}', which takes its time"
                yield _step("settle sent", _spend(world, delay=delay - 1), number, waiting, text)

    def _endings(self, attempt: int) -> Iterator[Outcome]:
        """How a handler can end: by itself, or by a shutdown of its worker."""
        yield SUCCEEDED
        is_last = attempt >= MAX_ATTEMPTS
        if is_last or "rule.last_attempt" in self._without:
            yield DIES
        if not is_last:
            yield FAILS
        yield PRESERVED
        yield CANCELS
        yield RELEASED

    def _orphans(self, world: World, number: int, run: int, outcome: Outcome) -> Iterator[Step]:
        """The connection breaks, and what was sent on it may still arrive after what is sent on the next one."""
        job = world.jobs[number]
        flight = Flight("settle orphan", job.runs[run].worker, run, outcome)
        text = f"{_run_text(job, run)} sends '{outcome.name}', its connection breaks, and that is still on its way"
        if not outcome.gives_back or "rule.whole_give_back" in self._without:
            yield _step("settle orphaned", world, number, _send(_in_phase(job, run, outcome), flight), text)
        if outcome is SUCCEEDED and "rule.whole_session" in self._without:
            yield _step("session orphaned", world, number, _send(_in_phase(job, run, UNSENT), flight), text)

    def _settle(
        self, world: World, number: int, run: int, outcome: Outcome, kind: str, then: str | Outcome = OVER
    ) -> Iterator[Step]:
        """An outcome is written where its guards let it; its run then is in phase `then`."""
        jobs, is_accepted, broken = self._written(world.jobs, number, run, outcome)
        text = f"{_run_text(jobs[number], run)} writes '{outcome.name}': {'accepted' if is_accepted else 'refused'}"
        if kind in ("orphan arrives", "settle arrives"):
            text = f"what was on its way arrives: {text}"
        if then is GIVEN_UP:
            text += "; its worker stops, though its handler still runs"
        elif then is UNSENT:
            text += ", but the answer is lost: it will send 'failed, attempt given back'"
        elif isinstance(then, Outcome) and kind != "orphan arrives":
            text += ", but the answer is lost: it will send that again"
        job = _in_phase(jobs[number], run, then)
        world = World(jobs, world.workers, world.budget)
        yield _step(kind if is_accepted else f"{kind}, refused", world, number, job, text, broken)

    def _written(
        self, jobs: tuple[Job, ...], number: int, run: int, outcome: Outcome
    ) -> tuple[tuple[Job, ...], bool, tuple[str, ...]]:
        sender = jobs[number].runs[run]
        statement = "settle_done" if outcome is SUCCEEDED else "settle_otherwise"
        broken: list[str] = []
        after = []
        is_accepted = False
        for each, job in enumerate(jobs):
            row = job.row
            if row is None or not self._fits(statement, row, Terms(each == number, sender.worker, sender.attempt)):
                after.append(job)
                continue
            written = moves.settled(row, outcome)
            broken += _judge(row, written)
            if each != number:
                broken.append(f"I12: job {each + 1} took the outcome of a run of job {number + 1}")
                after.append(job._replace(row=written))
                continue
            is_accepted = True
            about = run
            if job.holding != run and job.holding >= 0 and _is_unknown(job, row, sender):
                about = job.holding  # nobody runs that one: this is the outcome of the only run there is
            elif job.holding != run:
                broken.append(f"I12: the job is held by run {job.holding + 1}, and took the outcome of run {run + 1}")
            if job.runs[about].written is not None:
                broken.append(f"I11: run {about + 1} had its outcome accepted before")
            if outcome is DIES and sender.attempt < MAX_ATTEMPTS:
                broken.append(f"I7: the job died of attempt {sender.attempt} of {MAX_ATTEMPTS}")
            runs = _changed(job.runs, about, job.runs[about]._replace(written=outcome))
            leased = -1 if job.leased == job.holding else job.leased
            after.append(Job(written, runs, job.flights, -1, leased))
        return tuple(after), is_accepted, tuple(broken)

    # Giving back what a claim took whose answer was lost.

    def _releases(self, world: World, number: int, worker: int) -> Iterator[Step]:
        """As a worker does before it claims again, and at its end, if it may hold what it does not know."""
        job, lost = world.jobs[number], world.budget.lost
        if job.holding < 0 or job.runs[job.holding].phase is not UNKNOWN:
            return
        if "release_unknown" in self._moves.unlocked:
            if not _has_flight(job, "release chose", worker):
                chosen = _send(job, Flight("release chose", worker))
                text = f"{_name(worker)} chooses what it holds and does not know, locking nothing"
                yield _step("choose", world, number, chosen, text)
            return
        yield from self._release(world, number, worker, "release unknown")
        if lost and "rule.whole_release" in self._without and not self._knows(job, worker):
            sent = _send(job, Flight("release orphan", worker))
            text = (
                f"{_name(worker)} gives back what it does not know, its connection breaks, and that is still on its way"
            )
            yield _step("release orphaned", _spend(world, lost=lost - 1), number, sent, text)

    def _release(
        self, world: World, number: int, worker: int, kind: str, *, knew: bool | None = None
    ) -> Iterator[Step]:
        """What the worker does not know of the jobs that it holds goes back.

        Args:
            knew: whether it knew of this job when it sent the statement; by default it has sent it just now.
        """
        jobs = []
        broken: list[str] = []
        for each, job in enumerate(world.jobs):
            is_known = self._knows(job, worker) if knew is None else knew or each != number
            if job.row is None or not self._fits("release_unknown", job.row, Terms(is_known, worker)):
                jobs.append(job)
                continue
            after, more = _released(job, job.row)
            jobs.append(after)
            broken += more
        late = "" if knew is None else "what was on its way arrives: "
        text = f"{late}{_name(worker)} gives back what it holds and does not know"
        after_all = world._replace(jobs=tuple(jobs))
        yield _step(kind, after_all, number, jobs[number], text, tuple(broken))

    @staticmethod
    def _knows(job: Job, worker: int) -> bool:
        return any(run.worker == worker and run.phase not in (OVER, UNKNOWN) for run in job.runs)

    # Renewing.

    def _renewals(self, world: World, number: int, run: int) -> Iterator[Step]:
        job = world.jobs[number]
        holder = job.runs[run]
        yield from self._renew(world, number, run, "renew")
        if world.budget.delay and not _has_flight(job, "renew", holder.worker):
            sent = _send(job, Flight("renew", holder.worker, run))
            text = f"{_run_text(job, run)} is to be renewed by a statement that takes its time"
            yield _step("renew sent", _spend(world, delay=world.budget.delay - 1), number, sent, text)
        if holder.phase is RUNNING and job.leased != run:
            text = f"{_run_text(job, run)} sees by its own clock that its lease has run out, and writes nothing"
            yield _step("distrust", world, number, _in_phase(job, run, OVER), text)

    def _renew(self, world: World, number: int, run: int, kind: str) -> Iterator[Step]:
        jobs = list(world.jobs)
        sender = jobs[number].runs[run]
        broken: list[str] = []
        is_renewed = False
        for each, job in enumerate(world.jobs):
            row = job.row
            if row is None or not self._fits("renew", row, Terms(each == number, sender.worker, sender.attempt)):
                continue
            if each != number:
                broken.append(f"I12: a renewal for job {number + 1} prolonged the lease of job {each + 1}")
                continue
            is_renewed = True
            if "renew" in self._moves.unlocked:
                chosen = _send(job, Flight("renew chose", sender.worker, run))
                if not _has_flight(job, "renew chose", sender.worker):
                    text = f"the renewal of {_run_text(job, run)} chooses it, locking nothing"
                    yield _step("choose", world, number, chosen, text)
                return
            jobs[each], more = _renewed(job, row, run)
            broken += more
        told = jobs[number].runs[run]
        if not is_renewed and told.phase is RUNNING:
            jobs[number] = _in_phase(jobs[number], run, OVER)
        if tuple(jobs) != world.jobs or broken or kind != "renew":
            answer = "renewed" if is_renewed else "not renewed, and its handler is told to stop"
            text = f"{_run_text(world.jobs[number], run)} asks to be renewed: {answer}"
            kind = kind if is_renewed else f"{kind}, refused"
            yield _step(kind, world._replace(jobs=tuple(jobs)), number, jobs[number], text, tuple(broken))

    # Statements that arrive late.

    def _arrivals(self, world: World, number: int) -> Iterator[Step]:
        job = world.jobs[number]
        for index, flight in enumerate(job.flights):
            if flight in job.flights[:index]:
                continue
            landed = job._replace(flights=job.flights[:index] + job.flights[index + 1 :])
            yield from self._arrival(_with_job(world, number, landed), number, flight)

    def _arrival(self, world: World, number: int, flight: Flight) -> Iterator[Step]:
        job = world.jobs[number]
        row, run, outcome = job.row, flight.run, flight.outcome
        if row is not None:
            row = self._aged(row)
        match flight.statement:
            case "settle" if outcome is not None:
                yield from self._settle(world, number, run, outcome, "settle arrives")
            case "settle orphan" if outcome is not None:
                yield from self._settle(world, number, run, outcome, "orphan arrives", then=job.runs[run].phase)
            case "renew":
                yield from self._renew(world, number, run, "renew arrives")
            case "renew chose" if row is not None and self._moves.fits_still("renew", row, _terms(job, run)):
                after, broken = _renewed(job, row, run)
                yield _step(
                    "second step", world, number, after, f"the lease of {_run_text(job, run)} is prolonged", broken
                )
            case "claim" if row is not None and len(job.runs) < self._takings and self._fits("claim", row, Terms()):
                taken, broken = self._taken(job, row, flight.worker, UNKNOWN)
                text = f"{_claim_text(taken)} by a statement of a broken connection: nobody knows of it"
                yield _step("claim arrives", world, number, taken, text, broken)
            case "claim chose" if row is not None and len(job.runs) < self._takings:
                taken, broken = self._taken(job, row, flight.worker, RUNNING)
                yield _step("second step", world, number, taken, _claim_text(taken), broken)
            case "release orphan" if row is not None:
                yield from self._release(world, number, flight.worker, "release arrives", knew=False)
            case "release chose" if row is not None and self._moves.fits_still(
                "release_unknown", row, Terms(worker=flight.worker)
            ):
                after, broken = _released(job, row)
                yield _step("second step", world, number, after, "what was chosen is given back", broken)
            case "reap chose" if row is not None and self._moves.fits_still("reap", row, Terms()):
                after, broken = self._reaped(job, row)
                yield _step("second step", world, number, after, "the reaper returns what it chose", broken)
            case "purge chose" if row is not None and self._moves.fits_still("purge", row, Terms()):
                yield _step(
                    "second step", world, number, _deleted(job), "retention deletes what it chose", _unripe(row)
                )
            case _:
                yield _step("nothing found", world, number, job, f"a late {flight.statement} finds nothing to do")

    # Time, upkeep and the operator.

    def _time(self, world: World, number: int) -> Iterator[Step]:
        job = world.jobs[number]
        row = job.row
        if row is None:
            return
        if row.until == AHEAD and row.state == PROCESSING:
            later = job._replace(row=row._replace(until=PAST), leased=-1)
            run = job.runs[job.holding] if job.holding >= 0 else None
            if run is None or run.phase in (OVER, UNKNOWN):
                yield _step("lapse", world, number, later, "the lease runs out, and nobody renews it")
            elif world.budget.sleep:
                slept = _spend(world, sleep=world.budget.sleep - 1)
                text = f"{_run_text(job, job.holding)} sleeps until its lease has run out"
                yield _step("sleep", slept, number, later, text)
        if not self._tells_time:
            return
        if not row.is_due and row.state in moves.READY:
            yield _step("due", world, number, job._replace(row=row._replace(is_due=True)), "its delay passes")
        if not row.is_old and (row.state in TERMINAL or self._active_grow_old):
            text = "nothing happens to it for longer than retention's time"
            yield _step("grow old", world, number, job._replace(row=row._replace(is_old=True)), text)

    def _upkeep(self, world: World, number: int) -> Iterator[Step]:
        job = world.jobs[number]
        assert job.row is not None
        row = self._aged(job.row)
        for statement, who in (("reap", "the reaper"), ("purge", "retention")):
            if statement in self._moves.unlocked:
                if self._fits(statement, row, Terms()) and not _has_flight(job, f"{statement} chose", -1):
                    chosen = _send(job, Flight(f"{statement} chose", -1))
                    yield _step("choose", world, number, chosen, f"{who} chooses it, locking nothing")
                continue
            if not self._fits(statement, row, Terms()):
                continue
            if statement == "reap":
                after, broken = self._reaped(job, row)
                yield _step("reap", world, number, after, "the reaper returns it", broken)
            else:
                yield _step("purge", world, number, _deleted(job), "retention deletes it", _unripe(row))

    def _aged(self, row: Row) -> Row:
        """The row as time leaves it, unless time passes in steps of its own."""
        return row if self._tells_time else _later(row)

    def _reaped(self, job: Job, row: Row) -> tuple[Job, tuple[str, ...]]:
        after = moves.reaped(row)
        if "rule.reap_keeps_attempts" in self._without:
            after = after._replace(attempts=row.attempts + 1)
        if "rule.reap_is_no_failure" in self._without and row.attempts >= MAX_ATTEMPTS:
            after = after._replace(state=DEAD)
        died = ("I7: the job died of no recorded failure",) if after.state == DEAD else ()
        return job._replace(row=after, holding=-1), _judge(row, after) + died

    def _operator(self, world: World, number: int) -> Iterator[Step]:
        row, cancel, retry = world.jobs[number].row, world.budget.cancel, world.budget.retry
        assert row is not None
        if cancel:
            spent = _spend(world, cancel=cancel - 1)
            for statement in ("cancel_waiting", "cancel_processing"):
                yield from self._operate(spent, number, statement, "cancel", moves.canceled)
            if row.state in ACTIVE:
                job = world.jobs[number]
                plain = job._replace(row=moves.canceled_in_plain_sql(row), leased=-1)
                yield _step("cancel in SQL", spent, number, plain, "the operator cancels it in plain SQL")
        if retry:
            yield from self._operate(_spend(world, retry=retry - 1), number, "retry", "retry", moves.retried)

    def _operate(self, world: World, number: int, statement: str, kind: str, change: object) -> Iterator[Step]:
        jobs = list(world.jobs)
        broken: list[str] = []
        is_moved = False
        for each, job in enumerate(world.jobs):
            row = job.row
            if row is None or not self._fits(statement, row, Terms(each == number)):
                continue
            is_moved = True
            after = moves.retried(row) if change is moves.retried else moves.canceled(row)
            if each != number:
                broken.append(f"aim: the operator meant job {number + 1}, and job {each + 1} was moved")
            broken += _judge(row, after, is_retry=kind == "retry")
            jobs[each] = job._replace(row=after, holding=-1, leased=-1)
        if is_moved:
            verb = "sends it round again" if kind == "retry" else "cancels it"
            moved = world._replace(jobs=tuple(jobs))
            yield _step(kind, moved, number, jobs[number], f"the operator {verb} ({statement})", tuple(broken))

    def _crashes(self, world: World, number: int) -> Iterator[Step]:
        """The holder of a lease crashes; to crash without one is like doing nothing more."""
        job = world.jobs[number]
        row = job.row
        if not world.budget.crash or row is None or row.state != PROCESSING or job.holding < 0:
            return
        run = job.runs[job.holding]
        if run.phase in (OVER, UNKNOWN):
            return
        jobs = tuple(each._replace(runs=tuple(_lost(each, run.worker))) for each in world.jobs)
        workers = _with_worker(world.workers, run.worker, GONE)
        after = World(jobs, workers, world.budget._replace(crash=world.budget.crash - 1))
        yield Step("crash", number, f"{_name(run.worker)} crashes", after)


def invariants(world: World) -> Iterator[str]:
    """What a world breaks as it stands."""
    for job in world.jobs:
        row = job.row
        if row is None:
            continue
        if row.state == PROCESSING and (row.holder is None or row.until is None):
            yield "I1: a processing job without both halves of a lease"
        given_back = len([run for run in job.runs if run.written is not None and run.written.gives_back])
        if row.attempts != len(job.runs) - given_back:
            yield f"I6: {row.attempts} attempts after {len(job.runs)} takings of which {given_back} were given back"


def canonical(world: World) -> World:
    """The world without what makes no difference any more."""
    jobs = tuple([_canonical_job(job) for job in world.jobs])
    return world if jobs == world.jobs else World(jobs, world.workers, world.budget)


FORGOTTEN = Run(-1, 0, OVER)
FORGOTTEN_GIVEN_BACK = Run(-1, 0, OVER, RELEASED)


@cache
def _canonical_job(job: Job) -> Job:
    row = job.row
    if row is None:
        return Job(None)
    if row.state in TERMINAL and not row.is_due:
        row = row._replace(is_due=True)
    spoken_of = {flight.run for flight in job.flights}
    runs = tuple(
        _forgotten(run) if _is_history(job, number, run) and number not in spoken_of else run
        for number, run in enumerate(job.runs)
    )
    return Job(row, runs, job.flights, job.holding, job.leased)


def _is_history(job: Job, number: int, run: Run) -> bool:
    return run.phase is OVER or (run.phase is UNKNOWN and job.holding != number)


def _forgotten(run: Run) -> Run:
    """All that counts of a run that is over, and of which no statement is on its way."""
    return FORGOTTEN_GIVEN_BACK if run.written is not None and run.written.gives_back else FORGOTTEN


def _is_mirror_image(world: World, number: int, worker: int) -> bool:
    """Whether a claim by this worker, on this job, is like one by the first worker or on the first job."""
    is_first = not any(job.runs or job.flights for job in world.jobs)
    return is_first and (worker > 0 or number > 0)


@cache
def _later(row: Row) -> Row:
    return row._replace(is_due=True, is_old=row.state in TERMINAL)


def _judge(row: Row, after: Row, *, is_retry: bool = False) -> tuple[str, ...]:
    """Whether a write that is none of retention's may change a row so."""
    is_allowed = row.state not in TERMINAL or (is_retry and row.state in (DEAD, CANCELED))
    return () if is_allowed or row == after else (f"I3: a {row.state} job was written to",)


def _unripe(row: Row) -> tuple[str, ...]:
    """Whether retention may delete a row."""
    if row.state not in TERMINAL:
        return (f"U2: a {row.state} job was deleted",)
    return () if row.is_old else ("U2: a job was deleted before retention's time",)


def _renewed(job: Job, row: Row, run: int) -> tuple[Job, tuple[str, ...]]:
    """A renewal for a run is accepted.

    It may meet a later run of the same worker at the same number, if the earlier one is over and had its attempt given
    back: the worker holds the job either way, and nobody is told anything wrong.
    """
    after = moves.renewed(row)
    broken = list(_judge(row, after))
    sender = job.runs[run]
    is_harmless = job.holding >= 0 and sender.written is not None and row.holder == sender.worker
    if job.holding != run and not is_harmless:
        broken.append(f"I12: the job is held by run {job.holding + 1}, and run {run + 1} was told that it holds it")
    leased = job.holding if row.state == PROCESSING else job.leased
    return job._replace(row=after, leased=leased), tuple(broken)


def _is_unknown(job: Job, row: Row, sender: Run) -> bool:
    """Whether the lease was given to a claim of the sender's worker of which that worker knows nothing."""
    return job.runs[job.holding].phase is UNKNOWN and row.holder == sender.worker


def _lost(job: Job, worker: int) -> Iterator[Run]:
    for run in job.runs:
        yield run if run.worker != worker or run.phase is UNKNOWN else run._replace(phase=OVER)


def _with_worker(workers: tuple[str, str], worker: int, mood: str) -> tuple[str, str]:
    return (mood, workers[1]) if worker == 0 else (workers[0], mood)


def _released(job: Job, row: Row) -> tuple[Job, tuple[str, ...]]:
    """What a worker believes that it does not know is given back."""
    after = moves.released_unknown(row)
    broken = list(_judge(row, after))
    run = job.runs[job.holding] if job.holding >= 0 else None
    if run is None:
        return job._replace(row=after), tuple(broken)
    if run.phase is not UNKNOWN and run.phase is not OVER:
        broken.append(f"I12: run {job.holding + 1} is going on, and was released by a statement that is not its own")
    runs = _changed(job.runs, job.holding, run._replace(written=RELEASED))
    return Job(after, runs, job.flights, -1, -1), tuple(broken)


def _terms(job: Job, run: int) -> Terms:
    return Terms(True, job.runs[run].worker, job.runs[run].attempt)


def _deleted(job: Job) -> Job:
    return job._replace(row=None, holding=-1, leased=-1)


def _has_flight(job: Job, statement: str, worker: int) -> bool:
    return any(flight.statement == statement and flight.worker == worker for flight in job.flights)


def _send(job: Job, flight: Flight) -> Job:
    return job._replace(flights=tuple(sorted((*job.flights, flight), key=repr)))


def _is_giving_back(job: Job, run: Run) -> bool:
    """Whether an outcome that gives the attempt back is sent and not answered."""
    if run.phase is WAITING:
        number = job.runs.index(run)
        return any(flight.run == number and flight.outcome and flight.outcome.gives_back for flight in job.flights)
    return isinstance(run.phase, Outcome) and run.phase.gives_back and run.phase != UNSENT


def _in_phase(job: Job, run: int, phase: str | Outcome) -> Job:
    worker, attempt, before, written = job.runs[run]
    if before is phase:
        return job
    runs = _changed(job.runs, run, Run(worker, attempt, phase, written))
    return Job(job.row, runs, job.flights, job.holding, job.leased)


def _changed(runs: tuple[Run, ...], number: int, run: Run) -> tuple[Run, ...]:
    return (*runs[:number], run, *runs[number + 1 :])


def _spend(world: World, **left: int) -> World:
    return world._replace(budget=world.budget._replace(**left))


def _with_job(world: World, number: int, job: Job) -> World:
    jobs = (job,) if len(world.jobs) == 1 else (*world.jobs[:number], job, *world.jobs[number + 1 :])
    return World(jobs, world.workers, world.budget)


def _step(kind: str, world: World, number: int, job: Job, details: str, broken: tuple[str, ...] = ()) -> Step:
    return Step(kind, number, details, _with_job(world, number, job), broken)


def _run_text(job: Job, run: int) -> str:
    return _described(run, job.runs[run].worker, job.runs[run].attempt)


@cache
def _described(run: int, worker: int, attempt: int) -> str:
    return f"run {run + 1} ({_name(worker)}, attempt {attempt})"


def _claim_text(job: Job) -> str:
    run = job.runs[-1]
    return f"{_name(run.worker)} claims it: run {len(job.runs)}, attempt {run.attempt}"
