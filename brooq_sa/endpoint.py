"""A very small HTTP server for machines that watch: a few fixed paths, GET and HEAD.

One thread reads what all clients ask, and answers what needs no time; the others answer the rest. Their number is
fixed, as is that of the clients, and nobody gets more than a few seconds: whoever dawdles is cut off, so that no client
can keep the others from their answer. There is no authentication, and nothing to protect: it listens on the local
interface unless told otherwise, and changes nothing.
"""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from .log import get_logger

THREADS = 4
"""One that reads, the others to answer."""

BACKLOG = 128

MOST_ASKING = 128
"""Clients whose request is not all there yet. One more, and the one that has taken longest is cut off."""

MOST_ASKED = 128
"""Requests that wait for a thread. One more, and it is refused."""

OUT_OF_DESCRIPTORS = 0.1
"""Seconds until a client is let in for whom there was no descriptor."""

TO_ASK = 2.0
"""Seconds in which the whole of a request has to be there."""

TO_LISTEN = 5.0
"""Seconds in which the whole of an answer has to be taken."""

LONGEST_REQUEST = 8_192
"""Bytes."""

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


Page = Callable[[Mapping[str, str]], Answer]
"""Takes the request's headers, names in lowercase."""


class Endpoint:
    """Serves pages by their path; nothing is open before `open`.

    Args:
        address: ``host:port``; port 0 is any that is free, no host is every interface.
        pages: what to answer, by path.
        at_once: the paths of those that wait for nothing. They are answered whatever the others take.
        is_shared: whether other processes of the same user may open the same address, each of which then gets some of
            the requests.
        worker: whose it is, for its lines in the log.
    """

    def __init__(
        self,
        address: str,
        pages: Mapping[str, Page],
        *,
        at_once: Collection[str] = (),
        is_shared: bool = False,
        worker: str | None = None,
    ) -> None:
        self._address = address
        self._pages = pages
        self._at_once = at_once
        self._is_shared = is_shared
        self._worker = worker
        self._listening: socket.socket | None = None
        self._stop: socket.socket | None = None
        self._stopped: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._asked: queue.Queue[tuple[socket.socket, Request] | None] = queue.Queue(MOST_ASKED)

    def open(self) -> str:
        """Begin to serve; the address that it is at.

        Raises:
            OSError: the address is taken, or none of this machine's.
        """
        self._listening = _listening(self._address, self._is_shared)
        self._stop, self._stopped = socket.socketpair()
        for number in range(THREADS):
            serve = self._read_all if number == 0 else self._answer_all
            thread = threading.Thread(target=serve, name=f"brooq-http-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return _shown(self._listening.getsockname())

    def close(self) -> None:
        """Stop serving; requests under way get their answer, or run out of time."""
        if self._listening is None or self._stop is None or self._stopped is None:
            return
        self._stop.close()  # which the thread that reads sees at its own end
        for thread in self._threads:
            thread.join(TO_ASK + TO_LISTEN)
        self._listening.close()
        self._stopped.close()
        self._listening = None

    # The thread that reads.

    def _read_all(self) -> None:
        assert self._listening is not None and self._stopped is not None  # noqa: S101, PT018 - `open` has set them
        asking: dict[socket.socket, _Asking] = {}  # the one that came first, first
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                ready: list[Any] = [key.fileobj for key, _ in selector.select(_until_late(asking))]
                if self._stopped in ready:
                    break
                over = [each for each in ready if each in asking and self._is_read(asking[each])]
                now = time.monotonic()
                over += [each for each, its in asking.items() if its.deadline <= now and each not in over]
                if self._listening in ready and (connection := self._let_in()) is not None:
                    if len(asking) - len(over) >= MOST_ASKING:
                        over.append(next(each for each in asking if each not in over))
                    asking[connection] = _Asking(connection, now + TO_ASK)
                    selector.register(connection, selectors.EVENT_READ)
                for each in over:
                    selector.unregister(each)
                    self._take_up(asking.pop(each))
        for connection in asking:
            connection.close()
        for _ in range(THREADS - 1):
            self._asked.put(None)

    def _let_in(self) -> socket.socket | None:
        assert self._listening is not None  # noqa: S101 - as above
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:  # it has gone
            return None
        except OSError:
            time.sleep(OUT_OF_DESCRIPTORS)  # it is ready to be let in all the while
            return None
        connection.setblocking(False)
        return connection

    @staticmethod
    def _is_read(its: _Asking) -> bool:
        """Whether there is nothing more to be read."""
        try:
            piece = its.connection.recv(4_096)
        except BlockingIOError:
            return False
        except OSError:
            return True
        its.received += piece
        return not piece or b"\r\n\r\n" in its.received or len(its.received) > LONGEST_REQUEST

    def _take_up(self, its: _Asking) -> None:
        """Answer, or have it answered; cut off what is no request."""
        request = _parsed(its.received)
        if request is None:
            its.connection.close()
            return
        answer = self._refusal(request)
        if answer is None and request.path in self._at_once:
            answer = self._page(request)
        if answer is None:
            self._hand_on(its.connection, request)
        else:
            _send(its.connection, request, answer)  # it is short, so the system takes it all

    def _hand_on(self, connection: socket.socket, request: Request) -> None:
        try:
            self._asked.put_nowait((connection, request))
        except queue.Full:
            _send(connection, request, Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"Too many ask at once.\n"))

    # Those that answer.

    def _answer_all(self) -> None:
        while (asked := self._asked.get()) is not None:
            connection, request = asked
            answer = self._page(request)
            connection.settimeout(TO_LISTEN)
            _send(connection, request, answer)

    def _refusal(self, request: Request) -> Answer | None:
        if request.path not in self._pages:
            there_are = ", ".join(self._pages)
            return Answer(
                HTTPStatus.NOT_FOUND, f"There is no {request.path[:100]!r} here. There are {there_are}.\n".encode()
            )
        if request.method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"Use GET.\n")
        return None

    def _page(self, request: Request) -> Answer:
        try:
            return self._pages[request.path](request.headers)
        except Exception as error:  # noqa: BLE001 - collectors in the registry are the user's
            with suppress(Exception):
                said = f"{type(error).__name__}: {error}"
                get_logger().error("page_failed", path=request.path, error=said, worker=self._worker, exc_info=True)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"It failed; the log says why.\n")


class Request(NamedTuple):
    """What is asked for; the headers' names in lowercase."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass
class _Asking:
    """A client whose request is not all there yet."""

    connection: socket.socket
    deadline: float
    received: bytes = b""


def _until_late(asking: Mapping[socket.socket, _Asking]) -> float | None:
    """Seconds until the first client runs out of time; None is never."""
    first = next(iter(asking.values()), None)
    return None if first is None else max(0.0, first.deadline - time.monotonic())


def _listening(address: str, is_shared: bool) -> socket.socket:
    host, _, port = address.rpartition(":")
    [(family, _, _, _, place), *_] = socket.getaddrinfo(
        host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(place)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _shown(place: tuple[str, int]) -> str:
    host, port = place[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parsed(received: bytes) -> Request | None:
    """The request; None if it is none."""
    head, end, _ = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not end or len(received) > LONGEST_REQUEST or not version.startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(method, target.partition("?")[0], headers)


def _send(connection: socket.socket, request: Request, answer: Answer) -> None:
    with connection, suppress(OSError):
        connection.sendall(_as_bytes(answer, with_body=request.method != "HEAD"))
        connection.shutdown(socket.SHUT_WR)


def _as_bytes(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")
