"""A very small HTTP server for machines that watch: a few fixed paths, GET and HEAD.

It has a fixed number of threads, and gives nobody more than a few seconds: whoever dawdles is cut off, so that no
client can keep the others from their answer. There is no authentication, and nothing to protect: it listens on the
local interface unless told otherwise, and changes nothing.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from .log import get_logger

THREADS = 4
BACKLOG = 32

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
        is_shared: whether other processes of the same user may open the same address, each of which then gets some of
            the requests.
    """

    def __init__(self, address: str, pages: Mapping[str, Page], *, is_shared: bool = False) -> None:
        self._address = address
        self._pages = pages
        self._is_shared = is_shared
        self._listening: socket.socket | None = None
        self._stop: socket.socket | None = None
        self._stopped: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> str:
        """Begin to serve; the address that it is at.

        Raises:
            OSError: the address is taken, or none of this machine's.
        """
        self._listening = _listening(self._address, self._is_shared)
        self._stop, self._stopped = socket.socketpair()
        for number in range(THREADS):
            thread = threading.Thread(target=self._serve, name=f"brooq-http-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return _shown(self._listening.getsockname())

    def close(self) -> None:
        """Stop serving; requests under way get their answer, or run out of time."""
        if self._listening is None or self._stop is None or self._stopped is None:
            return
        self._stop.close()  # which every thread sees at its own end
        for thread in self._threads:
            thread.join(TO_ASK + TO_LISTEN)
        self._listening.close()
        self._stopped.close()
        self._listening = None

    def _serve(self) -> None:
        assert self._listening is not None and self._stopped is not None  # noqa: S101, PT018 - `open` has set them
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._stopped in ready:
                    return
                with suppress(OSError):  # another thread was quicker, or the client has gone
                    connection, _ = self._listening.accept()
                    with connection:
                        self._attend(connection)

    def _attend(self, connection: socket.socket) -> None:
        request = _read(connection)
        if request is None:
            return
        method, path, headers = request
        answer = self._answer(method, path, headers)
        connection.settimeout(TO_LISTEN)
        connection.sendall(_as_bytes(answer, with_body=method != "HEAD"))
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)

    def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        page = self._pages.get(path)
        if page is None:
            there_are = ", ".join(self._pages)
            return Answer(HTTPStatus.NOT_FOUND, f"There is no {path[:100]!r} here. There are {there_are}.\n".encode())
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"Use GET.\n")
        try:
            return page(headers)
        except Exception as error:  # noqa: BLE001 - collectors in the registry are the user's
            with suppress(Exception):
                get_logger().error("page_failed", path=path, error=f"{type(error).__name__}: {error}", exc_info=True)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"It failed; the log says why.\n")


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


def _read(connection: socket.socket) -> tuple[str, str, dict[str, str]] | None:
    """The method, path and headers of a request; None if it does not come in time, or is none."""
    deadline = time.monotonic() + TO_ASK
    received = b""
    while b"\r\n\r\n" not in received:
        left = deadline - time.monotonic()
        if left <= 0 or len(received) > LONGEST_REQUEST:
            return None
        connection.settimeout(left)
        if not (piece := connection.recv(4_096)):
            return None
        received += piece
    first, *lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines)
    return method, target.partition("?")[0], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _as_bytes(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")
