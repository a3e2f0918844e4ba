"""Signals that ask a command to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from brooq_sa.cli import stopping


@pytest.fixture
def hear(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[stopping.Stopping, list[Any]]]:
    """What listens, and the exits it makes; the clock stands still until the test moves it."""
    exits: list[Any] = []
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    monkeypatch.setattr("brooq_sa.cli.stopping.os._exit", exits.append)
    yield stopping.Stopping(), exits
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_echo_of_the_first_signal_is_not_a_second(
    hear: tuple[stopping.Stopping, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """timeout(1) signals the command and its group: two signals within moments are one, a later one ends it (T6)."""
    asked, exits = hear
    now = [100.0]
    monkeypatch.setattr("brooq_sa.cli.stopping.time.monotonic", lambda: now[0])
    asked._hear(signal.SIGTERM, None)
    now[0] += stopping.ECHO / 2
    asked._hear(signal.SIGTERM, None)
    assert (asked.wait(0), exits) == (True, [])
    now[0] += stopping.ECHO
    asked._hear(signal.SIGTERM, None)
    assert exits == [128 + signal.SIGTERM]
