"""The event loop of ``async def`` handlers."""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest

from brooq_sa.worker import event_loop
from brooq_sa.worker.event_loop import begin_first, new_event_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has epoll")


class OwnLoop(asyncio.SelectorEventLoop):
    """As an application may have one."""


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    selector = event_loop.FineSelector()
    yield selector
    selector.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_sleep_is_not_rounded(selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is asked to wait for just as long, and then there is nothing."""
    waited: list[float | None] = []

    def watched(reads: Any, writes: Any, errors: Any, timeout: float | None) -> Any:
        waited.append(timeout)
        return select_as_it_is(reads, writes, errors, timeout)

    select_as_it_is = select.select
    monkeypatch.setattr(select, "select", watched)
    assert selector.select(0.0012) == []
    assert waited == [0.0012]


@pytest.mark.parametrize("most", [event_loop.MOST_DESCRIPTORS, 0])
@pytest.mark.parametrize("timeout", [None, 0, 60])
def test_what_is_ready(
    selector: selectors.BaseSelector,
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    timeout: float | None,
    most: int,
) -> None:
    """Is found whatever the timeout, also by descriptors that select(2) cannot be asked about."""
    monkeypatch.setattr(event_loop, "MOST_DESCRIPTORS", most)
    ours, theirs = pair
    selector.register(ours, selectors.EVENT_READ, "ours")
    assert selector.select(0) == []
    theirs.send(b"!")
    assert [(key.data, events) for key, events in selector.select(timeout)] == [("ours", selectors.EVENT_READ)]


def test_an_event_loop_is_to_be_had() -> None:
    """It sleeps, and hears of other threads."""
    loop = new_event_loop()
    try:
        assert loop.run_until_complete(asyncio.sleep(0.0015, "slept")) == "slept"
        assert loop.run_until_complete(asyncio.wait_for(loop.run_in_executor(None, int, "7"), 60)) == 7
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def of_its_own_class() -> asyncio.AbstractEventLoop:
    return OwnLoop()


def with_a_selector() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def with_a_task_factory() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(lambda loop, coroutine, **options: asyncio.Task(coroutine, loop=loop, **options))
    return loop


def debugging() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(not loop.get_debug())
    return loop


@pytest.mark.parametrize("make", [of_its_own_class, with_a_selector, with_a_task_factory, debugging])
def test_an_application_has_its_own(
    make: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that its policy makes is taken as it is."""
    its_own = make()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: its_own)
    try:
        assert new_event_loop() is its_own
    finally:
        its_own.close()


def test_where_there_is_no_epoll() -> None:
    """gevent takes it away when it patches the stdlib: then the loop is Python's own."""
    program = "import selectors; del selectors.EpollSelector; selectors.DefaultSelector = selectors.SelectSelector;"
    program += "from brooq_sa.worker.event_loop import new_event_loop; loop = new_event_loop();"
    program += "print(type(loop._selector).__name__); loop.close()"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "SelectSelector"


@pytest.mark.parametrize("is_ours", [True, False])
def test_all_else_keeps_its_order(is_ours: bool) -> None:
    """What was to be called is called in the order it was asked for, whatever threads ask for meanwhile."""
    order: list[Any] = []

    async def attempt(number: int) -> None:
        order.append(f"first {number}")

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        threads = [threading.Thread(target=ask, args=(loop, name)) for name in "ab"]
        for thread in threads:
            thread.start()
        tasks = [begin_first(loop, attempt(number), copy_context()) for number in range(2_000)]
        for thread in threads:
            thread.join()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)

    def ask(loop: asyncio.AbstractEventLoop, name: str) -> None:
        for number in range(2_000):
            loop.call_soon_threadsafe(order.append, (name, number))

    loop = new_event_loop() if is_ours else asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()
    assert len([each for each in order if isinstance(each, str)]) == 2_000
    for name in "ab":
        assert [each for each in order if each[0] == name] == [(name, number) for number in range(2_000)]
