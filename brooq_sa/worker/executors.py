"""Where handlers run: a thread each for ``def``, one event loop for all ``async def``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

from ..log import get_logger
from ..outcomes import Redact
from .attempts import Assignment, Finished, run, run_async
from .event_loop import begin_first, new_event_loop

PATIENCE = 1.0
"""Seconds that an event loop has to show that it turns."""

Finish = Callable[[Finished, Any], tuple[bool, Assignment | None]]
"""`Slots.ended`: takes an attempt that has ended and its executor; whether it had been given up, and what is next."""


class ThreadExecutor:
    """Runs ``def`` handlers. Threads are made when they are first needed, and kept."""

    thread_name = "brooq-slot"

    def __init__(self, finish: Finish, redact: Redact | None, *, worker: str | None = None) -> None:
        self._finish = finish
        self._worker = worker
        self._redact = redact
        self._waiting: SimpleQueue[Assignment | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []
        self._stuck = 0

    def submit(self, assignments: Sequence[Assignment]) -> None:
        """Run them.

        Raises:
            RuntimeError: the system gives no more threads. None of them is run.
        """
        with self._lock:
            self._make_threads(self._unfinished + len(assignments))
            self._unfinished += len(assignments)
        for assignment in assignments:
            self._waiting.put(assignment)

    def _make_threads(self, count: int) -> None:
        while len(self._threads) - self._stuck < count:
            name = f"{self.thread_name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def replace(self) -> None:
        """One handler is given up: its thread counts no more, and another may be made in its place."""
        with self._lock:
            self._unfinished -= 1
            self._stuck += 1

    def take_unstarted(self) -> list[Assignment]:
        """Take back what no thread has begun."""
        unstarted: list[Assignment] = []
        try:
            while (assignment := self._waiting.get_nowait()) is not None:
                unstarted.append(assignment)
        except Empty:
            pass
        with self._lock:
            self._unfinished -= len(unstarted)
        return unstarted

    def stop(self) -> None:
        """Let threads that are idle, or will be, end."""
        for _ in self._threads:
            self._waiting.put(None)

    def _serve(self) -> None:
        while (assignment := self._waiting.get()) is not None:
            following: Assignment | None = assignment
            while following is not None:
                finished = self._run(following)
                with self._lock:
                    self._unfinished -= 1
                is_hung, following = self._finish(finished, self)
                if is_hung:
                    self._retire()
                    return
                if following is not None:
                    self._keep_on()

    def _keep_on(self) -> None:
        """This thread goes on with another attempt; what was given it in the meantime may need a thread."""
        with self._lock:
            self._unfinished += 1
            try:
                self._make_threads(self._unfinished)
            except RuntimeError:  # it waits for the next thread that is free
                get_logger().exception("slot_without_thread", worker=self._worker)

    def _run(self, assignment: Assignment) -> Finished:
        return run(assignment, self._redact)

    def _retire(self) -> None:
        """This thread's handler had been given up, and its place taken."""
        with self._lock:
            self._unfinished += 1
            self._stuck -= 1
            self._threads.remove(threading.current_thread())


class LoopExecutor:
    """Runs ``async def`` handlers, each as a task of one event loop on a thread of its own."""

    def __init__(
        self,
        finish: Finish,
        redact: Redact | None,
        on_replaced: Callable[[], None] = lambda: None,
        *,
        worker: str | None = None,
    ) -> None:
        self._finish = finish
        self._worker = worker
        self._redact = redact
        self._on_replaced = on_replaced
        self._tasks: set[asyncio.Task[None] | None] = set()  # an event loop itself does not keep them alive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._retired: set[asyncio.AbstractEventLoop] = set()
        self._unbegun: dict[int, Assignment] = {}
        self._begun = 0
        self._lock = threading.Lock()
        self._context = copy_context()

    def submit(self, assignments: Sequence[Assignment]) -> None:
        with self._lock:
            loop = self._loop or self._start()
            self._unbegun.update((id(assignment), assignment) for assignment in assignments)
            loop.call_soon_threadsafe(self._begin, assignments, loop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        thread = threading.Thread(target=self._serve, args=(loop,), name="brooq-event-loop", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            raise
        self._loop, self._thread = loop, thread
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not (self._is_stopping or loop in self._retired):
                self._run(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is stopped, or something breaks out of it.

        Asyncio lets the SystemExit or KeyboardInterrupt of a task that a handler has begun pass through the loop. It
        would take all other attempts with it.
        """
        try:
            loop.run_forever()
        except BaseException:  # noqa: BLE001 - what broke out has been logged, and the other attempts go on
            get_logger().exception("event_loop_broken", worker=self._worker)

    def _begin(self, assignments: Sequence[Assignment], loop: asyncio.AbstractEventLoop) -> None:
        for assignment in assignments:
            # In a context of its own: that of the task which has just ended may have been changed by its handler.
            task = loop.create_task(self._attempt(assignment, loop), context=self._context.copy())
            if not task.done():
                self._tasks.add(task)

    async def _attempt(self, assignment: Assignment, loop: asyncio.AbstractEventLoop) -> None:
        if self._unbegun.pop(id(assignment), None) is None:
            self._tasks.discard(asyncio.current_task(loop))
            return  # this loop had been blocked, and another has begun it
        self._begun = begun = self._begun + 1
        finished = await run_async(assignment, self._redact, loop)
        self._tasks.discard(asyncio.current_task(loop))
        _, following = self._finish(finished, self)
        if following is not None:
            # If no other has begun since, it may have left the others no turn, and they have the next.
            self._follow(following, loop, self._begun != begun)

    def _follow(self, assignment: Assignment, loop: asyncio.AbstractEventLoop, is_first: bool) -> None:
        """Begin what takes the slot of an attempt that has ended on this loop.

        Args:
            is_first: before all that the loop is about to do. Where many attempts end together, those that follow would
                otherwise begin only once all of them have, and end together again.
        """
        if loop is self._loop:
            self._unbegun[id(assignment)] = assignment
            if loop.get_task_factory() is not None:
                # One that makes eager tasks would run each attempt within the one before it.
                loop.call_soon(self._begin, [assignment], loop)
            elif is_first:
                task = begin_first(loop, self._attempt(assignment, loop), self._context.copy())
                if not task.done():
                    self._tasks.add(task)
            else:
                self._begin([assignment], loop)
        else:  # it was blocked, and goes on only for those it had begun
            self.submit([assignment])

    def replace(self) -> None:
        """One handler is given up: if it holds the whole loop up, begin another loop for those to come."""
        loop = self._loop
        if loop is None:
            return
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        if not answered.wait(PATIENCE):
            get_logger().error("event_loop_blocked", worker=self._worker)
            self._retired.add(loop)
            loop.call_soon_threadsafe(self._end_when_empty, loop)
            self._on_replaced()
            with self._lock:
                self._loop = self._thread = None
                unbegun = list(self._unbegun.values())
                if unbegun:  # of which the old loop may yet begin some; whichever comes first has them
                    loop = self._start()
                    loop.call_soon_threadsafe(self._begin, unbegun, loop)

    def _end_when_empty(self, loop: asyncio.AbstractEventLoop) -> None:
        """End a loop that was blocked, once the attempts that had begun on it are over."""
        if asyncio.all_tasks(loop):
            loop.call_later(PATIENCE, self._end_when_empty, loop)
        else:
            loop.stop()

    def call(self, work: Callable[[], Any]) -> None:
        """Run a coroutine function on the loop, and wait for it; nothing if the loop never ran, or is blocked."""
        if self._loop is None or not self._loop.is_running():
            return
        try:
            asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE)
        except Exception:  # noqa: BLE001 - a loop that cannot be asked, or connections that do not close, hold up nobody
            get_logger().warning("event_loop_did_not_answer", worker=self._worker, exc_info=True)

    def stop(self, timeout: float) -> None:
        """End the loop; tasks that are still there are canceled and given `timeout` seconds."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(timeout), self._loop)
        self._thread.join(timeout + 1)

    async def _cancel_all(self, timeout: float) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        self._is_stopping = True
        asyncio.get_running_loop().stop()
