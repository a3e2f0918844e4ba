"""What an exception leaves in last_error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brooq_sa import failure
from brooq_sa.exc import CancelJob, PreserveAttempt, RetryAfter, Signal
from brooq_sa.failure import clean_text, describe, signal_in
from databases import Database


def raised(exception: BaseException) -> BaseException:
    """The exception with a traceback, as a worker catches it."""
    try:
        raise exception
    except BaseException as caught:
        return caught


def is_storable(text: str) -> bool:
    """Whether PostgreSQL and SQLite store it: UTF-8 without NUL."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


class UnprintableError(Exception):
    def __init__(self, what_str_does: Callable[[], object]) -> None:
        self.what_str_does = what_str_does

    def __str__(self) -> str:
        return self.what_str_does()  # type: ignore[return-value]


def exits() -> object:
    raise SystemExit(1)


def is_interrupted() -> object:
    raise KeyboardInterrupt


def test_type_message_and_frames_are_kept() -> None:
    """The first line is the type and the message, then come the frames down to the line that raised (R3)."""
    lines = describe(raised(ValueError("no such order"))).splitlines()
    assert lines[0] == "ValueError: no such order"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].endswith(", in raised")
    assert lines[3].strip() == "raise exception"


@pytest.mark.parametrize(
    "exception, expected",
    [
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (Exception(b"a\x00b", 1), r"Exception: (b'a\x00b', 1)"),
        (
            UnprintableError(lambda: 1 / 0),
            f"{__name__}.UnprintableError: <no message: its __str__ raised ZeroDivisionError>",
        ),
        (UnprintableError(lambda: None), f"{__name__}.UnprintableError: <no message: its __str__ raised TypeError>"),
        (UnprintableError(exits), f"{__name__}.UnprintableError: <no message: its __str__ raised SystemExit>"),
        (
            UnprintableError(is_interrupted),
            f"{__name__}.UnprintableError: <no message: its __str__ raised KeyboardInterrupt>",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_is_thrown_is_described(exception: BaseException, expected: str) -> None:
    """No exception is too odd to describe, not even one whose __str__ raises or exits (R4)."""
    assert describe(raised(exception)).splitlines()[0] == expected


@pytest.mark.parametrize(
    "message, expected",
    [
        ("a\x00b", "ValueError: a\\x00b"),
        ("a\ud800b", "ValueError: a\\ud800b"),
        ("naïve ✓ 😀", "ValueError: naïve ✓ 😀"),
    ],
)
def test_what_databases_refuse_is_escaped(message: str, expected: str) -> None:
    """NUL and lone surrogates are shown as escapes, everything else as it is (R3)."""
    text = describe(raised(ValueError(message)))
    assert text.splitlines()[0] == expected
    assert is_storable(text)


@given(st.text(st.characters(), max_size=50), st.integers(1, 60))
def test_cleaned_text_is_storable_and_short(text: str, limit: int) -> None:
    """Whatever the characters and the limit, the outcome can be stored and keeps to the limit (R3)."""
    cleaned = clean_text(text, limit)
    assert is_storable(cleaned)
    assert len(cleaned) <= limit
    if is_storable(text) and len(text) <= limit:
        assert cleaned == text


def test_databases_store_the_text_as_it_is(db: Database) -> None:
    """What comes out of the worst characters goes into last_error and comes back the same (R3)."""
    worst = "".join(map(chr, range(256))) + "\ud800\udfff\ud83d\ude00\uffff\U0010ffff\N{RIGHT-TO-LEFT OVERRIDE}"
    text = describe(raised(ValueError(worst)))
    db.execute("INSERT INTO job (topic, payload, last_error) VALUES ('a.topic', '{}', :text)", text=text)
    assert db.row()["last_error"] == text


@pytest.mark.parametrize("character", ["x", "\0", "\ud800", "\n"])
def test_huge_messages_are_cut(character: str) -> None:
    """Fifty million characters become a text within the limit that says so, and the traceback still fits (R3)."""
    text = describe(raised(ValueError(character * 50_000_000)))
    assert len(text) <= failure.LIMIT
    assert "... [cut from " in text
    assert "Traceback (most recent call last):" in text
    assert is_storable(text)


def test_huge_tracebacks_are_cut_at_the_start() -> None:
    """Of ten thousand frames the last ones are kept, where the failure is (R3)."""

    def deeper(left: int) -> None:
        if not left:
            raise ValueError("at the bottom")
        deeper(left - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(ValueError, match="at the bottom") as caught:
            deeper(10_000)
        text = describe(caught.value)
    finally:
        sys.setrecursionlimit(limit)
    assert text.startswith("ValueError: at the bottom\n")
    assert text.count("  File ") <= failure.LAST_FRAMES
    assert 'raise ValueError("at the bottom")' in text
    assert len(text) < failure.LIMIT


def test_causes_follow() -> None:
    """What caused the exception, by `from` or by being handled, follows with its own frames (R3)."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as caught:
        named = describe(caught)
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904 - without `from` is what is tested
    except ValueError as caught:
        implied = describe(caught)
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None
    except ValueError as caught:
        hidden = describe(caught)
    assert "\nCaused by KeyError: 'inner'\nTraceback" in named
    assert "\nCaused by KeyError: 'inner'\nTraceback" in implied
    assert "inner" not in hidden.replace('raise KeyError("inner")', "")


def chain(length: int) -> BaseException:
    first = link = raised(ValueError("link 0"))
    for number in range(1, length):
        link.__cause__ = ValueError(f"link {number}")
        link = link.__cause__
    return first


def test_long_chains_and_circles_end() -> None:
    """A chain of many causes is cut, and one that bites its tail is described once around (R4)."""
    long = describe(chain(100_000))
    assert long.count("Caused by ValueError") == failure.LINKS - 1
    assert long.endswith("Caused by more exceptions, left out here.")

    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert describe(one) == "ValueError: one\nCaused by ValueError: two"


def test_members_of_groups_are_named() -> None:
    """An exception group names its members, nested ones too, up to a bound (R4)."""
    group = BaseExceptionGroup("both", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")]), SystemExit(3)])
    assert describe(group).splitlines() == [
        "BaseExceptionGroup: both (3 sub-exceptions)",
        "  - ValueError: one",
        "  - ExceptionGroup: inner (1 sub-exception)",
        "    - KeyError: 'two'",
        "  - SystemExit: 3",
    ]
    many = describe(ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]))
    assert many.endswith(f"  - ValueError: {failure.MEMBERS - 1}\n  - and {1_000 - failure.MEMBERS} more")


def test_notes_follow_the_message() -> None:
    """What was added to the exception by add_note is kept, and whatever else stands in its place is not (R3)."""
    noted = ValueError("bad")
    noted.add_note("while reading order 5")
    assert describe(noted) == "ValueError: bad\nwhile reading order 5"
    noted.__notes__ = 5  # type: ignore[assignment]
    assert describe(noted) == "ValueError: bad"


class BrokenLoader:
    def get_source(self, name: str) -> str:
        raise RuntimeError("no source today")


def test_a_loader_that_fails_costs_the_frames_alone() -> None:
    """A module whose loader cannot show its source leaves a failure without frames, and no further one (R4)."""
    code = compile("raise ValueError('bad')", "/no/such/file.py", "exec")
    with pytest.raises(ValueError, match="bad") as caught:
        exec(code, {"__loader__": BrokenLoader(), "__name__": "broken"})
    text = describe(caught.value)
    assert text == "ValueError: bad\nNo traceback: its source could not be read, RuntimeError"


def test_a_hook_redacts_every_part() -> None:
    """The redacting hook sees message, frames and causes, and what it takes out is in none of them (R3)."""
    secret = "s3cr3t"  # the source line of this very frame holds it as well
    try:
        try:
            raise KeyError("password s3cr3t")
        except KeyError as inner:
            raise ValueError("x" * 5_000 + secret) from inner
    except ValueError as caught:
        text = describe(caught, redact=lambda part: part.replace("s3cr3t", "***"))
    assert secret not in text
    assert "Caused by KeyError: 'password ***'" in text


def test_a_hook_that_fails_hides_the_text() -> None:
    """If the redacting hook raises or returns no text, nothing of the text is shown, and the job still fails (R3)."""

    def failing(part: str) -> str:
        raise RuntimeError(part)

    text = describe(raised(ValueError("s3cr3t")), redact=failing)
    assert "s3cr3t" not in text
    assert "<withheld: the hook that redacts raised RuntimeError>" in text
    empty = describe(raised(ValueError("s3cr3t")), redact=lambda part: None)  # type: ignore[arg-type, return-value]
    assert "s3cr3t" not in empty


@pytest.mark.parametrize("signal", [RetryAfter("3s"), PreserveAttempt(), CancelJob("moot")], ids=repr)
def test_signals_are_found_behind_what_was_raised(signal: Signal) -> None:
    """A signal counts whether raised itself or standing anywhere in the __cause__ chain (R2)."""
    assert signal_in(signal) is signal
    outer = RuntimeError("outer")
    outer.__cause__ = RuntimeError("middle")
    outer.__cause__.__cause__ = signal
    assert signal_in(outer) is signal


def test_the_outermost_signal_counts() -> None:
    """Of two signals in one chain the one raised last decides (R2)."""
    outer = RetryAfter("3s")
    outer.__cause__ = CancelJob()
    assert signal_in(outer) is outer


def test_a_signal_that_was_only_being_handled_does_not_count() -> None:
    """The chain is that of __cause__: an error raised while a signal was handled is an error (R2)."""
    error = RuntimeError()
    error.__context__ = CancelJob()
    assert signal_in(error) is None


def test_the_search_for_signals_ends() -> None:
    """Circles and long chains without a signal have none, found at once (R4)."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    started = time.perf_counter()
    assert signal_in(one) is None
    assert signal_in(chain(10_000)) is None
    assert time.perf_counter() - started < 1
