"""A line does to what is sent through it what its cut says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from chaos.proxy import Line, Network

SHORT = 0.3


@contextmanager
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(100):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def line() -> Iterator[Line]:
    with echo() as port, Network([port]) as network:
        yield network.line()


def dial(line: Line) -> socket.socket:
    return socket.create_connection(("127.0.0.1", line.ports[0]), timeout=10)


def is_silent(near: socket.socket) -> bool:
    near.settimeout(SHORT)
    try:
        near.recv(100)
    except TimeoutError:
        return True
    finally:
        near.settimeout(10)
    return False


def test_a_whole_line_carries(line: Line) -> None:
    """What is sent arrives, and so does the answer."""
    with dial(line) as near:
        near.sendall(b"word")
        assert near.recv(100) == b"word"


def test_a_delay(line: Line) -> None:
    """Nothing arrives during the cut, and all of it afterwards, on connections made meanwhile too."""
    with dial(line) as near:
        near.sendall(b"before")
        assert near.recv(100) == b"before"
        line.cut("delay")
        with dial(line) as another:
            near.sendall(b"late")
            another.sendall(b"later")
            assert is_silent(near)
            assert is_silent(another)
            line.heal()
            assert (near.recv(100), another.recv(100)) == (b"late", b"later")


def test_a_silence(line: Line) -> None:
    """Nothing arrives during the cut, and the connection is dead afterwards; new ones are well."""
    with dial(line) as near:
        near.sendall(b"before")
        assert near.recv(100) == b"before"
        line.cut("silence")
        near.sendall(b"lost")
        assert is_silent(near)
        line.heal()
        with pytest.raises(ConnectionResetError):
            near.recv(100)
    with dial(line) as near:
        near.sendall(b"word")
        assert near.recv(100) == b"word"


def test_a_reset(line: Line) -> None:
    """Connections are reset, and new ones too until the cut is over."""
    with dial(line) as near:
        near.sendall(b"before")
        assert near.recv(100) == b"before"
        line.cut("reset")
        with pytest.raises(ConnectionResetError):
            near.recv(100)
    with pytest.raises(ConnectionResetError), dial(line) as near:
        near.recv(100)
    line.heal()
    with dial(line) as near:
        near.sendall(b"word")
        assert near.recv(100) == b"word"


def test_a_server_that_is_down(line: Line) -> None:
    """A line to a server that is not there resets what is made through it."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Network([port]) as network, pytest.raises(ConnectionResetError), dial(network.line()) as near:
        near.recv(100)
