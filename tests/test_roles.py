"""The roles of docs/roles.md have what they need and no more, and a denial names what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import ProgrammingError

from apps.embedding import FAST, Heard
from brooq_sa import (
    AccessError,
    CancelResult,
    Claim,
    JobBase,
    NewJob,
    RawJob,
    RetryResult,
    Worker,
    cancel,
    consume,
    enqueue,
    enqueue_many,
    migrations,
    pause,
    resume,
    retry,
)
from brooq_sa.cli import main
from brooq_sa.events import JobRequeued
from waiting import wait_until

PAGE = Path(__file__).parent.parent / "docs" / "roles.md"
BEFORE, AFTER = re.findall(r"```postgresql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
ROLES = re.findall(r"CREATE ROLE (\w+)", BEFORE)

DECOY = (
    "CREATE TABLE public.job (id int, topic text, state text); INSERT INTO public.job VALUES (1, 'decoy', 'pending')"
)


class Roles(JobBase):
    schema = "jobs"


class Work(Roles, topic="work"):
    number: int = 0

    def run(self, claim: Claim) -> None:
        claim.session.execute(text("SELECT 1"))
        if self.number < 2:
            claim.chain(Work(number=self.number + 1))
        if self.number == 2:
            raise RuntimeError("it fails")


JOB = Roles.__table__


class Town:
    """A database with the page's roles, migrated and granted as the page says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engines: list[Engine] = []

    def begin(self) -> None:
        self.run(DECOY)
        self.run(BEFORE)
        migrations.upgrade(self.of("app_migrator"), schema="jobs")
        self.run(AFTER, "app_migrator")

    def end(self) -> None:
        for engine in self._engines:
            engine.dispose()
        for role in ROLES:
            self.run(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")

    def url_of(self, role: str) -> str:
        return make_url(self.url).set(username=role).render_as_string(hide_password=False)

    def of(self, role: str) -> Engine:
        """An engine of that role."""
        engine = create_engine(self.url_of(role), poolclass=NullPool)
        self._engines.append(engine)
        return engine

    def run(self, sql: str, role: str = "postgres") -> None:
        engine = create_engine(self.url_of(role), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in filter(str.strip, re.split(r"(?<!\\);", sql)):
                connection.exec_driver_sql(statement.replace("\\;", ";"))

    def rows(self) -> list[dict[str, Any]]:
        with self.of("postgres").connect() as connection:
            return [dict(row) for row in connection.execute(select(JOB).order_by(JOB.c.id)).mappings()]

    def is_decoy_whole(self) -> bool:
        with self.of("postgres").connect() as connection:
            return connection.execute(text("SELECT * FROM public.job")).all() == [(1, "decoy", "pending")]


@pytest.fixture
def town(make_pg_database: Callable[..., str]) -> Iterator[Town]:
    made = Town(make_pg_database())
    try:
        made.begin()
        yield made
        assert made.is_decoy_whole()
    finally:
        made.end()


def command(town: Town, role: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", town.url_of(role)], prog_name="brooq-sa")


def test_producer(town: Town) -> None:
    """A producer enqueues in every way, keys included, and does nothing else (M3, I8)."""
    with town.of("app_producer").begin() as connection:
        first = enqueue(connection, Work(), key="a")
        assert enqueue(connection, Work(), key="a") == (first.id, False)
        enqueue(connection, Work(), delay="1h")
        enqueue_many(connection, [Work(), NewJob(Work(), key="a"), RawJob("other", 1, Roles)])
    assert len(town.rows()) == 4
    with (
        pytest.raises(AccessError, match=r"GRANT SELECT, UPDATE ON jobs\.job TO app_producer;"),
        town.of("app_producer").begin() as connection,
    ):
        cancel(connection, Roles, first.id)


def test_operator(town: Town) -> None:
    """An operator cancels, retries, deletes and pauses, in code and by commands, and enqueues nothing (M3, T5)."""
    with town.of("app_producer").begin() as connection:
        job_id = enqueue(connection, Work()).id
    with town.of("app_operator").begin() as connection:
        assert cancel(connection, Roles, job_id) == CancelResult.CANCELED
        assert retry(connection, Roles, job_id) == RetryResult.RETRIED
    assert command(town, "app_operator", "cancel", str(job_id), "--schema", "jobs").exit_code == 0
    with town.of("app_operator").begin() as connection:
        assert pause(connection, Roles, "work")
        assert resume(connection, Roles, "work")
    for arguments in (
        ["pause", "work"],
        ["resume", "work"],
        ["why", str(job_id)],
        ["retry", "--topic", "work", "--state", "canceled", "--yes"],
        ["run-now", "--topic", "work", "--yes"],
        ["cancel", "--topic", "work", "--yes"],
        ["delete", "--topic", "work", "--yes"],
    ):
        result = command(town, "app_operator", *arguments, "--schema", "jobs")
        assert result.exit_code == 0, result.output
    assert town.rows() == []
    with pytest.raises(AccessError), town.of("app_operator").begin() as connection:
        enqueue(connection, Work())


def test_worker(town: Town) -> None:
    """A worker claims, settles, chains, renews, reaps and deletes with its grants alone (M3, U1, U2)."""
    with town.of("app_producer").begin() as connection:
        enqueue(connection, Work(number=2))
        enqueue_many(connection, [Work(number=3) for _ in range(5)])
    with town.of("app_worker").begin() as connection:  # as one that has crashed
        ended = {
            "state": "processing",
            "locked_by": "gone",
            "locked_until": text("statement_timestamp() - '1s'::interval"),
        }
        [crashed] = connection.execute(
            JOB.update().where(JOB.c.payload["number"].as_integer() == 2).values(**ended).returning(JOB.c.id)
        ).scalars()
    settings = FAST | {"retention_ttl": "1ms", "retention_period": "50ms", "lease": "1s"}
    worker = Worker(town.of("app_worker"), Roles, **settings)
    heard = Heard(worker.events)
    with worker:
        assert crashed in [event.id for event in heard.wait_for(JobRequeued)]
        wait_until(lambda: town.rows() == [], what="every job having run and been deleted")
        assert worker.troubles == {}
    with town.of("app_producer").begin() as connection:
        enqueue(connection, RawJob("pulled", None, Roles))
    for claim in consume(town.of("app_worker"), Roles, ["pulled"], stop_when_empty=True):
        with claim:
            pass
    assert [row["state"] for row in town.rows()] == ["done"]


def test_viewer(town: Town) -> None:
    """A viewer sees everything by every command, and changes nothing (M3, W1)."""
    with town.of("app_producer").begin() as connection:
        job_id = enqueue(connection, Work()).id
    for arguments in (["jobs"], ["stats"], ["show", str(job_id)], ["why", str(job_id)]):
        result = command(town, "app_viewer", *arguments, "--schema", "jobs")
        assert (result.exit_code, "work" in result.output) == (0, True), result.output
    for arguments in (["cancel", str(job_id)], ["retry", str(job_id)]):
        result = command(town, "app_viewer", *arguments, "--schema", "jobs")
        assert result.exit_code == 1
        assert "GRANT SELECT, UPDATE ON jobs.job TO app_viewer;" in result.stderr
    result = command(town, "app_viewer", "pause", "work", "--schema", "jobs")
    assert result.exit_code == 1
    assert "GRANT SELECT, INSERT, DELETE ON jobs.job_pause TO app_viewer;" in result.stderr
    result = command(town, "app_viewer", "enqueue", "work", "{}", "--schema", "jobs")
    assert (result.exit_code, "GRANT SELECT, INSERT ON jobs.job TO app_viewer;" in result.stderr) == (1, True)


def test_consuming_without_the_grants(town: Town) -> None:
    """Taking jobs in a loop names what is missing, as enqueuing does (M3)."""
    with pytest.raises(AccessError, match=r"GRANT SELECT, INSERT, UPDATE, DELETE ON jobs\.job TO app_viewer;"):
        next(consume(town.of("app_viewer"), Roles, ["work"]))


def test_another_table_that_is_denied(town: Town) -> None:
    """That a trigger's table is denied is not taken for a denial of the job table, whatever it is called (M3)."""
    town.run(
        "CREATE TABLE jobs.job_audit (x int);"
        "CREATE FUNCTION jobs.audit() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN INSERT INTO jobs.job_audit VALUES (1)\\; RETURN NULL\\; END';"
        "CREATE TRIGGER audit AFTER INSERT ON jobs.job FOR EACH ROW EXECUTE FUNCTION jobs.audit()"
    )
    with town.of("app_producer").connect() as connection, pytest.raises(ProgrammingError, match="job_audit"):
        enqueue(connection, Work())


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("missing", ["schema", "table", "insert"])
def test_what_is_told_to_grant_is_enough(town: Town, missing: str, key: str | None) -> None:
    """The statements that a denied enqueue names, run by the table's owner, let it through (M3)."""
    revoke = {
        "schema": "REVOKE USAGE ON SCHEMA jobs FROM app_producer",
        "table": "REVOKE ALL ON jobs.job FROM app_producer",
        "insert": "REVOKE INSERT ON jobs.job FROM app_producer",
    }
    town.run(revoke[missing], "app_migrator")
    with pytest.raises(AccessError) as denied, town.of("app_producer").begin() as connection:
        enqueue(connection, Work(), key=key)
    assert "Role 'app_producer' may not do this in table 'jobs.job': permission denied" in str(denied.value)
    for statement in denied.value.grants:
        town.run(statement, "app_migrator")
    with town.of("app_producer").begin() as connection:
        assert enqueue(connection, Work(), key=key).created


def test_a_worker_that_lacks_a_grant(town: Town) -> None:
    """A running worker says what to grant, and goes on by itself once that is done (M3, R4)."""
    town.run("REVOKE UPDATE ON jobs.job FROM app_worker", "app_migrator")
    with town.of("app_producer").begin() as connection:
        enqueue(connection, Work(number=3))
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON jobs.job TO app_worker;"
    with Worker(town.of("app_worker"), Roles, **FAST) as worker:
        wait_until(lambda: grant in worker.troubles.get("claiming", ""), what="the grant being named")
        town.run(grant, "app_migrator")
        wait_until(lambda: [row["state"] for row in town.rows()] == ["done"], what="the job being done")
        wait_until(lambda: worker.troubles == {}, what="the worker being well")


def test_a_worker_that_may_not_announce_itself(town: Town) -> None:
    """Without the grants on the table of live workers it works all the same, and has no trouble (M3)."""
    town.run("REVOKE ALL ON jobs.job_worker FROM app_worker", "app_migrator")
    with town.of("app_producer").begin() as connection:
        enqueue(connection, Work(number=3))
    with Worker(town.of("app_worker"), Roles, **FAST) as worker:
        wait_until(lambda: [row["state"] for row in town.rows()] == ["done"], what="the job being done")
        assert worker.troubles == {}


def test_a_worker_that_may_not_see_what_is_paused(town: Town) -> None:
    """Claims ask which topics are paused; a role that may not is told what to grant, and goes on once it is (M3)."""
    town.run("REVOKE ALL ON jobs.job_pause FROM app_worker", "app_migrator")
    with town.of("app_producer").begin() as connection:
        enqueue(connection, Work(number=3))
    grant = "GRANT SELECT ON jobs.job_pause TO app_worker;"
    with Worker(town.of("app_worker"), Roles, **FAST) as worker:
        wait_until(lambda: any(grant in said for said in worker.troubles.values()), what="the grant being named")
        town.run(grant, "app_migrator")
        wait_until(lambda: [row["state"] for row in town.rows()] == ["done"], what="the job being done")


def test_a_worker_that_may_not_delete(town: Town) -> None:
    """Without DELETE retention alone fails, by name; jobs run and are reaped all the same (M3, U2)."""
    town.run("REVOKE DELETE ON jobs.job FROM app_worker", "app_migrator")
    with town.of("app_producer").begin() as connection:
        enqueue(connection, Work(number=3))
    settings = FAST | {"retention_ttl": "1ms", "retention_period": "50ms"}
    with Worker(town.of("app_worker"), Roles, **settings) as worker:
        wait_until(lambda: [row["state"] for row in town.rows()] == ["done"], what="the job being done")
        wait_until(lambda: "DELETE ON jobs.job TO app_worker" in worker.troubles.get("upkeep", ""), what="the grant")
        assert worker.troubles.keys() == {"upkeep"}


SPY = """
CREATE TABLE public.secrets (x int);
CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM x FROM public.secrets\\; RETURN NEW\\; END';
CREATE TRIGGER spy BEFORE INSERT ON jobs.job FOR EACH ROW EXECUTE FUNCTION public.spy()
"""


def test_a_denial_elsewhere_is_not_ours(town: Town) -> None:
    """What a role may not do in a table of the application passes on as the database said it."""
    town.run(SPY)
    with (
        pytest.raises(ProgrammingError, match="permission denied for table secrets"),
        town.of("app_producer").begin() as connection,
    ):
        enqueue(connection, Work())


def test_migrating_without_the_right_to(town: Town) -> None:
    """A role that may not create in the schema is told so by the command, and nothing is made (M1)."""
    result = command(town, "app_producer", "migrate", "upgrade", "--schema", "jobs", "--table", "other")
    assert result.exit_code == 1
    assert "permission denied" in result.stderr
    assert "GRANT CREATE, USAGE ON SCHEMA" in result.stderr
