"""The event loop that ``async def`` handlers run on."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
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
    return FineLoop(FineSelector())


def _is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether it is as Python makes it, so that another of the kind is as good."""
    return (
        type(loop) is asyncio.SelectorEventLoop
        and type(getattr(loop, "_selector", None)) is selectors.EpollSelector
        and loop.get_task_factory() is None
        and loop.get_exception_handler() is None
        and loop.get_debug() == bool(sys.flags.dev_mode or os.environ.get("PYTHONASYNCIODEBUG"))
    )


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


if sys.version_info >= (3, 12):
    FineLoop = asyncio.SelectorEventLoop

    def begin_first(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], context: Context
    ) -> asyncio.Task[None]:
        """Make a task of the running loop, and take its first step before anything else that the loop is to do.

        It is done already if that was its only step. A task factory of the loop is not asked.
        """
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)

else:

    class FineLoop(asyncio.SelectorEventLoop):
        """A loop that can begin a task before anything else that it is to do. Python 3.11 has no eager tasks."""

        def begin_first(self, coroutine: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
            """Make a task, whose first step comes first; all else keeps its order, as ``call_soon`` promises it."""
            vars(self)["call_soon"] = self._call_first  # which is how a task asks for its step
            try:
                return asyncio.Task(coroutine, loop=self, context=context)
            finally:
                del vars(self)["call_soon"]

        def _call_first(self, callback: Any, *arguments: Any, context: Context | None = None) -> asyncio.Handle:
            handle = asyncio.Handle(callback, arguments, self, context)
            vars(self)["_ready"].appendleft(handle)  # private, but Python 3.11 is not changed any more
            return handle

    def begin_first(
        loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], context: Context
    ) -> asyncio.Task[None]:
        """Make a task of the running loop, and have its first step taken before anything else that that is to do.

        A loop that is not of our making takes it in turn. A task factory of one that is is not asked.
        """
        if isinstance(loop, FineLoop):
            return loop.begin_first(coroutine, context)
        return loop.create_task(coroutine, context=context)
