"""The event loop that ``async def`` handlers run on."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

MOST_DESCRIPTORS = 1024
"""Up to which number select(2) can be asked about a descriptor: the C library's FD_SETSIZE."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop as the application's policy makes them; Python's own one for Linux with finer timers."""
    loop = asyncio.new_event_loop()
    if sys.platform != "linux" or not HAS_EPOLL or not _is_plain(loop):
        return loop
    loop.close()
    return asyncio.SelectorEventLoop(FineSelector())


def _is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is as Python makes it, so that another of the kind is as good."""
    return (
        type(loop) is asyncio.SelectorEventLoop
        and type(getattr(loop, "_selector", None)) is selectors.EpollSelector
        and loop.get_task_factory() is None
        and loop.get_exception_handler() is None
        and loop.get_debug() == bool(sys.flags.dev_mode or os.environ.get("PYTHONASYNCIODEBUG"))
    )


if sys.version_info >= (3, 12):

    def begin_first(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], context: Context
    ) -> asyncio.Task[None]:
        """Make a task of the running loop, and take its first step before anything else that the loop is to do.

        It is done already if that was its only step.
        """
        if loop.get_task_factory() is not None:
            return loop.create_task(coroutine, context=context)
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)

else:

    def begin_first(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], context: Context
    ) -> asyncio.Task[None]:
        """Make a task of the running loop, and have its first step taken before anything else that that is to do."""
        task = loop.create_task(coroutine, context=context)
        # Eager tasks came with Python 3.12. In 3.11, which is not changed any more, this is the loop's own queue, and
        # what another thread may put behind the task meanwhile goes first in its stead.
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            ready.rotate(1)
        return task


HAS_EPOLL = hasattr(selectors, "EpollSelector")
"""Which gevent takes away."""

if sys.platform == "linux" and HAS_EPOLL:

    class FineSelector(selectors.EpollSelector):
        """Waits for as long as it is told to. Python waits for an epoll in whole milliseconds, rounded up.

        So would every sleep of a handler be. An epoll is itself something that select(2) can wait for, which goes by
        the microsecond.
        """

        def select(self, timeout: float | None = None) -> Any:
            """As `selectors.BaseSelector.select`."""
            epoll = self.fileno()
            if timeout is not None and timeout > 0 and epoll < MOST_DESCRIPTORS:
                ready, _, _ = select.select([epoll], [], [], timeout)
                if not ready:
                    return []
                timeout = 0
            return super().select(timeout)
