"""Many jobs go in by COPY on psycopg, and nobody can tell by the rows or the errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from brooq_sa import JobBase, NewJob, PayloadError, RawJob, SchemaError, copying, enqueue_many
from databases import Database


class Base(JobBase):
    pass


class Word(Base, topic="word", priority=3):
    text: str


class Tenants(JobBase, schema="tenant", table_name="odd name"):
    pass


class Tenant(Tenants, topic="tenant"):
    number: int


AWKWARD = [
    "",
    "\\",
    "\\n",
    "a\tb",
    "two\nlines\r",
    "\\.",
    "\\N",
    '"quoted"',
    "é\u2028☃",
    "{}",
    "\x7f",
    "C:\\new\\u0041",
]
MANY = copying.FEWEST + 50


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each COPY took."""
    counts: list[int] = []
    copy_lines = copying.copy_lines

    def counting(connection: Any, table: Any, lines: Any) -> None:
        drawn = 0

        def counted() -> Iterator[Any]:
            nonlocal drawn
            for line in lines:
                drawn += 1
                yield line

        copy_lines(connection, table, counted())
        counts.append(drawn)

    monkeypatch.setattr(copying, "copy_lines", counting)
    return counts


def test_rows_are_those_of_an_insert(db: Database, copied: list[int]) -> None:
    """Copied jobs have the columns that inserted ones have, whatever text is in them (I5)."""
    words = [AWKWARD[number % len(AWKWARD)] + str(number) for number in range(MANY)]
    with Session(db.engine) as session, session.begin():
        answers = enqueue_many(session, [Word(text=word) for word in words])
        [single] = enqueue_many(session, [Word(text="single")])
    assert copied == ([MANY] if db.name == "postgresql" else [])
    rows = {row["id"]: row for row in db.rows()}
    assert [rows[answer.id]["payload"] for answer in answers] == [{"text": word} for word in words]
    assert all(answer.created for answer in answers)
    like = {name: value for name, value in rows[single.id].items() if name not in ("id", "payload", *DATES)}
    for answer in answers:
        row = rows[answer.id]
        assert {name: row[name] for name in like} == like
        assert row["available_at"] == row["created_at"] == row["updated_at"]


DATES = ("available_at", "created_at", "updated_at")


def test_those_with_a_key_or_a_time_go_another_way(db: Database, copied: list[int]) -> None:
    """In one call, jobs with a key, a delay or raw bytes are put beside those that are copied (I8)."""
    jobs: list[Any] = [Word(text=str(number)) for number in range(MANY)]
    jobs[7:7] = [
        NewJob(Word(text="keyed"), key="k"),
        NewJob(Word(text="late"), delay="1h"),
        RawJob("raw", b"\0\t\\", Base),
    ]
    jobs += [NewJob(Word(text="again"), key="k")]
    with Session(db.engine) as session, session.begin():
        answers = enqueue_many(session, jobs)
    assert copied == ([MANY + 1] if db.name == "postgresql" else [])
    assert [answer.created for answer in answers] == [True] * (MANY + 3) + [False]
    assert answers[7].id == answers[-1].id
    assert len(db.rows()) == MANY + 3
    late = db.row(answers[8].id)
    assert late["available_at"] - late["created_at"] == timedelta(hours=1)


def test_a_savepoint_takes_them_with_it(db: Database) -> None:
    """What was copied within a savepoint that is rolled back is gone, and the rest is there (I9)."""
    jobs = [Word(text=str(number)) for number in range(MANY)]
    with Session(db.engine) as session, session.begin():
        enqueue_many(session, jobs)
        with session.begin_nested() as savepoint:
            enqueue_many(session, jobs)
            savepoint.rollback()
    assert len(db.rows()) == MANY


def test_a_connection_that_has_not_begun(db: Database) -> None:
    """On a connection the transaction begins with the COPY, and ends with the caller's commit (I9)."""
    with db.engine.connect() as connection:
        enqueue_many(connection, [Word(text="x")] * MANY)
        assert connection.in_transaction()
        connection.commit()
        enqueue_many(connection, [Word(text="x")] * MANY)
        connection.rollback()
    assert len(db.rows()) == MANY


def test_another_schema(pg: Database, copied: list[int]) -> None:
    """The table's own schema, a mapped one, and names that need quotes are all written as SQLAlchemy writes them."""
    pg.execute('CREATE SCHEMA "ten ant"')
    pg.execute('CREATE TABLE "ten ant"."odd name" (LIKE job INCLUDING ALL)')
    engine = pg.engine.execution_options(schema_translate_map={"tenant": "ten ant"})
    with Session(engine) as session, session.begin():
        enqueue_many(session, [Tenant(number=number) for number in range(MANY)])
    assert copied == [MANY]
    counted = pg.execute('SELECT count(*) AS count FROM "ten ant"."odd name"')
    pg.execute('DROP SCHEMA "ten ant" CASCADE')
    assert counted == [{"count": MANY}]


def test_row_security(pg: Database, copied: list[int]) -> None:
    """Where row security applies, which COPY is refused on, jobs are inserted."""
    pg.execute("DROP ROLE IF EXISTS brooq_limited")
    pg.execute("CREATE ROLE brooq_limited LOGIN")
    try:
        pg.execute("GRANT SELECT, INSERT ON job TO brooq_limited")
        pg.execute("ALTER TABLE job ENABLE ROW LEVEL SECURITY")
        pg.execute("CREATE POLICY mine ON job TO brooq_limited USING (topic = 'word') WITH CHECK (topic = 'word')")
        engine = create_engine(pg.engine.url.set(username="brooq_limited"))
        with Session(engine) as session, session.begin():
            enqueue_many(session, [Word(text=str(number)) for number in range(MANY)])
        engine.dispose()
    finally:
        pg.execute("DROP OWNED BY brooq_limited")
        pg.execute("DROP ROLE brooq_limited")
    assert (copied, len(pg.rows())) == ([], MANY)


def test_a_refused_row_is_told_as_sqlalchemy_tells_it(pg: Database) -> None:
    """A trigger's refusal is an error of SQLAlchemy's with the driver's inside, and nothing is written."""
    pg.execute(
        "CREATE FUNCTION refuse_copied() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
    )
    pg.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON job FOR EACH ROW WHEN (NEW.payload ->> 'text' = '77')"
        " EXECUTE FUNCTION refuse_copied()"
    )
    try:
        with Session(pg.engine) as session:
            with pytest.raises(DBAPIError, match="not this one") as caught:
                enqueue_many(session, [Word(text=str(number)) for number in range(MANY)])
            assert not caught.value.connection_invalidated
            enqueue_many(session, [Word(text="fine")])
            session.commit()
    finally:
        pg.execute("DROP FUNCTION refuse_copied CASCADE")
    assert [row["payload"] for row in pg.rows()] == [{"text": "fine"}]


def test_a_connection_that_breaks(pg: Database) -> None:
    """A connection that is lost in the COPY is invalidated, as one lost in a statement is."""
    with pg.engine.connect() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        pg.execute(f"""CREATE FUNCTION leave_copied() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_terminate_backend({backend}); RETURN NEW; END $$""")
        pg.execute("CREATE TRIGGER leave BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION leave_copied()")
        try:
            with pytest.raises(DBAPIError) as caught:
                enqueue_many(connection, [Word(text="x")] * MANY)
            assert caught.value.connection_invalidated
            assert connection.invalidated
        finally:
            pg.execute("DROP FUNCTION leave_copied CASCADE")
    assert pg.rows() == []


@pytest.mark.parametrize("place", [0, 77, MANY - 1])
def test_a_job_that_is_refused_takes_the_others_with_it(db: Database, place: int) -> None:
    """Wherever the bad one is, none is put, and the caller's transaction goes on (I9)."""
    jobs = [Word(text="x") for _ in range(MANY)]
    jobs[place] = Word(text="\0")
    with Session(db.engine) as session:
        enqueue_many(session, [Word(text="before")])
        with pytest.raises(PayloadError, match="NUL"):
            enqueue_many(session, jobs)
        enqueue_many(session, [Word(text="after")])
        session.commit()
    assert [row["payload"]["text"] for row in db.rows()] == ["before", "after"]


def test_a_connection_that_commits_each_statement(db: Database, copied: list[int]) -> None:
    """Where there is no transaction there is no savepoint either; a refused job still takes the others with it."""
    jobs = [Word(text="x") for _ in range(MANY)]
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(PayloadError):
            enqueue_many(connection, [*jobs, Word(text="\0")])
        enqueue_many(connection, jobs)
    assert len(db.rows()) == MANY


def test_a_missing_table(pg: Database) -> None:
    """A missing table says how to make it, as for one job."""
    with Session(pg.engine) as session, pytest.raises(SchemaError, match="brooq-sa migrate"):
        enqueue_many(session, [Tenant(number=number) for number in range(MANY)])
