"""Enqueuing joins whatever transaction the caller has, on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import flask
import flask_sqlalchemy
import pytest
import sqlmodel
from sqlalchemy import Delete, ForeignKey, MetaData, Update, UpdateBase, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, ResourceClosedError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import brooq_sa
from brooq_sa import (
    Enqueued,
    JobBase,
    NewJob,
    OptionError,
    PayloadError,
    RawJob,
    SchemaError,
    State,
    cancel,
    enqueue,
    enqueue_many,
    retry,
)
from brooq_sa.schema import LATEST
from conformance.samples import AppJob, Email, Urgent, put
from databases import Database, make_engine


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)


class Book(Base):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(ForeignKey("author.id"))


@contextmanager
def _scoped(db: Database) -> Iterator[Any]:
    registry = scoped_session(sessionmaker(db.engine))
    yield registry
    registry.remove()


@contextmanager
def _flask(db: Database) -> Iterator[Any]:
    app = flask.Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = db.url
    extension = flask_sqlalchemy.SQLAlchemy()
    extension.init_app(app)
    with app.app_context():
        if db.name == "sqlite":
            brooq_sa.sqlite.configure(extension.engine)
        yield extension.session
        extension.session.remove()
        extension.engine.dispose()


TARGETS: dict[str, Callable[[Database], Any]] = {
    "Session": lambda db: Session(db.engine),
    "brooq_sa.Session": lambda db: brooq_sa.Session(db.engine),
    "scoped_session": _scoped,
    "sqlmodel": lambda db: sqlmodel.Session(db.engine),
    "flask_sqlalchemy": _flask,
    "Connection": lambda db: db.engine.connect(),
}


@pytest.fixture(params=list(TARGETS))
def target(request: pytest.FixtureRequest, db: Database) -> Iterator[Any]:
    """One of the things that an enqueue takes."""
    with TARGETS[request.param](db) as target:
        yield target


def test_a_job_exists_if_and_only_if_the_caller_commits(db: Database, target: Any) -> None:
    """Nothing is there after a rollback, and the job after a commit; nothing else commits."""
    enqueue(target, Email(number=1))
    target.rollback()
    answer = enqueue(target, Email(number=2))
    if db.name == "postgresql":  # a reader of SQLite sees no more, but this one would wait for the writer
        assert db.rows() == []
    target.commit()
    assert db.row() == {
        "id": answer.id,
        "topic": "email.send",
        "payload": {"number": 2},
        "state": "pending",
        "attempts": 0,
        "crashes": 0,
        "priority": 0,
        "available_at": db.row()["created_at"],
        "locked_by": None,
        "locked_until": None,
        "last_error": None,
        "progress": None,
        "idempotency_key": None,
        "created_at": db.row()["updated_at"],
        "updated_at": db.row()["updated_at"],
    }


def test_many_jobs_exist_if_and_only_if_the_caller_commits(db: Database, target: Any) -> None:
    """The same for many at once, and the answers come in order."""
    enqueue_many(target, [Email(number=1), Email(number=2)])
    target.rollback()
    answers = enqueue_many(
        target, [NewJob(Email(number=3), key="a"), Email(number=4), NewJob(Email(number=5), key="a")]
    )
    target.commit()
    third, fourth, fifth = answers
    assert (third.created, fourth.created, fifth) == (True, True, Enqueued(third.id, False))
    assert {row["id"]: row["payload"]["number"] for row in db.rows()} == {third.id: 3, fourth.id: 4}


def test_the_session_class_has_the_methods(db: Database) -> None:
    """A Session with the mixin enqueues by methods of the same names."""
    with brooq_sa.Session(db.engine) as session, session.begin():
        one = session.enqueue(Email(number=1), key="one", priority=3)
        two, three = session.enqueue_many([Email(number=2), NewJob(Email(number=3), key="one")], priority=4)
    assert three == Enqueued(one.id, False)
    assert [(row["id"], row["priority"]) for row in db.rows()] == [(one.id, 3), (two.id, 4)]


def test_what_the_session_holds_is_written_first(db: Database) -> None:
    """The session is flushed before the job is sent: an enqueue sees the ids of what it refers to."""
    Base.metadata.create_all(db.engine)
    with Session(db.engine, autoflush=False) as session, session.begin():
        author = Author()
        session.add(author)
        enqueue(session, Email())
        assert author.id is not None
        session.add(Book(author_id=author.id))


@pytest.mark.parametrize("writes", [Update | Delete, UpdateBase], ids=["update or delete", "any"])
def test_a_session_that_routes_its_writes(db: Database, writes: Any) -> None:
    """A session that sends writes to one database and reads to another puts jobs into the former."""

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **others: Any) -> Any:
            if self._flushing or isinstance(clause, writes):
                return db.engine
            raise AssertionError(f"{clause} was taken for a read")

    with Routing() as session:
        enqueued = [enqueue(session, Email()), *enqueue_many(session, [Email(), Urgent()])]
        assert cancel(session, AppJob, enqueued[0].id) == "canceled"
        assert retry(session, AppJob, enqueued[0].id) == "retried"
        session.commit()
    assert db.states() == ["pending"] * 3


def test_a_session_without_one_engine_needs_the_tables(db: Database) -> None:
    """A session whose engines go by table is told to name that of the jobs."""
    with Session(binds={Author: db.engine}) as session, pytest.raises(OptionError, match=r"'job'.*binds=\{AppJob\.__"):
        enqueue(session, Email())
    with Session(binds={Author: db.engine, AppJob.__table__: db.engine}) as session:
        enqueue(session, Email())
        session.commit()
    assert db.states() == ["pending"]


def test_a_failing_flush_sends_no_job(db: Database) -> None:
    """If the caller's own rows are refused, no job is there either."""
    Base.metadata.create_all(db.engine)
    with Session(db.engine) as session:
        session.add_all([Author(id=1), Author(id=1)])
        with pytest.raises(IntegrityError):
            enqueue(session, Email())
        session.rollback()
        session.commit()
    assert db.rows() == []


def test_a_rolled_back_savepoint_takes_its_jobs_with_it(db: Database) -> None:
    """A job enqueued in a savepoint goes when that is rolled back, and the outer transaction keeps its own."""
    with Session(db.engine) as session, session.begin():
        enqueue(session, Email(number=1))
        inner = session.begin_nested()
        enqueue(session, Email(number=2), key="a key")
        inner.rollback()
        enqueue(session, Email(number=3))
    assert [row["payload"]["number"] for row in db.rows()] == [1, 3]


def test_savepoints_three_deep(db: Database) -> None:
    """Of three savepoints within each other, the rolled back one takes those inside it along."""
    with Session(db.engine) as session, session.begin():
        enqueue(session, Email(number=1))
        with session.begin_nested():
            enqueue(session, Email(number=2))
            middle = session.begin_nested()
            enqueue(session, Email(number=3))
            with session.begin_nested():
                enqueue(session, Email(number=4))
            middle.rollback()
    assert [row["payload"]["number"] for row in db.rows()] == [1, 2]


def test_a_released_savepoint_commits_nothing(db: Database) -> None:
    """A job in a savepoint that was left well is gone if the outer transaction is rolled back."""
    with Session(db.engine) as session:
        with session.begin_nested():
            enqueue(session, Email())
        session.rollback()
    assert db.rows() == []


def test_a_closed_connection_is_refused_by_sqlalchemy(db: Database) -> None:
    """Errors of SQLAlchemy's own pass through."""
    connection = db.engine.connect()
    connection.close()
    with pytest.raises(ResourceClosedError):
        enqueue(connection, Email())


def test_ids_grow_in_the_order_of_enqueuing(db: Database) -> None:
    """Jobs enqueued one after the other have ids in that order (I10)."""
    ids = put(db, *[Email(number=number) for number in range(50)])
    assert [row["id"] for row in db.rows()] == ids == sorted(ids)


def test_priority_comes_from_the_call_or_from_the_kind(db: Database) -> None:
    """A priority given with the job wins over the batch's, and that over the kind's."""
    with db.engine.begin() as connection:
        enqueue(connection, Urgent())
        enqueue(connection, Urgent(), priority=0)
        enqueue_many(connection, [NewJob(Urgent(), priority=7), Urgent()], priority=-32_768)
        enqueue(connection, RawJob("raw", None), priority=32_767)
    assert [row["priority"] for row in db.rows()] == [-10, 0, 7, -32_768, 32_767]


@pytest.mark.parametrize("delay", [timedelta(hours=1), "1h", "60m"])
def test_a_delay_counts_from_the_databases_now(db: Database, delay: timedelta | str) -> None:
    """A delay is added to the database's clock (I13)."""
    with db.engine.begin() as connection:
        enqueue(connection, Email(), delay=delay)
        enqueue_many(connection, [Email()], delay=delay)
    waits = {row["available_at"] - row["created_at"] for row in db.rows()}
    assert max(abs(wait - timedelta(hours=1)) for wait in waits) < timedelta(milliseconds=2)


def test_a_bulk_option_yields_to_the_jobs_own(db: Database) -> None:
    """A job with a time of its own takes none of the batch's."""
    moment = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    with db.engine.begin() as connection:
        enqueue_many(
            connection, [NewJob(Email(), available_at=moment), NewJob(Email(), delay="0s"), Email()], delay="10h"
        )
    at, now, later = [row["available_at"] for row in db.rows()]
    assert at == moment
    assert later - now > timedelta(hours=9)


@pytest.mark.parametrize(
    "options",
    [
        {"available_at": datetime(2031, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"available_at": "2031-01-01T00:00:00Z"},
        {"available_at": datetime.max.replace(tzinfo=UTC)},
        {"available_at": datetime.min.replace(tzinfo=UTC)},
        {"available_at": datetime.fromisoformat(f"{LATEST}+00:00")},
        {"available_at": datetime(2031, 1, 1, tzinfo=UTC), "delay": "1s"},
        {"delay": "-1s"},
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta.max},
        {"delay": 5},
        {"delay": "5"},
        {"priority": 40_000},
        {"priority": True},
        {"priority": "1"},
        {"key": 1},
        {"key": "a\0b"},
        {"key": "\ud800"},
        {"key": "k" * 1_001},
    ],
    ids=str,
)
def test_a_bad_option_is_refused_before_any_sql(db: Database, options: dict[str, Any]) -> None:
    """A bad option raises OptionError, and the caller's transaction is as usable as before."""
    with db.engine.begin() as connection:
        enqueue(connection, Email(number=1))
        with pytest.raises(OptionError):
            enqueue(connection, Email(number=2), **options)
        with pytest.raises(OptionError):
            enqueue_many(connection, [Email(number=3), NewJob(Email(number=4), **options)])
        enqueue(connection, Email(number=5))
    assert [row["payload"]["number"] for row in db.rows()] == [1, 5]


@pytest.mark.parametrize(
    "job", [object(), Email, "email.send", JobBase(), None], ids=["object", "class", "topic", "root", "none"]
)
def test_only_jobs_are_enqueued(db: Database, job: Any) -> None:
    """What is not a job, a class instead of an instance included, is refused by name."""
    with db.engine.begin() as connection, pytest.raises(OptionError, match="is not a job"):
        enqueue(connection, job)


@pytest.mark.parametrize("session", [object(), None, Session], ids=["object", "none", "class"])
def test_only_sessions_are_enqueued_into(session: Any) -> None:
    """What is no session or connection is refused by name."""
    with pytest.raises(OptionError, match="no session"):
        enqueue(session, Email())


def test_an_engine_is_refused(db: Database) -> None:
    """An Engine has no transaction of the caller's, so it is refused."""
    with pytest.raises(OptionError, match="no session"):
        enqueue(db.engine, Email())  # type: ignore[call-overload]


class Anything(brooq_sa.JobBase):
    metadata = MetaData()


class Carrier(Anything, topic="carrier"):
    value: Any
    other: Any = None


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


UNFIT: dict[str, tuple[Any, str]] = {
    "nan": (float("nan"), "$.value"),
    "infinity": ([1.0, float("inf")], "$.value[1]"),
    "nul": ({"a": [{"b": "nul \0"}]}, "$.value.a[0].b"),
    "surrogate": ("\ud800", "$.value"),
    "surrogate key": ({"\udfff": 1}, "$.value"),
    "integer key": ({1: "a", "1": "b"}, "$.value"),
    "null key": ({None: 1}, "$.value"),
    "googol": (10**400, "$.value"),
    "above 64 bits": (2**64, "$.value"),
    "below 64 bits": (-(2**63) - 1, "$.value"),
    "set": ({1, 2}, "$.value"),
    "bytes": (b"bytes", "$.value"),
    "uuid": (uuid.UUID(int=1), "$.value"),
    "naive": (datetime(2031, 1, 1), "$.value"),  # noqa: DTZ001 - naive on purpose
    "object": (object(), "$"),
    "deep": (nested(2000), "$"),
    "huge": ("x" * 20_000_000, "$"),
}


@pytest.mark.parametrize("value, path", UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_carried_is_refused_before_any_sql(db: Database, value: Any, path: str) -> None:
    """NaN, NUL, lone surrogates and their like are refused with their path, and the transaction stays usable."""
    with db.engine.begin() as connection:
        enqueue(connection, Email(number=1))
        with pytest.raises(PayloadError) as caught:
            enqueue(connection, Carrier(value=value))
        with pytest.raises(PayloadError):
            enqueue_many(connection, [Email(number=2), Carrier(value=value)])
        enqueue(connection, Email(number=3))
    assert caught.value.topic == "carrier"
    assert caught.value.path.startswith(path)
    assert len(str(caught.value)) < 1_000
    assert [row["payload"]["number"] for row in db.rows()] == [1, 3]


def test_a_missing_table_says_how_to_migrate(make_pg_database: Callable[[], str], tmp_path: Any, db: Database) -> None:
    """A database without the job table gets an error that names the command, and no table (M1)."""
    url = make_pg_database() if db.name == "postgresql" else f"sqlite:///{tmp_path / 'empty.sqlite'}"
    engine = make_engine(url)
    for send in (
        lambda connection: enqueue(connection, Email()),
        lambda connection: enqueue(connection, Email(), key="key"),
        lambda connection: enqueue_many(connection, [Email(), NewJob(Email(), key="key")]),
        lambda connection: brooq_sa.cancel(connection, Carrier, uuid.uuid4()),
    ):
        with engine.connect() as connection, pytest.raises(SchemaError, match=r"alembic upgrade brooq@head"):
            send(connection)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


AUDITING = {
    "postgresql": (
        "CREATE SCHEMA audit",
        """CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN INSERT INTO {table} VALUES (1); RETURN NULL; END'""",
        "CREATE TRIGGER audit AFTER INSERT ON job FOR EACH ROW EXECUTE FUNCTION audit()",
    ),
    "sqlite": ("CREATE TRIGGER audit AFTER INSERT ON job BEGIN INSERT INTO {table} VALUES (1); END",),
}


@pytest.mark.parametrize("table", ["job_audit", "audit.job"])
def test_another_table_that_is_missing(db: Database, table: str) -> None:
    """That a trigger's table is missing is not taken for a missing job table, however alike the names are."""
    if db.name == "sqlite" and "." in table:
        table = "jobs"  # a trigger cannot name a schema there
    with db.engine.connect() as connection:
        for statement in AUDITING[db.name]:
            connection.execute(text(statement.format(table=table)))
        with pytest.raises(DBAPIError, match=table):
            enqueue(connection, Email())
        connection.rollback()


@pytest.mark.parametrize("meant", [None, "jobs"])
def test_a_missing_table_in_the_schema_that_is_meant(db: Database, meant: str | None) -> None:
    """With a map of schemas, it is the table of the mapped one that is missing."""
    if db.name == "sqlite" and meant:
        meant = "main"
    engine = db.engine.execution_options(schema_translate_map={"tenant": meant})

    class Tenants(JobBase):
        schema = "tenant"
        table_name = "job_of_tenants"
        metadata = MetaData()

    with engine.connect() as connection:
        if meant == "jobs":
            connection.execute(text("CREATE SCHEMA jobs"))
        with pytest.raises(SchemaError):
            enqueue(connection, RawJob("x", None, Tenants))
        connection.rollback()


def test_other_databases_are_refused() -> None:
    """A database that is neither PostgreSQL nor SQLite is named."""
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect.name = "oracle"
        with pytest.raises(OptionError, match=r"oracle\. Jobs live in PostgreSQL or SQLite"):
            enqueue(connection, Email())
    engine.dispose()


def test_states_start_as_pending(db: Database) -> None:
    """A new job waits for its first attempt, which is not charged yet (I6)."""
    put(db, Email())
    assert (db.row()["state"], db.row()["attempts"]) == (State.PENDING, 0)
