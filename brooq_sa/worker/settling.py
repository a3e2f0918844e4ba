"""Settling: one thread that writes the outcomes of all slots.

While a statement is under way outcomes gather, and the next takes them all: batches form by themselves, and share a
commit, without anybody waiting for one to fill.

An outcome stays here, and its job stays held and renewed, until the database has accepted or refused it. One that
cannot be written (a row that somebody keeps locked, a text that the database refuses) does not hold up the others.

What gives an attempt back is written while no claim is under way, and no claim begins until it is answered: the attempt
that follows has the same number, so that no fence could tell them apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

from sqlalchemy.exc import StatementError

from ..engines import Reserved, is_about_rows, is_refused, without_statement
from ..events import Events, JobDone
from ..log import get_logger
from ..outcomes import without_text
from ..states import State
from ..store import Holding, JobStore, Outcome
from . import facts
from .attempts import Finished, about
from .held import Held
from .slots import Slots

RETRY_LOCKED = 2.0
"""Seconds until an outcome whose row was locked is tried again."""

MOST_FAILURES = 4
"""How many outcomes of a batch may turn out to be locked before the rest of it is put off."""

MOST_OUTCOMES = 1000
"""How many outcomes share a commit at the most: nobody else can have their rows meanwhile."""


class Settling:
    """Writes outcomes; `turn` is one round of waiting for them and writing them.

    Args:
        store: of the table.
        reserved: the connection set apart for this.
    """

    def __init__(
        self,
        store: JobStore,
        reserved: Reserved,
        slots: Slots,
        *,
        worker: str,
        held: Held,
        events: Events,
    ) -> None:
        self._store = store
        self._reserved = reserved
        self._slots = slots
        self._worker = worker
        self._held = held
        self._events = events
        self._postponed: list[tuple[float, Finished]] = []
        self._again: list[Finished] = []
        self._unanswered: dict[Holding, Outcome] = {}

    def turn(self) -> float:
        batch = self._slots.wait_for_outcomes(self._next_moment())
        self._unpostpone()
        again, self._again = self._again, []
        try:
            while batch:
                self._settle_batch(batch)
            # Apart from the others, whom a row that is still locked would hold up.
            self._settle_singly(again, 1)
        finally:
            # Whatever an error left over comes first the next time.
            self._slots.put_first(batch)
            self._again[:0] = again
        return 0.0

    def _next_moment(self) -> float | None:
        if self._again:
            return 0.0
        return min((moment for moment, _ in self._postponed), default=None)

    def _unpostpone(self) -> None:
        now = time.monotonic()
        self._again.extend(finished for moment, finished in self._postponed if moment <= now)
        self._postponed = [(moment, finished) for moment, finished in self._postponed if moment > now]

    def _settle_batch(self, left: list[Finished]) -> None:
        """Write the first of `left` and report them; what an error kept from being tried stays there."""
        batch = left[:MOST_OUTCOMES]
        try:
            written = self._write([finished for finished in batch if not finished.is_written])
        except (StatementError, ValueError) as error:
            if not is_about_rows(error):
                raise
            self._settle_singly(left, MOST_FAILURES)
            return
        del left[:MOST_OUTCOMES]
        self._report(batch, written)

    def _settle_singly(self, left: list[Finished], most: int) -> None:
        """Write one after the other; once `most` of them could not be written, the rest is put off too.

        Each of those may have waited for a lock, and all the while nothing else is settled.
        """
        failed: list[Finished] = []
        try:
            while left and len(failed) < most:
                finished = left[0]
                try:
                    written = self._write_single(finished)
                except (StatementError, ValueError) as error:
                    if not is_about_rows(error):
                        raise
                    said = str(without_statement(error))
                    get_logger().warning("outcome_postponed", error=said, **about(finished.claim))
                    failed.append(finished)
                else:
                    self._report([finished], written)
                del left[0]
            self._postpone(left)
            left.clear()
        finally:
            self._postpone(failed)  # behind those that were not tried, or they would be first every time

    def _postpone(self, finished: Iterable[Finished]) -> None:
        due_at = time.monotonic() + RETRY_LOCKED
        self._postponed.extend((due_at, each) for each in finished)

    def _write_single(self, finished: Finished) -> set[Holding]:
        """Write one outcome; without its text, if the database refuses that."""
        if finished.outcome is None or finished.is_written:
            return set()
        try:
            return self._write([finished])
        except (StatementError, ValueError) as error:
            if finished.outcome.error is None or not is_refused(error):
                raise
            get_logger().error("error_text_refused", error=type(error).__name__, **about(finished.claim))
            plain = without_text(finished.outcome, error)
        return self._write([finished._replace(outcome=plain)])

    def _write(self, finished: Sequence[Finished]) -> set[Holding]:
        outcomes = [each.outcome for each in finished if each.outcome is not None]
        if not outcomes:
            return set()
        asked_before = _by_holding(outcomes).keys() & self._unanswered.keys() if self._unanswered else set()
        gives_back = any(outcome.give_back for outcome in outcomes)
        if gives_back:
            self._slots.hold_claims()
        try:
            with self._reserved.transaction(is_whole=gives_back) as connection:
                written = self._store.settle(connection, self._worker, outcomes)
                if doubtful := asked_before - written:
                    asked = _by_holding(outcomes)
                    written |= self._store.settled(connection, [asked[holding] for holding in doubtful])
                    # One that this worker has taken again since had been written, or nobody could have taken it.
                    written |= {
                        (job_id, attempt) for job_id, attempt in doubtful if (job_id, attempt + 1) in self._held
                    }
        except Exception as error:
            self._failed(error, _by_holding(outcomes), gives_back)
            raise
        self._answered(asked_before)
        return written

    def _failed(self, error: Exception, outcomes: dict[Holding, Outcome], gives_back: bool) -> None:
        if not is_about_rows(error):
            # A job that was taken again meanwhile could not tell any more that its outcome had been written.
            self._slots.hold_claims()
            self._unanswered |= outcomes
            return
        if not gives_back:  # some of the statements may have been carried out; in one transaction none was
            self._unanswered |= outcomes
        self._answered(())

    def _answered(self, holdings: Iterable[Holding]) -> None:
        for holding in holdings:
            del self._unanswered[holding]
        if not any(outcome.give_back for outcome in self._unanswered.values()):
            self._slots.allow_claims()

    def _report(self, batch: Sequence[Finished], written: set[Holding]) -> None:
        """The database has answered: the jobs are held no more, and what became of them is known."""
        self._held.discard([finished.claim for finished in batch])
        is_done_wanted = self._events.is_wanted(JobDone)
        if not is_done_wanted and len(written) == len(batch) and all(map(_is_success, batch)):
            self._slots.written(len(batch))
            return
        for finished in batch:
            claim, outcome = finished.claim, finished.outcome
            if outcome is None or not (finished.is_written or outcome.holding in written):
                self._events.publish(facts.lost(claim))
            elif is_done_wanted or outcome.state is not State.DONE:
                self._events.publish(facts.settled(claim, outcome, timedelta(seconds=finished.seconds)))
        self._slots.written(len(batch))


def _by_holding(outcomes: Iterable[Outcome]) -> dict[Holding, Outcome]:
    return {outcome.holding: outcome for outcome in outcomes}


def _is_success(finished: Finished) -> bool:
    return finished.outcome is not None and finished.outcome.state is State.DONE
