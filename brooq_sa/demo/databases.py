"""Where the demonstration takes place: a SQLite file, a server of its own, or a database of the user's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, inspect, make_url

from brooq_sa import migrations, sqlite

from .jobs import DemoJob
from .models import Base
from .server import server

JOB = DemoJob.__table__
OWN_TABLES = [table for table in Base.metadata.sorted_tables if not {"brooq", "brooq_beside"} & table.info.keys()]
ALL_NAMES = [*(table.name for table in Base.metadata.sorted_tables), migrations.version_table(JOB.name)]


class Occupied(Exception):
    """What the demonstration would make is there already."""


@dataclass(frozen=True)
class Place:
    """A database to work in.

    Attributes:
        described: in a few words.
        is_kept: whether it is there after the demonstration.
    """

    url: URL
    described: str
    is_kept: bool


@contextmanager
def sqlite_file(kept: Path | None) -> Iterator[Place]:
    """A new SQLite file; a temporary one if `kept` is None.

    Raises:
        Occupied: the file is there already.
    """
    if kept is not None:
        if kept.exists():
            raise Occupied(f"{kept} is there already. Remove it, or name another file.")
        yield Place(_sqlite_url(kept), f"the SQLite file {kept}", is_kept=True)
        return
    with temporary_folder() as folder:
        path = folder / "demo.db"
        yield Place(_sqlite_url(path), f"a SQLite file, {path}", is_kept=False)


@contextmanager
def own_server() -> Iterator[Place]:
    """A PostgreSQL server of our own."""
    with server() as url:
        yield Place(make_url(url), "a PostgreSQL server of its own", is_kept=False)


@contextmanager
def users_database(url: URL, *, keep_tables: bool) -> Iterator[Place]:
    """A database that is there anyway."""
    yield Place(url, url.render_as_string(hide_password=True), is_kept=keep_tables)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="brooq-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def tables(place: Place) -> Iterator[Engine]:
    """An engine on the place, with the demonstration's tables made; they are dropped after the block unless kept.

    Raises:
        Occupied: one of them is there already.
    """
    engine: Any = create_engine(place.url)
    if engine.dialect.name == "sqlite":
        sqlite.configure(engine)
    try:
        _refuse_existing(engine)
        try:
            migrations.upgrade(engine, table=JOB.name)
            Base.metadata.create_all(engine, OWN_TABLES)
            yield engine
        finally:
            if not place.is_kept:
                Base.metadata.drop_all(engine, OWN_TABLES)
                migrations.downgrade(engine, table=JOB.name)
    finally:
        engine.dispose()


def _refuse_existing(engine: Engine) -> None:
    there = sorted(set(inspect(engine).get_table_names()).intersection(ALL_NAMES))
    if there:
        raise Occupied(
            f"{', '.join(there)}: there already, perhaps from a demonstration before. If nobody needs them:"
            f" DROP TABLE {', '.join(name for name in reversed(ALL_NAMES) if name in there)};"
        )


def _sqlite_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path.absolute()))
