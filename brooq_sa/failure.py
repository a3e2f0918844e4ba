"""What an exception leaves in ``last_error``: text that every database stores, that fits, and that keeps secrets.

Nothing that a handler throws may escape from here. A failure that cannot be described is still a failure, and one that
cannot be recorded would leave its job leased until the reaper comes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from .exc import Signal

LIMIT = 8_192
LAST_FRAMES = 12
"""How many frames of a traceback are kept. The failure is at its end."""
LINKS = 5
"""How many exceptions of a chain are described, the raised one first."""
NOTES = 5
"""How many notes of an exception are kept."""
MEMBERS = 10
"""How many exceptions of a group are named."""
NESTING = 3
"""How many groups deep they are named."""
MARGIN = 16
"""A hook that redacts sees this many times the limit, so that no secret is cut in half where it still shows."""

_OWN_FOLDER = str(Path(__file__).parent)


def describe(exception: BaseException, *, redact: Callable[[str], str] | None = None, limit: int = LIMIT) -> str:
    """The exception's type, message and last frames, then those of its causes, in at most `limit` characters.

    Args:
        redact: takes the secrets out of a piece of text: a message, or a traceback. If it fails, the text is withheld.
        limit: in characters; the first message gets at most half of them where a traceback follows.
    """

    def carried(text: str, share: int) -> str:
        return clean_text(_redacted(text[: limit * MARGIN], redact), share)

    head = carried(_headline(exception), limit // 2)
    parts = (carried(part, limit) for part in _details(exception))
    return clean_text("\n".join((head, *parts)), limit)


def clean_text(text: str, limit: int) -> str:
    """The text with NUL and lone surrogates escaped, which PostgreSQL refuses, cut to `limit` characters."""
    head = text[:limit].replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= limit and len(head) <= limit:
        return head
    note = f"... [cut from {len(text)} characters]"
    return head[: limit - len(note)] + note if len(note) < limit else head[:limit]


def signal_in(exception: BaseException) -> Signal | None:
    """The signal that the exception is, or that stands in its ``__cause__`` chain; the outermost one."""
    return next((link for link in causes(exception) if isinstance(link, Signal)), None)


def causes(exception: BaseException) -> Iterator[BaseException]:
    """The exception and its ``__cause__`` chain, each once."""
    return _links(exception, _cause)


def _headline(exception: BaseException) -> str:
    message = _message(exception)
    return f"{_type_name(exception)}: {message}" if message else _type_name(exception)


def _type_name(exception: BaseException) -> str:
    kind = type(exception)
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def _message(exception: BaseException) -> str:
    try:
        return str(exception)
    except BaseException as error:  # noqa: BLE001 - __str__ is the handler's code, and may even ask to exit
        return f"<no message: its __str__ raised {type(error).__name__}>"


def _details(exception: BaseException) -> Iterator[str]:
    """The exception's notes, the members of a group and the frames; then the same of each cause, after its headline."""
    for number, link in enumerate(_links(exception, _cause_or_context)):
        if number == LINKS:
            yield "Caused by more exceptions, left out here."
            return
        if number:
            yield f"Caused by {_headline(link)}"
        yield from _notes(link)
        yield from _members(link)
        yield from _frames(link.__traceback__)


def _notes(exception: BaseException) -> list[str]:
    """What `add_note` added, as long as nobody put anything else there."""
    notes = getattr(exception, "__notes__", None)
    return [note for note in notes[:NOTES] if isinstance(note, str)] if isinstance(notes, list) else []


def _members(exception: BaseException, depth: int = 1) -> Iterator[str]:
    if not isinstance(exception, BaseExceptionGroup) or depth > NESTING:
        return
    for member in exception.exceptions[:MEMBERS]:
        yield f"{'  ' * depth}- {_headline(member)}"
        yield from _members(member, depth + 1)
    if len(exception.exceptions) > MEMBERS:
        yield f"{'  ' * depth}- and {len(exception.exceptions) - MEMBERS} more"


def _frames(trace: TracebackType | None) -> Iterator[str]:
    """The last frames as one text, without the worker's own at their start."""
    while trace and trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        trace = trace.tb_next
    if trace is None:
        return
    try:
        frames = traceback.StackSummary.extract(traceback.walk_tb(trace), limit=-LAST_FRAMES)
        yield "Traceback (most recent call last):\n" + "".join(frames.format()).rstrip("\n")
    except Exception as error:  # noqa: BLE001 - source lines come from a module's own loader
        yield f"No traceback: its source could not be read, {type(error).__name__}"


def _links(
    exception: BaseException, following: Callable[[BaseException], BaseException | None]
) -> Iterator[BaseException]:
    """The exception and those behind it, each once: a chain that someone set by hand may be a circle."""
    seen: set[int] = set()
    link: BaseException | None = exception
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = following(link)


def _cause(exception: BaseException) -> BaseException | None:
    return exception.__cause__


def _cause_or_context(exception: BaseException) -> BaseException | None:
    if exception.__cause__ is not None or exception.__suppress_context__:
        return exception.__cause__
    return exception.__context__


def _redacted(text: str, redact: Callable[[str], str] | None) -> str:
    if redact is None:
        return text
    try:
        return "".join((redact(text),))  # anything but a string is a failure as well
    except Exception as error:  # noqa: BLE001 - the hook is the user's code
        return f"<withheld: the hook that redacts raised {type(error).__name__}>"
