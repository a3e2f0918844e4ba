"""The HTTP server for machines that watch: bounded in threads, time and what it reads."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus

import pytest

from brooq_sa import endpoint
from brooq_sa.endpoint import Answer, Endpoint
from waiting import wait_until

ANYWHERE = "127.0.0.1:0"


def hello(headers: Mapping[str, str]) -> Answer:
    return Answer(HTTPStatus.OK, f"hello {headers.get('x-name', '')}\n".encode())


def broken(headers: Mapping[str, str]) -> Answer:
    raise ValueError("no such thing")


@pytest.fixture
def address() -> Iterator[str]:
    """Where an endpoint serves."""
    serving = Endpoint(ANYWHERE, {"/hello": hello, "/broken": broken})
    yield serving.open()
    serving.close()


def fetch(address: str, path: str, **headers: str) -> tuple[int, str]:
    """The status and body of a page."""
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def exchange(address: str, request: bytes) -> bytes:
    """All that is answered to raw bytes."""
    with connect(address) as client:
        client.sendall(request)
        received = b""
        try:
            while piece := client.recv(4_096):
                received += piece
        except ConnectionResetError:
            pass  # it left without reading all that we sent
        return received


def test_pages(address: str) -> None:
    """A page gets the request's headers; an unknown path is answered with those there are (W2)."""
    assert fetch(address, "/hello", **{"X-Name": "world"}) == (200, "hello world\n")
    assert fetch(address, "/hello?a=1")[0] == 200
    assert fetch(address, "/other") == (404, "There is no '/other' here. There are /hello, /broken.\n")


def test_a_page_that_fails_is_logged(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a page raises is an error 500 and a line in the log, and the next page is served."""
    assert fetch(address, "/broken")[0] == 500
    assert "event=page_failed" in caplog.text
    assert "ValueError: no such thing" in caplog.text
    assert fetch(address, "/hello")[0] == 200


@pytest.mark.parametrize(
    "request_, beginning",
    [
        (b"HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        (b"POST /hello HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed\r\n"),
        (b"GET /hello\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b""),
        (b"GET /" + b"x" * 20_000, b""),
    ],
    ids=["head", "post", "no version", "no http", "too long"],
)
def test_other_requests(address: str, request_: bytes, beginning: bytes) -> None:
    """HEAD has no body; what is no request that is served here is cut off or refused."""
    answered = exchange(address, request_)
    assert answered.startswith(beginning)
    assert bool(answered) is bool(beginning)
    if request_.startswith(b"HEAD"):
        assert answered.endswith(b"\r\n\r\n")
        assert b"Content-Length: 7\r\n" in answered
    assert fetch(address, "/hello")[0] == 200


def test_slow_clients_hold_up_nobody_for_long(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients as there are threads, and more, that send a byte now and then, are cut off in time (W2)."""
    monkeypatch.setattr(endpoint, "TO_ASK", 0.5)
    is_over = threading.Event()
    clients = [connect(address) for _ in range(3 * endpoint.THREADS)]

    def dribble() -> None:
        while not is_over.wait(0.05):
            for client in clients:
                with suppress(OSError):  # it is cut off, as it is to be
                    client.send(b"G")

    dribbling = threading.Thread(target=dribble)
    dribbling.start()
    try:
        asked_at = time.monotonic()
        assert fetch(address, "/hello")[0] == 200
        assert time.monotonic() - asked_at < 8
    finally:
        is_over.set()
        dribbling.join()
        for client in clients:
            client.close()


def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is not taken is given up after a while, and the thread serves others."""
    monkeypatch.setattr(endpoint, "TO_LISTEN", 0.3)
    monkeypatch.setattr(endpoint, "THREADS", 2)  # one of which answers
    large = Answer(HTTPStatus.OK, b"x" * 50_000_000)
    serving = Endpoint(ANYWHERE, {"/large": lambda _: large, "/hello": hello})
    address = serving.open()
    try:
        with connect(address) as client:
            client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert fetch(address, "/hello")[0] == 200
    finally:
        serving.close()


def test_what_waits_for_nothing_is_answered_under_siege() -> None:
    """While others dawdle, read nothing or fill the queue, a page that waits for nothing comes at once (W2).

    A liveness probe that is not answered has its worker killed, and the jobs that it runs with it.
    """
    is_over = threading.Event()

    def slow(headers: Mapping[str, str]) -> Answer:
        is_over.wait(30)
        return Answer(HTTPStatus.OK, b"at last\n")

    serving = Endpoint(ANYWHERE, {"/slow": slow, "/hello": hello}, at_once=["/hello"])
    address = serving.open()
    clients = []
    try:
        for _ in range(3):
            for number in range(endpoint.MOST_ASKING):
                clients.append(connect(address))
                clients[-1].sendall(b"GET /slow HTTP/1.1\r\n\r\n" if number % 2 else b"GET ")
            asked_at = time.monotonic()
            assert fetch(address, "/hello") == (200, "hello \n")
            assert time.monotonic() - asked_at < endpoint.TO_ASK
        # What the threads and the queue cannot take is refused.
        assert exchange(address, b"GET /slow HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    finally:
        is_over.set()
        serving.close()
        for client in clients:
            client.close()


def test_without_descriptors_it_waits(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no descriptor left for a client does not spin; the client is let in once there is one (W2)."""
    accept, refused = socket.socket.accept, list[float]()

    def scarce(listening: socket.socket) -> tuple[socket.socket, object]:
        if len(refused) < 3:
            refused.append(time.monotonic())
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    assert fetch(address, "/hello")[0] == 200
    assert refused[2] - refused[0] >= 2 * endpoint.OUT_OF_DESCRIPTORS


def test_threads_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a fixed number of threads, which end when it closes; its port is free again."""

    def threads() -> int:
        return sum(thread.name.startswith("brooq-http") for thread in threading.enumerate())

    serving = Endpoint(ANYWHERE, {"/hello": hello})
    assert threads() == 0
    address = serving.open()
    for _ in range(10):
        fetch(address, "/hello")
    assert threads() == endpoint.THREADS
    serving.close()
    serving.close()
    wait_until(lambda: threads() == 0, what="the threads having ended")
    again = Endpoint(address, {"/hello": hello})
    assert again.open() == address
    again.close()


def test_a_taken_address_is_an_error(address: str) -> None:
    """An address that another has is an OSError, and no thread is left behind."""
    with pytest.raises(OSError, match="in use"):
        Endpoint(address, {}).open()


def test_several_may_share_an_address() -> None:
    """With `is_shared`, processes of one user may serve at one address."""
    first = Endpoint(ANYWHERE, {"/hello": hello}, is_shared=True)
    address = first.open()
    second = Endpoint(address, {"/hello": hello}, is_shared=True)
    second.open()
    first.close()
    assert fetch(address, "/hello")[0] == 200
    second.close()


def test_no_host_is_every_interface() -> None:
    """ ":0" listens on every interface, and the address says so."""
    serving = Endpoint(":0", {"/hello": hello})
    host, _, port = serving.open().rpartition(":")
    try:
        assert host in ("0.0.0.0", "[::]")
        assert fetch(f"127.0.0.1:{port}", "/hello")[0] == 200
    finally:
        serving.close()
