"""A thread that turns until it is stopped, whatever a turn raises."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from ..backoff import backoff
from ..engines import without_statement
from ..exc import AccessError, SchemaError
from ..log import get_logger
from ..observer import Observer

FIRST_PAUSE = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(seconds=5)


class Loop:
    """Calls `turn` again and again on a thread of its own.

    A turn that raises is logged, and tried again after a pause that grows to `LONGEST_PAUSE`; the loop never dies of
    it. Until a turn succeeds, `trouble` says what is wrong.

    Args:
        name: of the thread, and in logs.
        turn: does one round of work; returns how many seconds to wait before the next, or until `wake`.
        longest_pause: after a turn that raised.
        worker: whose loop it is, for its lines in the log.
        observer: told of errors of the database.

    Attributes:
        trouble: what the last turn failed of; None if it did not.
        has_turned: whether any turn has succeeded.
        turned_at: when the last turn ended, well or not, by the monotonic clock; until then, when it was started.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        longest_pause: timedelta = LONGEST_PAUSE,
        worker: str | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.name = name
        self.trouble: str | None = None
        self.has_turned = False
        self.turned_at = time.monotonic()
        self._bound = {} if worker is None else {"worker": worker}
        self._observer = observer or Observer()
        self._turn = turn
        self._longest_pause = min(longest_pause, LONGEST_PAUSE)
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"brooq-{name}", daemon=True)

    def start(self) -> None:
        self.turned_at = time.monotonic()
        self._thread.start()

    def wake(self) -> None:
        """Take the next turn now."""
        self._woken.set()

    def stop(self, timeout: float | None = None) -> bool:
        """Let the turn under way end, and no other begin; whether that was so within `timeout` seconds."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                pause = self._turn()
                failures = 0
                self.has_turned = True
                self._recovered()
            except BaseException as error:  # noqa: BLE001 - logged, and tried again
                failures += 1
                pause = backoff(failures, min(FIRST_PAUSE, self._longest_pause), self._longest_pause).total_seconds()
                self._failed(error, pause)
            self.turned_at = time.monotonic()
            self._woken.wait(pause)
            self._woken.clear()

    def _failed(self, error: BaseException, pause: float) -> None:
        # The stack is worth its lines once; after that the outage is known.
        exc_info = error if self.trouble is None else None
        said = without_statement(error)
        self.trouble = type(said).__name__
        with suppress(Exception):  # if it is the log that fails, `trouble` alone can say so
            self.trouble += f": {said}"
            if isinstance(error, SQLAlchemyError | SchemaError | AccessError):
                self._observer.failed(self.name)
            get_logger().error(
                f"{self.name}_failed",
                error=self.trouble,
                next_try_in=round(pause, 3),
                exc_info=exc_info,
                **self._bound,
            )

    def _recovered(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            get_logger().info(f"{self.name}_recovered", **self._bound)
