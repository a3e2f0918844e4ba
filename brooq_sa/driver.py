"""Errors of statements that go past SQLAlchemy to the driver.

Where a statement's way through SQLAlchemy would cost more than the statement, it goes to the driver's own connection.
Its errors are those that SQLAlchemy would raise all the same, but no ``handle_error`` listener is asked, no cursor
event is told of the statement, and ``echo`` does not show it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


def as_sqlalchemy_tells(error: Any, statement: str, connection: Connection) -> DBAPIError:
    """The error that SQLAlchemy makes of the driver's; the connection is invalidated if it is lost."""
    dbapi_connection: Any = connection.connection.dbapi_connection
    is_disconnect = connection.dialect.is_disconnect(error, dbapi_connection, None)
    if is_disconnect:
        connection.invalidate(error)
    told: Any = DBAPIError.instance(
        statement,
        (),
        error,
        connection.dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=is_disconnect,
        dialect=connection.dialect,
    )
    return told  # type: ignore[no-any-return]
