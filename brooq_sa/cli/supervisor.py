"""Telling systemd how it is: ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1`` (sd_notify(3)).

Whoever supervises names a datagram socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how often it wants to hear. Without
them nothing is told.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

BEFORE_READY = 0.1
"""Seconds between two looks whether the worker is ready."""


class Supervisor:
    """Who started this process and wants to know how it is, if anybody.

    Args:
        environment: such as `os.environ`; what is about the supervisor is taken out of it, so that no process that a
            handler starts speaks for the worker.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_for_us = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(microseconds) / 1e6 if microseconds.isdecimal() and is_for_us and self._address else 0.0
        self._is_ready = False
        self._status = ""

    @property
    def period(self) -> float | None:
        """Seconds after which it is to be told again; None is never."""
        if not self._address:
            return None
        wanted = self._watchdog / 3 if self._watchdog else None
        return wanted if self._is_ready else min(BEFORE_READY, wanted or BEFORE_READY)

    def tell(self, unready: list[str], *, is_alive: bool) -> None:
        """Say how the worker is: once that it is ready, until then why it is not; and that it is alive, if it is."""
        if is_alive and self._watchdog:
            self._send("WATCHDOG=1")
        if self._is_ready:
            return
        if not unready:
            self._is_ready = True
            self._send("READY=1\nSTATUS=Running jobs.")
        elif self._status != unready[0]:
            self._status = unready[0]
            self._send(f"STATUS=Not ready: {self._status}.".replace("\n", " "))

    def tell_of_stop(self) -> None:
        """Say that the worker is about to stop."""
        self._send("STOPPING=1\nSTATUS=Waiting for running jobs.")

    def tell_of_life(self) -> None:
        """Say that the process is alive, while it stops: its threads end one by one."""
        if self._watchdog:
            self._send("WATCHDOG=1")

    def _send(self, said: str) -> None:
        if not self._address:
            return
        # "@" stands for the zero byte of an abstract socket, which has no file.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(1.0)
            sending.sendto(said.encode(), address)
