"""What goes wrong, as one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from .codes import REFUSED, USAGE
from .printing import clean

_secrets: set[str] = set()

SHORTEST_SECRET = 3
"""A shorter password than this would blot out half of every message."""


class Failure(click.ClickException):
    """An error of ours, of the database or of the user's modules, told in a line."""

    def __init__(self, message: str, *, exit_code: int = REFUSED) -> None:
        super().__init__(hide(clean(message, keep="\n")))
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance


def keep_secret(text: object) -> None:
    """Never print this text, whoever puts it into a message."""
    if isinstance(text, str) and len(text) >= SHORTEST_SECRET:
        _secrets.add(text)


def hide(text: str) -> str:
    for secret in _secrets:
        text = text.replace(secret, "***")
    return text


@contextmanager
def reported(*, show_traceback: bool) -> Iterator[None]:
    """Turn what the block raises into what click prints; a reader of our output that has gone away is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more(sys.stdout)
    except click.ClickException as failure:
        _show_cause(failure.__cause__, show_traceback)
        raise
    except _ours() as error:
        _show_cause(error, show_traceback)
        raise _failure(error) from error


def _show_cause(cause: BaseException | None, show_traceback: bool) -> None:
    if show_traceback and cause is not None:
        click.echo(hide("".join(traceback.format_exception(cause))), err=True, nl=False)


def _ours() -> tuple[type[Exception], ...]:
    from brooq_sa.exc import BrooqError

    database = getattr(sys.modules.get("sqlalchemy.exc"), "SQLAlchemyError", None)
    return (BrooqError,) if database is None else (BrooqError, database)


def _failure(error: Exception) -> Failure:
    from brooq_sa.exc import BrooqError, OptionError, PayloadError, SettingsError

    if not isinstance(error, BrooqError):
        return Failure(database_said(error))
    is_usage = isinstance(error, OptionError | PayloadError | SettingsError)
    return Failure(str(error), exit_code=USAGE if is_usage else REFUSED)


def database_said(error: Exception) -> str:
    """The database's own words in one line, without the statement and the link that SQLAlchemy adds."""
    text = str(getattr(error, "orig", None) or error)
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()) or type(error).__name__


def _write_no_more(stream: TextIO) -> None:
    # What is still buffered would fail again when Python flushes it at exit.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
