"""Where handlers run: threads for ``def``, one event loop for ``async def``."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from apps.embedding import bare_claim, job_class
from brooq_sa.claims import AsyncClaim, Claim
from brooq_sa.settings import WorkerSettings
from brooq_sa.states import State, StopCause
from brooq_sa.worker.attempts import Assignment, Finished
from brooq_sa.worker.executors import LoopExecutor, ThreadExecutor
from waiting import wait_until


class Ended:
    """Takes what an executor has finished."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Finished] = SimpleQueue()

    def __call__(self, finished: Finished, _executor: Any) -> tuple[bool, None]:
        self.queue.put(finished)
        return False, None

    def next(self) -> Finished:
        return self.queue.get(timeout=10)

    def states(self, count: int) -> list[State]:
        return [finished.outcome.state for _ in range(count) if (finished := self.next()).outcome]


@pytest.fixture
def ended() -> Ended:
    return Ended()


@pytest.fixture
def threads(ended: Ended) -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor(ended, None)
    yield executor
    executor.stop()


@pytest.fixture
def loop(ended: Ended) -> Iterator[LoopExecutor]:
    executor = LoopExecutor(ended, None)
    yield executor
    executor.stop(5)


def assignment(handler: Callable[[Any, Any], Any], claim_class: type[Any] = Claim) -> Assignment:
    kind = job_class(handler).__kind__
    return Assignment(bare_claim(claim_class), kind, kind.policy(WorkerSettings()))


def threads_named(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


class TestThreads:
    def test_as_many_threads_as_attempts_at_once(self, threads: ThreadExecutor, ended: Ended) -> None:
        """Attempts submitted together run together, and the threads are used again."""
        together = threading.Barrier(3)

        def meet(job: Any, claim: Any) -> None:
            together.wait(10)

        for _ in range(2):
            threads.submit([assignment(meet) for _ in range(3)])
            assert ended.states(3) == [State.DONE] * 3
        assert len(threads._threads) == 3

    def test_none_is_made_before_it_is_needed(self, ended: Ended) -> None:
        """Building an executor starts nothing (I9)."""
        before = threading.active_count()
        ThreadExecutor(ended, None)
        LoopExecutor(ended, None)
        assert threading.active_count() == before

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("no")])
    def test_a_thread_lives_on(self, threads: ThreadExecutor, ended: Ended, error: BaseException) -> None:
        """A handler that raises, SystemExit included, leaves its thread for the next one (R4)."""

        def fail(job: Any, claim: Any) -> None:
            raise error

        threads.submit([assignment(fail)])
        assert ended.states(1) == [State.FAILED]
        threads.submit([assignment(lambda job, claim: None)])
        assert ended.states(1) == [State.DONE]
        assert len(threads._threads) == 1

    def test_taking_back_what_has_not_begun(self, threads: ThreadExecutor, ended: Ended) -> None:
        """What waits for a thread can be taken back, and is then not run (T6)."""
        go_on = threading.Event()
        threads.submit([assignment(lambda job, claim: go_on.wait(10))])
        wait_until(threads._waiting.empty, what="the thread having taken the first")
        threads._unfinished = 0  # as if there were a thread too few
        second = assignment(lambda job, claim: None)
        threads.submit([second])
        assert threads.take_unstarted() == [second]
        go_on.set()
        assert ended.states(1) == [State.DONE]
        assert ended.queue.empty()

    def test_no_thread_to_be_had(self, threads: ThreadExecutor, ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the system gives no thread none of the attempts runs, and later ones are as well off as before."""

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                threads.submit([assignment(lambda job, claim: None)])
        threads.submit([assignment(lambda job, claim: None)])
        assert ended.states(1) == [State.DONE]
        assert ended.queue.empty()

    def test_an_attempt_that_comes_while_a_thread_goes_on(self) -> None:
        """What is submitted just as a thread is told its next attempt gets a thread, however long that one takes."""
        ended = Ended()
        has_come, go_on = threading.Event(), threading.Event()
        following: list[Assignment] = [assignment(lambda job, claim: go_on.wait(10))]

        def finish(finished: Finished, _executor: Any) -> tuple[bool, Assignment | None]:
            ended(finished, None)
            if not following:
                return False, None
            executor.submit([assignment(lambda job, claim: has_come.set())])
            return False, following.pop()

        executor = ThreadExecutor(finish, None)
        executor.submit([assignment(lambda job, claim: None)])
        assert has_come.wait(10)
        go_on.set()
        assert ended.states(3) == [State.DONE] * 3
        executor.stop()

    def test_stopping_ends_idle_threads(self, ended: Ended) -> None:
        """After a stop no thread is left."""
        executor = ThreadExecutor(ended, None)
        executor.submit([assignment(lambda job, claim: None)])
        ended.next()
        executor.stop()
        wait_until(lambda: not any(thread.is_alive() for thread in executor._threads), what="its threads having ended")


class TestLoop:
    def test_all_on_one_loop(self, loop: LoopExecutor, ended: Ended) -> None:
        """A hundred attempts wait at the same time on one thread."""
        together = 0
        seen: set[int] = set()

        async def meet(job: Any, claim: Any) -> None:
            nonlocal together
            together += 1
            seen.add(threading.get_ident())
            while together < 100:
                await asyncio.sleep(0.001)

        loop.submit([assignment(meet, AsyncClaim) for _ in range(100)])
        assert ended.states(100) == [State.DONE] * 100
        assert len(seen) == 1

    def test_a_stop_cancels_the_task(self, loop: LoopExecutor, ended: Ended) -> None:
        """An attempt that is told to stop is cancelled where it waits, and has failed of the limit (T2)."""
        started = threading.Event()

        async def wait(job: Any, claim: Any) -> None:
            started.set()
            await asyncio.sleep(60)

        waiting = assignment(wait, AsyncClaim)
        loop.submit([waiting])
        assert started.wait(10)
        waiting.claim._stop(StopCause.ATTEMPT_TIMEOUT)
        outcome = ended.next().outcome
        assert outcome is not None
        assert str(outcome.error).startswith("TimeoutError: attempt timed out")

    def test_a_handler_may_take_its_time_to_stop(self, loop: LoopExecutor, ended: Ended) -> None:
        """A handler that cleans up and then returns is done (T1)."""
        started = threading.Event()

        async def wait(job: Any, claim: Any) -> None:
            try:
                started.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)

        waiting = assignment(wait, AsyncClaim)
        loop.submit([waiting])
        assert started.wait(10)
        waiting.claim._stop(StopCause.ATTEMPT_TIMEOUT)
        assert ended.states(1) == [State.DONE]

    def test_stopped_before_it_began(self, loop: LoopExecutor, ended: Ended) -> None:
        """An attempt that was told to stop before its task was there hears of it all the same (T2)."""
        late = assignment(lambda job, claim: asyncio.sleep(60), AsyncClaim)
        late.claim._stop(StopCause.CANCELED)
        loop.submit([late])
        assert ended.next().outcome is None

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()], ids=["exit", "interrupt"])
    def test_the_loop_lives_on(self, loop: LoopExecutor, ended: Ended, error: BaseException) -> None:
        """An exit that a handler's task lets out of the event loop ends no other attempt (R4)."""
        go_on = threading.Event()

        async def bystander(job: Any, claim: Any) -> None:
            while not go_on.is_set():
                await asyncio.sleep(0.001)

        async def exit_in_a_task(job: Any, claim: Any) -> None:
            async def leave() -> None:
                raise error

            async with asyncio.TaskGroup() as group:
                group.create_task(leave())

        loop.submit([assignment(bystander, AsyncClaim), assignment(exit_in_a_task, AsyncClaim)])
        assert ended.states(1) == [State.FAILED]
        loop.submit([assignment(bystander, AsyncClaim)])
        go_on.set()
        assert ended.states(2) == [State.DONE, State.DONE]

    def test_a_handler_that_stops_the_loop(self, loop: LoopExecutor, ended: Ended) -> None:
        """A handler that stops the event loop it runs on stops nothing (R4)."""

        async def stop(job: Any, claim: Any) -> None:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)

        loop.submit([assignment(stop, AsyncClaim)])
        assert ended.states(1) == [State.DONE]

    def test_stopping_cancels_what_is_left(self, ended: Ended) -> None:
        """A stop cancels attempts and the tasks that handlers left behind, and ends the thread."""
        executor = LoopExecutor(ended, None)
        left_behind: list[asyncio.Task[bool]] = []

        async def leave_one(job: Any, claim: Any) -> None:
            left_behind.append(asyncio.create_task(asyncio.sleep(60, True)))

        executor.submit([assignment(leave_one, AsyncClaim)])
        ended.next()
        started = time.monotonic()
        executor.stop(5)
        assert left_behind[0].cancelled()
        assert time.monotonic() - started < 5
        assert executor._thread is not None
        assert not executor._thread.is_alive()

    def test_no_thread_to_be_had(self, loop: LoopExecutor, ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the system gives no thread none of the attempts runs, and later ones are as well off as before."""

        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        async def succeed(job: Any, claim: Any) -> None: ...

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                loop.submit([assignment(succeed, AsyncClaim)])
        loop.submit([assignment(succeed, AsyncClaim)])
        assert ended.states(1) == [State.DONE]

    def test_stopping_a_loop_that_never_ran(self, ended: Ended) -> None:
        """There is nothing to stop where no async job came."""
        LoopExecutor(ended, None).stop(5)


class TestFollowing:
    """An attempt that takes the slot of one that has ended on the event loop."""

    @pytest.fixture
    def following(self) -> deque[Assignment]:
        return deque()

    @pytest.fixture
    def loop(self, ended: Ended, following: deque[Assignment]) -> Iterator[LoopExecutor]:
        def finish(finished: Finished, _executor: Any) -> tuple[bool, Assignment | None]:
            ended(finished, None)
            return False, following.popleft() if following else None

        executor = LoopExecutor(finish, None)
        yield executor
        executor.stop(5)

    def test_it_begins_before_others_end(self, loop: LoopExecutor, ended: Ended, following: deque[Assignment]) -> None:
        """Of attempts that end together, each is followed before the next is looked at; each is a task of its own."""
        moves: list[str] = []
        tasks: set[asyncio.Task[Any] | None] = set()
        marks: list[str] = []
        mark = ContextVar("mark", default="none")
        gate = asyncio.Event()

        async def end_together(job: Any, claim: Any) -> None:
            tasks.add(asyncio.current_task())
            mark.set("of another")
            await gate.wait()
            moves.append("end")

        async def open_gate(job: Any, claim: Any) -> None:
            gate.set()
            await asyncio.sleep(0.01)

        async def follow(job: Any, claim: Any) -> None:
            tasks.add(asyncio.current_task())
            marks.append(mark.get())
            moves.append("begin")
            await asyncio.sleep(0)

        following.extend(assignment(follow, AsyncClaim) for _ in range(3))
        loop.submit([*(assignment(end_together, AsyncClaim) for _ in range(3)), assignment(open_gate, AsyncClaim)])
        assert ended.states(7) == [State.DONE] * 7
        assert moves == ["end", "begin"] * 3
        assert len(tasks) == 6
        assert marks == ["none"] * 3

    def test_others_have_their_turn(self, loop: LoopExecutor, ended: Ended, following: deque[Assignment]) -> None:
        """However many attempts follow one another without waiting for anything, the others go on."""
        count = 0

        async def do_nothing(job: Any, claim: Any) -> None:
            nonlocal count
            count += 1

        async def take_steps(job: Any, claim: Any) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            steps.append(count)

        steps: list[int] = []
        first = assignment(do_nothing, AsyncClaim)
        following.extend(replace(first, claim=bare_claim(AsyncClaim)) for _ in range(1_000))
        loop.submit([assignment(take_steps, AsyncClaim), first])
        assert ended.states(1_002) == [State.DONE] * 1_002
        assert 0 < steps[0] <= 20 * 3

    def test_it_may_end_at_once(self, loop: LoopExecutor, ended: Ended, following: deque[Assignment]) -> None:
        """One that waits for nothing, in the slot of one that did, is over and forgotten."""

        async def wait(job: Any, claim: Any) -> None:
            await asyncio.sleep(0.001)

        async def do_nothing(job: Any, claim: Any) -> None: ...

        following.extend(assignment(do_nothing, AsyncClaim) for _ in range(2))
        loop.submit([assignment(wait, AsyncClaim) for _ in range(2)])
        assert ended.states(4) == [State.DONE] * 4
        wait_until(lambda: not loop._tasks, what="no task being kept")

    @pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("no")])
    def test_it_may_fail_at_once(
        self, loop: LoopExecutor, ended: Ended, following: deque[Assignment], error: BaseException
    ) -> None:
        """What it raises is its own outcome, and nothing to the one before it or after it (R4)."""

        async def wait(job: Any, claim: Any) -> None:
            await asyncio.sleep(0.001)

        async def fail(job: Any, claim: Any) -> None:
            raise error

        following.extend([assignment(fail, AsyncClaim), assignment(wait, AsyncClaim)])
        loop.submit([assignment(wait, AsyncClaim) for _ in range(2)])
        assert sorted(ended.states(4)) == [State.DONE, State.DONE, State.DONE, State.FAILED]

    def test_a_task_factory_makes_them_one_by_one(
        self, loop: LoopExecutor, ended: Ended, following: deque[Assignment]
    ) -> None:
        """Where a loop has one, which may make eager tasks, no attempt begins within the one that has ended."""
        within: list[asyncio.Task[Any] | None] = []

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            within.append(asyncio.current_task(loop))
            return asyncio.Task(coroutine, loop=loop, **options)

        async def set_factory(job: Any, claim: Any) -> None:
            asyncio.get_running_loop().set_task_factory(factory)

        async def wait(job: Any, claim: Any) -> None:
            await asyncio.sleep(0)

        following.extend(assignment(wait, AsyncClaim) for _ in range(3))
        loop.submit([assignment(set_factory, AsyncClaim)])
        assert ended.states(4) == [State.DONE] * 4
        assert within == [None] * 3

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
    def test_many_eager_tasks(self, loop: LoopExecutor, ended: Ended, following: deque[Assignment]) -> None:
        """However many attempts follow one another in an application's eager tasks, none is within another."""

        async def be_eager(job: Any, claim: Any) -> None:
            asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - not in 3.11

        first = assignment(be_eager, AsyncClaim)
        following.extend(replace(first, claim=bare_claim(AsyncClaim)) for _ in range(3_000))
        loop.submit([first])
        assert ended.states(3_001) == [State.DONE] * 3_001
        wait_until(lambda: not loop._tasks, what="no task being kept")
