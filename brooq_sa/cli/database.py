"""Database URLs as people write them."""

from __future__ import annotations

from sqlalchemy import URL, make_url

PLAIN = ("postgres", "postgresql")
BLOCKING = {"postgresql+asyncpg": "postgresql+psycopg", "sqlite+aiosqlite": "sqlite"}


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
