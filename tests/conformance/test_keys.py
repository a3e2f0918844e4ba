"""At most one job lives under a topic and key, and nobody is told of one that does not exist."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from brooq_sa import Enqueued, EnqueueError, NewJob, RawJob, State, enqueue, enqueue_many, sqlite
from conformance.samples import Email, Urgent, claim_one, finish, put_keyed, put_one
from databases import JOB, Database
from waiting import wait_until


@pytest.mark.parametrize("state", list(State))
def test_a_key_is_held_in_every_state(db: Database, state: State) -> None:
    """While its row lives, a job holds its key, finished ones included, and is what an enqueue answers with (I8)."""
    first = put_one(db, Email(number=1), key="key")
    if state is State.PROCESSING:
        claim_one(db)
    elif state is not State.PENDING:
        finish(db, state)
    before = db.row()
    assert put_keyed(db, "key") == Enqueued(first, False)
    assert db.row() == before


def test_a_key_belongs_to_its_topic(db: Database) -> None:
    """The same key under another topic is another job (I8)."""
    with db.engine.begin() as connection:
        answers = [enqueue(connection, job, key="key") for job in (Email(), Urgent(), RawJob("raw", 1))]
    assert [answer.created for answer in answers] == [True, True, True]


@pytest.mark.parametrize("key", [None, ""], ids=["none", "empty"])
def test_no_key_is_no_deduplication(db: Database, key: str | None) -> None:
    """None and "" are no key: every enqueue makes a job, and NULL is what is stored (I8)."""
    with db.engine.begin() as connection:
        answers = [
            *(enqueue(connection, Email(), key=key) for _ in range(2)),
            *enqueue_many(connection, [NewJob(Email(), key), NewJob(Email(), key)]),
        ]
    assert [answer.created for answer in answers] == [True] * 4
    assert {row["idempotency_key"] for row in db.rows()} == {None}


@pytest.mark.parametrize("key", [" ", "  ", "0", "NULL", "%s", "':x", "ключ", "🔑", "k" * 1_000], ids=range(9))
def test_whatever_is_not_empty_is_a_key(db: Database, key: str) -> None:
    """A space is a key of its own; every key is kept as it was given (I8)."""
    first = put_keyed(db, key)
    assert put_keyed(db, key) == Enqueued(first.id, False)
    assert put_keyed(db, key[:-1] + "!").created
    assert [row["idempotency_key"] for row in db.rows(id=first.id)] == [key]


def test_a_key_taken_within_the_transaction_is_found(db: Database) -> None:
    """Twice in one transaction gives one job, and the second answer is the first job's."""
    with db.engine.begin() as connection:
        first = enqueue(connection, Email(), key="key")
        assert enqueue(connection, Email(), key="key") == Enqueued(first.id, False)


def test_a_bulk_answers_in_order(db: Database) -> None:
    """Of many jobs, some with keys that are taken and some doubled among themselves, each gets its own answer (I8)."""
    taken = put_one(db, key="taken")
    keys = ["b", None, "taken", "a", "b", "", "a", "c"]
    with db.engine.begin() as connection:
        answers = enqueue_many(connection, [NewJob(Email(number=place), key) for place, key in enumerate(keys)])
    assert [answer.created for answer in answers] == [True, True, False, True, False, True, False, True]
    assert (answers[2].id, answers[4].id, answers[6].id) == (taken, answers[0].id, answers[3].id)
    assert {row["payload"]["number"] for row in db.rows()} == {0, 1, 3, 5, 7}


def test_a_bulk_larger_than_a_statement(db: Database) -> None:
    """More jobs than go in one statement are all put, and the keys hold across them."""
    with db.engine.begin() as connection:
        answers = enqueue_many(
            connection, [NewJob(Email(number=place), f"key-{place % 1500}") for place in range(2500)]
        )
    assert [answer.created for answer in answers] == [True] * 1500 + [False] * 1000
    assert [answer.id for answer in answers[1500:]] == [answer.id for answer in answers[:1000]]


def test_bulks_of_several_statements_take_keys_in_one_order(db: Database) -> None:
    """Two bulks with the same keys the other way round take them in the same order, so neither waits in turn (I8)."""
    topics = ("order.b", "order.a")
    keys = [(topic, f"key-{number:04}") for topic in topics for number in range(1_200)]
    assert _keys_as_taken(db, keys) == _keys_as_taken(db, keys[::-1])


def _keys_as_taken(db: Database, keys: list[tuple[str, str]]) -> list[tuple[str, str]]:
    taken: list[tuple[str, str]] = []

    def note(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        if "rows" in parameters:
            taken.extend((row["topic"], row["key"]) for row in json.loads(parameters["rows"]))
        elif "new_key" in parameters:
            taken.append((parameters["new_topic"], parameters["new_key"]))

    engine = create_engine(db.url, paramstyle="named" if db.name == "sqlite" else None)
    if db.name == "sqlite":
        sqlite.configure(engine)
    event.listen(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        answers = enqueue_many(connection, [NewJob(RawJob(topic, None), key) for topic, key in keys])
        assert all(answer.created for answer in answers)
        ids = connection.execute(select(JOB.c.topic, JOB.c.idempotency_key, JOB.c.id))
        found = {(topic, key): job_id for topic, key, job_id in ids}
        assert [found[key] for key in keys] == [answer.id for answer in answers]
        connection.rollback()
    engine.dispose()
    assert len(taken) == len(keys)
    return taken


def test_nothing_in_bulk_is_nothing(db: Database) -> None:
    """No jobs, no answers."""
    with db.engine.begin() as connection:
        assert enqueue_many(connection, []) == []


Ending = Callable[[Connection], None]


@contextmanager
def _second_enqueue(db: Database, engine: Any = None, many: bool = False, begun: Any = None) -> Iterator[Future[Any]]:
    """An enqueue of the key in another thread and transaction, which is committed if it succeeds."""
    started = threading.Event()

    def enqueue_and_commit() -> Enqueued:
        with (engine or db.engine).begin() as connection:
            if begun is not None:
                connection.execute(text(begun))
            started.set()
            if many:
                return enqueue_many(connection, [NewJob(Email(number=2), "key")])[0]
            return enqueue(connection, Email(number=2), key="key")

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(enqueue_and_commit)
        if db.name == "postgresql" or begun is not None:
            assert started.wait(timeout=30)
        if db.name == "postgresql":
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            wait_until(lambda: db.execute(waiting), what="the second enqueue waiting for the first")
        yield future


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_the_second_of_two_takes_over_from_one_that_rolls_back(db: Database, many: bool) -> None:
    """If the first enqueuer of a key rolls back, the second is told created, and its job is there (I8, I11)."""
    with db.engine.connect() as first:
        enqueue(first, Email(number=1), key="key")
        with _second_enqueue(db, many=many) as second:
            first.rollback()
    assert second.result().created
    assert (db.row()["id"], db.row()["payload"]) == (second.result().id, {"number": 2})


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_the_second_of_two_finds_the_one_that_commits(db: Database, many: bool) -> None:
    """If the first enqueuer of a key commits, the second is told that job's id (I8)."""
    with db.engine.connect() as first:
        answer = enqueue(first, Email(number=1), key="key")
        with _second_enqueue(db, many=many) as second:
            first.commit()
    assert second.result() == Enqueued(answer.id, False)
    assert db.row()["payload"] == {"number": 1}


def test_of_five_the_last_commits(db: Database) -> None:
    """Four enqueuers of one key roll back, the fifth commits: exactly one job, which is the fifth's (I8)."""
    start = threading.Barrier(5)
    left = iter(range(5))
    turn = threading.Lock()

    def enqueue_one(_: int) -> tuple[Enqueued, bool]:
        start.wait(timeout=30)
        with db.engine.connect() as connection:
            answer = enqueue(connection, Email(), key="key")
            with turn:
                is_last = next(left) == 4
            if is_last:
                connection.commit()
            else:
                connection.rollback()
            return answer, is_last

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(enqueue_one, range(5)))
    assert all(answer.created for answer, _ in answers)
    assert [answer.id for answer, is_last in answers if is_last] == [row["id"] for row in db.rows()]


def test_under_repeatable_read_the_answer_is_created_or_an_error(pg: Database) -> None:
    """A REPEATABLE READ caller with a snapshot older than the other's commit gets 40001 and no silent nothing (I8)."""
    engine = create_engine(pg.url, isolation_level="REPEATABLE READ")
    with pg.engine.connect() as first:
        enqueue(first, Email(number=1), key="key")
        with _second_enqueue(pg, engine, begun="SELECT 1") as second:
            first.rollback()
    assert second.result().created
    pg.execute("DELETE FROM job")
    with pg.engine.connect() as first:
        enqueue(first, Email(number=1), key="key")
        with _second_enqueue(pg, engine, begun="SELECT 1") as second:
            first.commit()
    with pytest.raises(DBAPIError) as caught:
        second.result()
    assert caught.value.orig.sqlstate == "40001"  # type: ignore[union-attr]
    assert pg.row()["payload"] == {"number": 1}
    engine.dispose()


def test_a_lock_timeout_is_an_error(pg: Database) -> None:
    """A caller that does not wait for the other's transaction gets the database's error (I8)."""
    with pg.engine.connect() as first:
        enqueue(first, Email(), key="key")
        with pg.engine.connect() as second:
            second.execute(text("SET LOCAL lock_timeout = '50ms'"))
            with pytest.raises(DBAPIError) as caught:
                enqueue(second, Email(), key="key")
    assert caught.value.orig.sqlstate == "55P03"  # type: ignore[union-attr]
    assert pg.rows() == []


def test_bulks_with_keys_in_common_do_not_deadlock(pg: Database) -> None:
    """Two bulks whose keys overlap in opposite orders take them in the same order, so neither fails."""
    keys = [f"key-{number:03}" for number in range(200)]
    start = threading.Barrier(2)

    def enqueue_all(order: list[str]) -> int:
        start.wait(timeout=30)
        with pg.engine.begin() as connection:
            return sum(answer.created for answer in enqueue_many(connection, [NewJob(Email(), key) for key in order]))

    for _ in range(5):
        pg.execute("DELETE FROM job")
        with ThreadPoolExecutor(2) as pool:
            created = list(pool.map(enqueue_all, [keys, keys[::-1]]))
        assert sum(created) == len(keys)


@contextmanager
def _deleted_before_it_is_found(connection: Connection, db: Database, put_back: bool) -> Iterator[None]:
    """Let the job that holds the key vanish between the insert that met it and the look for it."""

    def interfere(_connection: Any, _cursor: Any, sql: str, *_rest: Any) -> None:
        if sql.startswith("SELECT job.id"):
            db.execute("DELETE FROM job")
        elif put_back and sql.startswith("INSERT"):
            db.execute("INSERT INTO job (topic, payload, idempotency_key) VALUES ('email.send', '{}', 'key')")

    event.listen(connection, "before_cursor_execute", interfere)
    yield
    event.remove(connection, "before_cursor_execute", interfere)


def test_a_key_that_is_freed_in_between_is_taken(pg: Database) -> None:
    """If the key's job is deleted before it can be named, the enqueue tries again and creates one (I8)."""
    put_one(pg, key="key")
    with pg.engine.begin() as connection, _deleted_before_it_is_found(connection, pg, put_back=False):
        answer = enqueue(connection, Email(number=2), key="key")
    assert answer.created
    assert pg.row()["id"] == answer.id


def test_a_key_that_is_never_still_is_an_error(pg: Database) -> None:
    """If the key's job keeps coming and going, the enqueue says so and does not go on for ever (I8)."""
    with (
        pg.engine.begin() as connection,
        _deleted_before_it_is_found(connection, pg, put_back=True),
        pytest.raises(EnqueueError, match="taken and given up"),
    ):
        enqueue(connection, Email(), key="key")


def test_the_table_itself_holds_the_rule(db: Database) -> None:
    """Inserts by hand cannot break it: the index on topic and key is unique (M6, I8)."""
    insert = "INSERT INTO job (topic, payload, idempotency_key) VALUES (:topic, '{}', :key)"
    db.execute(insert, topic="a", key="key")
    db.execute(insert, topic="b", key="key")
    db.execute(insert, topic="a", key=None)
    db.execute(insert, topic="a", key=None)
    with pytest.raises(IntegrityError):
        db.execute(insert, topic="a", key="key")
