"""Closing a connection that somebody waits for in vain."""

from __future__ import annotations

import threading

from sqlalchemy import text

from brooq_sa.engines import Reserved
from databases import Database
from waiting import wait_until


def test_closing_does_not_wait_for_a_silent_server(pg: Database) -> None:
    """A stop closes a connection on which another thread still waits, and both return at once (T6)."""
    reserved = Reserved(pg.engine)
    ended: list[str] = []

    def wait_for_ever() -> None:
        try:
            with reserved.transaction() as connection:
                connection.execute(text("SELECT pg_sleep(60)"))
        except Exception as error:
            ended.append(type(error).__name__)

    with reserved.transaction() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    asleep = "SELECT 1 FROM pg_stat_activity WHERE pid = :pid AND wait_event = 'PgSleep'"
    wait_until(lambda: pg.execute(asleep, pid=backend), what="the statement being under way")
    reserved.close()
    thread.join(10)
    assert ended == ["OperationalError"]
    pg.execute("SELECT pg_terminate_backend(:pid)", pid=backend)
