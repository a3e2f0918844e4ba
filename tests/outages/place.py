"""A database on a server that may be stopped, ways to it that may be cut, and what tests of outages look at."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, Uuid, create_engine, make_url

from chaos.proxy import Line, Network
from chaos.servers import Servers
from databases import Database, migrate

EFFECT = Table("effect", MetaData(), Column("job", Uuid, nullable=False), Column("attempt", Integer, nullable=False))
"""What handlers write, through their session or beside it; nothing in it keeps a job from writing twice."""

END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
RESET = (
    END_OTHERS,
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public",
    "ALTER SYSTEM RESET ALL",
    "SELECT pg_reload_conf()",
    "ALTER ROLE postgres RESET ALL",
    "ALTER DATABASE postgres RESET ALL",
)

SLOWLY = """
    CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END';
    CREATE TRIGGER slowly BEFORE UPDATE ON job FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION slowly();
"""

CLAIMS = "OLD.state <> 'processing' AND NEW.state = 'processing'"
RENEWALS = "OLD.state = 'processing' AND NEW.state = 'processing'"
SUCCESSES = "NEW.state = 'done'"


class Place:
    """A database on a server of its own.

    Attributes:
        servers: may be stopped, killed and promoted.
        url: of the database, around any line.
        db: a look at it, which keeps no connection that an outage could break.
        app: the database as an application has it, with a plain engine.
    """

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._network: Network | None = None
        self._databases: list[Database] = []

    def begin(self) -> None:
        """Empty it: whatever a test before has left is gone."""
        if not self.is_up():
            self.servers.start()
        for statement in RESET:
            self.servers.execute(statement)
        self.refresh()
        migrate(self.db.engine)
        EFFECT.metadata.create_all(self.db.engine)
        self.app = self.via(self.url)

    def refresh(self) -> None:
        """Look at the primary, which may be another than before."""
        self.url = self.servers.url()
        self.db = self.via(self.url)
        self.db.engine = create_engine(self.url, poolclass=NullPool, isolation_level="READ COMMITTED")

    def end(self) -> None:
        for database in self._databases:
            database.dispose()
        if self._network is not None:
            self._network.__exit__(None, None, None)

    def is_up(self) -> bool:
        try:
            self.servers.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def via(self, way: Line | str) -> Database:
        """The same database, reached through a line or by another URL."""
        if isinstance(way, Line):
            way = make_url(self.url).set(port=way.ports[self.servers.primary]).render_as_string(hide_password=False)
        database = Database(way)
        self._databases.append(database)
        return database

    def line(self) -> Line:
        """A way to the servers that can be cut."""
        if self._network is None:
            self._network = Network(self.servers.ports)
            self._network.__enter__()
        return self._network.line()

    def restart(self, mode: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Stop the server, ``fast`` or ``immediate``, and start it again."""
        self.servers.stop(mode)
        meanwhile()
        self.servers.start()

    def slow_down(self, when: str, seconds: float) -> None:
        """Let the server take its time over certain updates of jobs."""
        self.servers.execute(SLOWLY.format(when=when, seconds=seconds))

    def is_in_slow_update(self) -> bool:
        return bool(self.servers.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))

    def effects(self, job_id: uuid.UUID | None = None) -> list[int]:
        """The attempts that wrote an effect of this job, or of all."""
        where = f" WHERE job = '{job_id}'" if job_id else ""
        return [attempt for (attempt,) in self.servers.execute(f"SELECT attempt FROM effect{where} ORDER BY attempt")]


def write(claim: Any) -> None:
    """Write the effect of a ``def`` handler through its session."""
    claim.session.execute(EFFECT.insert().values(job=claim.id, attempt=claim.attempt))
