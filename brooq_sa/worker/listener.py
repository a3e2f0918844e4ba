"""Hearing wake-ups from other processes, on PostgreSQL.

A hint that is missed, while the connection is down or behind a pooler that does not pass NOTIFY on, costs no more than
the poll interval; so this part of a worker may fail without anything going wrong.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Engine, Table

from .. import wake
from ..engines import connect

CHECK = 0.25
"""Seconds after which a wait looks whether the worker is stopping. It sends nothing meanwhile."""


class Listener:
    """Listens on a table's channel; `turn` is one wait.

    Args:
        engine: one of its own, with psycopg.
    """

    def __init__(self, engine: Engine, table: Table, ear: wake.Ear) -> None:
        self._engine = engine
        self._channel = wake.channel(table)
        self._ear = ear
        self._connection: Connection | None = None

    def turn(self) -> float:
        connection = self._connection or self._connect()
        try:
            for hint in self._wait(connection):
                self._heed(hint)
        except BaseException:
            self.drop()
            raise
        return 0.0

    def _connect(self) -> Connection:
        connection = connect(self._engine).execution_options(isolation_level="AUTOCOMMIT")
        try:
            quoted = connection.dialect.identifier_preparer.quote_identifier(self._channel)
            connection.exec_driver_sql(f"LISTEN {quoted}")
            connection.commit()
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection = connection
        # Hints sent while nobody listened are gone: look once at all there is.
        self._ear.jobs_enqueued()
        return connection

    @staticmethod
    def _wait(connection: Connection) -> list[str]:
        driver_connection: Any = connection.connection.driver_connection
        return [each.payload for each in driver_connection.notifies(timeout=CHECK, stop_after=1)]

    def _heed(self, hint: str) -> None:
        if hint.startswith(wake.JOBS):
            self._ear.jobs_enqueued()
        elif hint.startswith(wake.CANCELED):
            with suppress(ValueError):  # anybody may send anything on a channel
                self._ear.job_canceled(uuid.UUID(hint.removeprefix(wake.CANCELED)))

    def drop(self) -> None:
        """Throw the connection away, in whatever state it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.invalidate()
            with suppress(Exception):
                connection.close()
        self._engine.dispose()
