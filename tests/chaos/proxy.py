"""The network between a process and the servers, which can be made to fail.

Each process has a `Line` of its own: a port for each server. A line that is cut is cut in one of three ways:

======== =====================================================================================
delay    nothing passes in either direction; what was sent arrives when the cut is over
silence  nothing passes, and the connections are dead when the cut is over
reset    connections are reset, and new ones too, until the cut is over
======== =====================================================================================
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

CUTS = ("delay", "silence", "reset")
CHUNK = 65_536


class Network:
    """Carries all lines, on a thread of its own. A context manager."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._lines: list[Line] = []

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for line in self._lines:
            self._do(line.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def line(self) -> Line:
        """A new line, with a port for each of the servers."""
        line = Line(self)
        self._do(line.open(self._servers))
        self._lines.append(line)
        return line

    def heal(self) -> None:
        for line in self._lines:
            line.heal()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


class Line:
    """One process's way to the servers.

    Attributes:
        ports: the way to each server.
    """

    def __init__(self, network: Network) -> None:
        self.ports: list[int] = []
        self._network = network
        self._listeners: list[asyncio.Server] = []
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passes = asyncio.Event()
        self._cut: str | None = None

    def cut(self, how: str) -> None:
        self._network._do(self._set(how))

    def heal(self) -> None:
        self._network._do(self._set(None))

    async def _set(self, how: str | None) -> None:
        before, self._cut = self._cut, how
        if how == "reset" or (how is None and before == "silence"):
            self._reset_all()
        if how is None:
            self._passes.set()
        elif how != "reset":
            self._passes.clear()

    async def open(self, servers: Sequence[int]) -> None:
        self._passes.set()
        for server in servers:
            listener = await asyncio.start_server(self._accept(server), "127.0.0.1", 0)
            self._listeners.append(listener)
            self.ports.append(listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._reset_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, server: int) -> Any:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._keep(self._carry(server, reader, writer))

        return accepted

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, server: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        if self._cut == "reset":
            self._reset(writer)
            return
        await self._passes.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server)
        except OSError:
            self._reset(writer)
            return
        self._connections.add(far_writer)
        self._keep(self._pump(reader, far_writer))
        self._keep(self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The end of a stream waits for the cut to be over like all that is sent.
        try:
            while data := await reader.read(CHUNK):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
            await self._passes.wait()
            writer.close()
        except OSError:
            self._reset(writer)
        finally:
            self._connections.discard(writer)

    def _reset_all(self) -> None:
        for writer in list(self._connections):
            self._reset(writer)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self._connections.discard(writer)
        near: socket.socket | None = writer.get_extra_info("socket")
        if near is not None:
            with suppress(OSError):  # closed already
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
