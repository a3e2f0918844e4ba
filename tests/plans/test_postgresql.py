"""No statistics, and no switch of PostgreSQL's planner, make a statement of the worker read more than its share.

Each statement is explained as `JobStore` sends it, against a table of 625,000 jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_postgresql.executors import PostgreSQLExecutor
from sqlalchemy import Connection, Engine, Executable, create_engine, select, text

from brooq_sa.statements import bulk, enqueue, operate, standing
from brooq_sa.statements.bulk import Shape, Sweep
from brooq_sa.statements.guards import is_ready
from brooq_sa.states import READY, TERMINAL, State
from brooq_sa.store import Holding, JobStore, Outcome
from databases import JOB
from plans import loaded
from plans.explaining import Plan, explained

STORE = JobStore(JOB)
LEASE = timedelta(minutes=1)

NESTED_LOOPS = ("enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material")


@pytest.fixture(scope="module")
def busy(pg_server: PostgreSQLExecutor, pg_maintenance: Engine, pg_template: str) -> Iterator[Engine]:
    """A database whose table holds 625,000 jobs."""
    with pg_maintenance.connect() as connection:
        connection.execute(text(f"CREATE DATABASE brooq_plans TEMPLATE {pg_template}"))
    engine = create_engine(pg_maintenance.url.set(database="brooq_plans"))
    with engine.begin() as connection:
        loaded.load(connection)
    yield engine
    engine.dispose()
    with pg_maintenance.connect() as connection:
        connection.execute(text("DROP DATABASE brooq_plans WITH (FORCE)"))


@pytest.fixture(scope="module", params=list(loaded.STATISTICS))
def statistics(request: pytest.FixtureRequest, busy: Engine) -> str:
    """What the planner believes about the table."""
    _sweep(busy, request.param)
    return str(request.param)


def _sweep(busy: Engine, statistics: str) -> None:
    with busy.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (INDEX_CLEANUP ON) job"))  # what earlier tests rolled back costs nothing then
    with busy.begin() as connection:
        loaded.STATISTICS[statistics](connection)


@pytest.fixture(params=["custom", "generic"])
def plan_cache(request: pytest.FixtureRequest) -> str:
    """Whether the planner knows the parameters."""
    return str(request.param)


@pytest.fixture(params=[(), NESTED_LOOPS], ids=["all", "nested_loops"])
def connection(request: pytest.FixtureRequest, busy: Engine, statistics: str, plan_cache: str) -> Iterator[Connection]:
    """A connection that is rolled back, under one of the ways to plan."""
    with busy.connect() as connection:
        connection.execute(text(f"SET plan_cache_mode = force_{plan_cache}_plan"))
        for switch in request.param:
            connection.execute(text(f"SET {switch} = off"))
        yield connection
        connection.rollback()
        connection.invalidate()  # its settings go with it


def fits(plan: Plan, *, taken: int, pages_each: int, pages_at_least: int = 20) -> bool:
    """Whether a plan walks no table, and looks at pages in proportion to the rows it is about."""
    assert not [node for node in plan.nodes("Seq Scan") if node["Relation Name"] == "job"], plan
    assert plan.buffers <= pages_at_least + pages_each * taken, plan
    return True


def locks_once(plan: Plan, *, at_most: int) -> bool:
    """Whether the sub-select that locks was evaluated once, and locked no more than was asked for."""
    [chooser] = [
        node
        for node in plan.nodes()
        if node.get("Parent Relationship") == "InitPlan"
        and any(each["Node Type"] == "LockRows" for each in _below(node))
    ]
    assert chooser["Actual Loops"] == 1, plan
    assert plan.locked <= at_most, plan
    return True


def _below(node: dict[str, object]) -> list[dict[str, object]]:
    return Plan("", node).nodes()


def held_by(connection: Connection, worker: str) -> list[Holding]:
    """What a worker of the fleet holds."""
    rows = connection.execute(select(JOB.c.id, JOB.c.attempts).where(JOB.c.locked_by == worker)).all()
    return [(job_id, attempt) for job_id, attempt in rows]


@pytest.fixture
def _swept(busy: Engine, statistics: str) -> None:
    """What other tests have rolled back is cleared away, and the planner believes what it did."""
    _sweep(busy, statistics)


@pytest.mark.usefixtures("_swept")
@pytest.mark.parametrize("room", [1, 10, 100])
def test_claim_reads_what_it_takes(connection: Connection, room: int) -> None:
    """200,000 jobs of another topic, scheduled before it, or finished cost a claim nothing (I2, M6)."""
    with explained(connection) as plans:
        claimed = STORE.claim(connection, {loaded.TOPIC: room}, room=room, worker="me", lease=LEASE)
    assert [job.priority for job in claimed] == [0] * room
    [plan] = plans
    assert fits(plan, taken=room, pages_each=40, pages_at_least=60)
    assert locks_once(plan, at_most=room)
    assert plan.rows_read <= 3 * room + 10, plan


def test_claim_of_several_topics_stops_when_it_has_enough(connection: Connection) -> None:
    """A claim of many topics locks no more rows than it has room for in all."""
    want = {"nothing.here": 10, loaded.TOPIC: 10, "other": 10}
    with explained(connection) as plans:
        claimed = STORE.claim(connection, want, room=15, worker="me", lease=LEASE)
    assert sorted(job.topic for job in claimed) == ["other"] * 5 + [loaded.TOPIC] * 10
    [plan] = plans
    assert fits(plan, taken=15, pages_each=40, pages_at_least=60)
    assert locks_once(plan, at_most=15)


def test_claim_of_an_idle_topic_reads_nothing(connection: Connection) -> None:
    """A poll that finds nothing costs a few pages of the index."""
    with explained(connection) as plans:
        assert STORE.claim(connection, {"nothing.here": 100}, room=100, worker="me", lease=LEASE) == []
    [plan] = plans
    assert plan.buffers <= 20, plan
    assert plan.rows_read == 0, plan


def test_claim_of_a_paused_topic_looks_at_no_job(connection: Connection) -> None:
    """A paused topic costs a look at the pauses; the topics beside it are claimed from as ever."""
    STORE.pause(connection, "other")
    with explained(connection) as plans:
        assert STORE.claim(connection, {"other": 100}, room=100, worker="me", lease=LEASE) == []
        claimed = STORE.claim(connection, {"other": 10, loaded.TOPIC: 10}, room=15, worker="me", lease=LEASE)
    assert [job.topic for job in claimed] == [loaded.TOPIC] * 10
    paused, both = plans
    assert paused.rows_read <= 2, paused
    assert paused.locked == 0, paused
    assert paused.buffers <= 20, paused
    assert fits(both, taken=10, pages_each=40, pages_at_least=60)
    assert locks_once(both, at_most=10)


@pytest.mark.parametrize("state", [State.DONE, State.FAILED, State.DEAD])
@pytest.mark.parametrize("count", [1, loaded.HELD_BY_EACH])
def test_settle_looks_at_its_own_jobs(connection: Connection, state: State, count: int) -> None:
    """Neither the fleet's 5,000 processing jobs, nor what else the worker holds, matter to a settle (I12)."""
    held = held_by(connection, "worker-7")[:count]
    outcomes = [Outcome(job_id, attempt, state, timedelta(seconds=3), "failed") for job_id, attempt in held]
    with explained(connection) as plans:
        assert STORE.settle(connection, "worker-7", outcomes) == set(held)
    [plan] = plans
    assert fits(plan, taken=count, pages_each=25)
    assert plan.rows_read == count, plan


def test_renewal_looks_at_its_own_jobs(connection: Connection) -> None:
    """A heartbeat reads and locks what its worker holds; the look at what is missing reads only that."""
    held = held_by(connection, "worker-7")
    with explained(connection) as plans:
        renewal = STORE.renew(connection, "worker-7", {*held, (uuid.uuid4(), 1)}, LEASE)
    assert renewal.renewed == set(held)
    renew, look = plans
    assert fits(renew, taken=len(held), pages_each=20)
    assert locks_once(renew, at_most=len(held))
    assert renew.rows_read <= 3 * len(held), renew
    assert fits(look, taken=1, pages_each=10)


def test_reaper_looks_at_leased_jobs(connection: Connection) -> None:
    """A reaper that finds nothing has read the leases of the fleet, and nothing else (U1)."""
    with explained(connection) as plans:
        assert STORE.reap(connection, limit=1_000) == []
    [plan] = plans
    assert fits(plan, taken=loaded.HELD, pages_each=8)
    assert plan.rows_read <= loaded.HELD, plan
    assert locks_once(plan, at_most=0)


@pytest.mark.parametrize("limit", [1, 50])
def test_reaper_takes_no_more_than_its_limit(connection: Connection, limit: int) -> None:
    """A reaper locks and returns at most its batch (U1)."""
    connection.execute(text("UPDATE job SET locked_until = now() - interval '1 s' WHERE locked_by = 'worker-7'"))
    with explained(connection) as plans:
        assert len(STORE.reap(connection, limit=limit)) == limit
    [plan] = plans
    assert fits(plan, taken=loaded.HELD, pages_each=8)
    assert locks_once(plan, at_most=limit)


@pytest.mark.parametrize("limit", [1, 500])
def test_retention_reads_what_it_deletes(connection: Connection, limit: int) -> None:
    """Each batch of retention begins at the oldest finished job and stops when it is full (U2, M6)."""
    with explained(connection) as plans:
        assert len(STORE.purge(connection, ttl=timedelta(seconds=1), limit=limit)) == limit
    [plan] = plans
    assert fits(plan, taken=limit, pages_each=15)
    assert locks_once(plan, at_most=limit)
    assert plan.rows_read <= 2 * limit, plan


def test_retention_with_nothing_to_delete_reads_nothing(connection: Connection) -> None:
    """200,000 finished jobs that are still young cost retention nothing (U2)."""
    with explained(connection) as plans:
        assert STORE.purge(connection, ttl=timedelta(days=30), limit=1_000) == []
    [plan] = plans
    assert plan.buffers <= 20, plan


@pytest.mark.parametrize("timing", [{}, {"new_available_at": None, "new_delay": 0.0}], ids=["due", "timed"])
def test_a_key_is_found_by_its_index(connection: Connection, timing: dict[str, Any]) -> None:
    """An enqueue with a key, and the look for the job that has it, take a few pages (I8)."""
    new = {
        "new_id": uuid.uuid4(),
        "new_topic": loaded.TOPIC,
        "new_payload": "{}",
        "new_priority": 0,
        "new_key": "key",
        **timing,
    }
    with explained(connection) as plans:
        connection.execute(enqueue.insert_keyed_job(JOB, "postgresql", is_due=not timing), new)
        connection.execute(enqueue.find_by_key(JOB), {"topic": loaded.TOPIC, "key": "key"})
        connection.execute(enqueue.find_by_keys(JOB), {"topic": loaded.TOPIC, "keys": ["key", "other", "third"]})
    for plan in plans:
        assert fits(plan, taken=3, pages_each=10)


def test_an_operator_reaches_one_job(connection: Connection) -> None:
    """Cancel and retry go by primary key."""
    [(job_id, _), *_] = held_by(connection, "worker-7")
    with explained(connection) as plans:
        STORE.cancel(connection, job_id)
        STORE.retry(connection, job_id)
        connection.execute(operate.state_of(JOB), {"job_id": job_id})
    assert plans
    for plan in plans:
        assert fits(plan, taken=1, pages_each=15)


SHAPES = {
    "ready": Shape(Sweep.READY, (State.PENDING,)),
    "ready_of_a_topic": Shape(Sweep.READY, READY, by_topic=True),
    "early": Shape(Sweep.READY, READY, by_topic=True, is_early=True),
    "held": Shape(Sweep.HELD, (State.PROCESSING,)),
    "finished": Shape(Sweep.FINISHED, (State.DONE,)),
    "finished_of_a_topic": Shape(Sweep.FINISHED, TERMINAL, by_topic=True),
    "finished_before": Shape(Sweep.FINISHED, TERMINAL, by_topic=True, has_before=True, has_after=True),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_window_reads_what_it_shows(connection: Connection, shape: Shape) -> None:
    """Looking for jobs to move in bulk walks an index, and goes on in it from where it ended."""
    terms = {
        "topic": loaded.TOPIC,
        "limit": 100,
        "before": datetime.now(UTC),
        "after": datetime(2020, 1, 1, tzinfo=UTC),
    }
    connection.execute(bulk.by_index())
    with explained(connection) as plans:
        first = connection.execute(bulk.window(JOB, shape, goes_on=False), terms).all()
        last = {f"last_{name}": getattr(first[-1], name) for name in shape.order}
        second = connection.execute(bulk.window(JOB, shape, goes_on=True), terms | last).all()
    assert (len(first), len(second)) == (100, 100)
    assert not {row.id for row in first} & {row.id for row in second}
    for plan in plans:
        assert fits(plan, taken=100, pages_each=5, pages_at_least=60)
        assert plan.rows_read <= 400, plan


@pytest.mark.parametrize("move", [bulk.retry, bulk.cancel, bulk.run_now, bulk.remove], ids=lambda move: move.__name__)
def test_a_bulk_move_looks_at_its_own_jobs(connection: Connection, move: Callable[..., Executable]) -> None:
    """A batch of a bulk move goes by primary key (I3)."""
    ids = connection.execute(select(JOB.c.id).where(JOB.c.topic == loaded.TOPIC).limit(100)).scalars().all()
    with explained(connection) as plans:
        connection.execute(move(JOB, State.PENDING), {"ids": ids})
    [plan] = plans
    assert fits(plan, taken=100, pages_each=40)


def test_asking_why_looks_at_one_job(connection: Connection) -> None:
    """Why a job is where it is goes by primary key; of the jobs before it no more than are counted are read."""
    [(job_id, *place)] = connection.execute(
        select(JOB.c.id, JOB.c.priority, JOB.c.available_at)
        .where(JOB.c.topic == loaded.TOPIC, is_ready(JOB), JOB.c.priority == 0)
        .order_by(JOB.c.available_at.desc())
        .limit(1)
    )
    terms = {"job_id": job_id, "topic": loaded.TOPIC, "priority": place[0], "available_at": place[1]}
    with explained(connection) as plans:
        connection.execute(standing.standing(JOB), terms)
        connection.execute(standing.xmax(JOB), terms)
        assert connection.execute(standing.ahead(JOB), terms).scalar_one() == standing.MOST_AHEAD
    *about_one, about_those_ahead = plans
    for plan in about_one:
        assert fits(plan, taken=1, pages_each=15)
    assert fits(about_those_ahead, taken=standing.MOST_AHEAD, pages_each=5)
