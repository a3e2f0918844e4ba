"""A worker looks at the tables before it works in them: it waits for an upgrade, rather than fail in some other way."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError

from .. import revision
from ..engines import Reserved


def fitted(reserved: Reserved, table: Table, turn: Callable[[], float]) -> Callable[[], float]:
    """The turn, before which it is asked whether this version works with the job table as it is.

    Asked before the first turn, and again after one that the database refused: it may have been upgraded meanwhile.

    Raises:
        SchemaError: in place of the turn; the text says which side to upgrade.
    """
    is_known = False

    def fitted_turn() -> float:
        nonlocal is_known
        if not is_known:
            with reserved.transaction() as connection:
                revision.demand(connection, table)
            is_known = True
        try:
            return turn()
        except DBAPIError:
            is_known = False
            raise

    return fitted_turn
