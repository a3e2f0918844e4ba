"""Databases as people name them: by URL, written in more ways than SQLAlchemy takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import click
from sqlalchemy import URL, Connection, Engine, Table, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from brooq_sa import access

from .failing import Failure, database_said, keep_secret

PLAIN = ("postgres", "postgresql")
BLOCKING = {"postgresql+asyncpg": "postgresql+psycopg", "sqlite+aiosqlite": "sqlite"}
EXAMPLES = "Give one such as postgresql://user@host/name or sqlite:///jobs.db."


def normalized_url(text: str) -> URL:
    """The URL with psycopg as its driver, where it names PostgreSQL and no driver.

    SQLAlchemy itself does not know ``postgres://``, which many hosts hand out.

    Raises:
        sqlalchemy.exc.ArgumentError: it is no URL.
    """
    url = make_url(text)
    return url.set(drivername="postgresql+psycopg") if url.drivername in PLAIN else url


def blocking_url(text: str) -> URL:
    """`normalized_url`, with a driver that needs no event loop in place of one that does."""
    url = normalized_url(text)
    return url.set(drivername=BLOCKING.get(url.drivername, url.drivername))


@contextmanager
def opened(text: str, *, wal: bool = True) -> Iterator[Engine]:
    """An engine, set up for jobs if it is on SQLite; what the database refuses inside becomes the command's error.

    Args:
        wal: whether to put a SQLite file into WAL mode.

    Raises:
        click.BadParameter: it is no URL of a database that jobs live in.
        Failure: the database refused, or its SQLite file is not there.
    """
    engine = _engine(readable_url(text), wal)
    try:
        yield engine
    except SQLAlchemyError as error:
        raise Failure(f"{engine.url.render_as_string(hide_password=True)}: {database_said(error)}") from error
    finally:
        engine.dispose()


@contextmanager
def reading(engine: Engine, table: Table, privileges: access.Privileges = access.LOOK) -> Iterator[Connection]:
    """A connection for SELECTs, which on SQLite waits for nobody; what is missing there is explained."""
    from brooq_sa.session import explained

    with (
        engine.connect().execution_options(brooq_begin="DEFERRED") as connection,
        explained(connection, table, privileges),
    ):
        yield connection


@contextmanager
def writing(engine: Engine, table: Table, privileges: access.Privileges) -> Iterator[Connection]:
    """A connection in a transaction, which is committed at the end; what is missing there is explained."""
    from brooq_sa.session import explained

    with engine.begin() as connection, explained(connection, table, privileges):
        yield connection


def readable_url(text: str, hint: str = "--url") -> URL:
    """`blocking_url` of what the user gave, whose password is from then on hidden in every message.

    Raises:
        click.BadParameter: it is no URL, or not that of a database that jobs live in.
    """
    try:
        url = blocking_url(text)
    except (ArgumentError, ValueError) as error:
        # The text itself is not repeated: it may hold a password.
        raise click.BadParameter(f"It is not a URL that can be read. {EXAMPLES}", param_hint=hint) from error
    for secret in _secrets_of(url):
        keep_secret(secret)
    if url.get_backend_name() not in ("postgresql", "sqlite"):
        raise click.BadParameter(
            f"Jobs live in PostgreSQL or SQLite, not in {url.get_backend_name()}. {EXAMPLES}", param_hint=hint
        )
    return url


SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
"""Arguments of libpq that nobody is to see (manual, section 34.1.2)."""


def _secrets_of(url: URL) -> Iterator[str]:
    """Its secrets as they are, and as they stand in a URL."""
    given = [url.password or "", *(value for name in SECRETS for value in url.normalized_query.get(name, ()))]
    for secret in given:
        yield secret
        yield quote(secret, safe="")
        yield quote(secret)
        yield quote_plus(secret)


def _engine(url: URL, wal: bool) -> Engine:
    from brooq_sa import sqlite

    if url.get_backend_name() == "sqlite":
        _demand_file(url)
    try:
        engine = _created(url)
    except (ArgumentError, NoSuchModuleError, ImportError, TypeError, ValueError) as error:
        raise click.BadParameter(f"{error}. {EXAMPLES}", param_hint="--url") from error
    configured: Any = sqlite.configure(engine, wal=wal) if engine.dialect.name == "sqlite" else engine
    return configured  # type: ignore[no-any-return]


def _created(url: URL) -> Engine:
    """An engine, with psycopg's `prepare_threshold` as a number or None: from a URL it would come as text."""
    threshold = url.query.get("prepare_threshold")
    if not isinstance(threshold, str):
        return create_engine(url)
    number = None if threshold.lower() == "none" else int(threshold)
    return create_engine(url.difference_update_query(["prepare_threshold"]), connect_args={"prepare_threshold": number})


def _demand_file(url: URL) -> None:
    """Refuse a file that is not there: SQLite would make an empty one of any name that is misspelt."""
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise click.BadParameter(f"It names no file, and others could not see the jobs. {EXAMPLES}", param_hint="--url")
    if not Path(name).exists():
        raise Failure(f"There is no file {name}. Make it and its job table: brooq-sa migrate upgrade --url {url}")
