"""A kind's options are read strictly, and fit together with the worker's settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest

from brooq_sa.exc import DeclarationError, OptionError
from brooq_sa.kinds import (
    MAX_TOPIC,
    OPTION_NAMES,
    Kind,
    KindOptions,
    Registry,
    check_integer,
    check_topic,
    described,
    read_options,
)
from brooq_sa.settings import WorkerSettings

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("topic", ["a", "email", "email.send", "email-send", "a.b-c.d", "v2.x1", "0", "a" * MAX_TOPIC])
def test_topics_are_lowercase_words_with_dots_and_dashes(topic: str) -> None:
    """A well-formed topic is given back."""
    assert check_topic(topic) == topic


@pytest.mark.parametrize(
    "topic", ["", "A", "a b", "a_b", ".a", "a.", "a..b", "a.-b", "é", "a\n", "a" * (MAX_TOPIC + 1), None, 1]
)
def test_other_topics_are_refused(topic: Any) -> None:
    """The message gives the value, the rule and an example."""
    with pytest.raises(OptionError, match=r"Name it like 'email\.send'"):
        check_topic(topic)


def test_options_add_to_those_of_the_parent() -> None:
    """What a class gives is on top of what it inherits."""
    parent = read_options({"max_attempts": 3, "priority": 5, "backoff_base": "2s"}, KindOptions())
    child = read_options({"max_attempts": 9, "attempt_timeout": timedelta(minutes=1)}, parent)
    assert child == KindOptions(
        max_attempts=9, priority=5, backoff_base=2 * SECOND, attempt_timeout=timedelta(minutes=1)
    )


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_none_takes_back_what_is_inherited(name: str) -> None:
    """A class that says None has no limit of its parent's: it is as if no class had set the option."""
    given: dict[str, Any] = dict.fromkeys(("max_attempts", "max_crashes", "priority", "conflict_reruns"), 7)
    given |= dict.fromkeys(("attempt_timeout", "max_execution_timeout", "backoff_base", "backoff_max"), "7s")
    parent = read_options({**given, "isolation": "process", "memory_limit": "1GB"}, KindOptions())
    # There is no limit of a process's memory without a process.
    both = {"isolation": None, "memory_limit": None} if name == "isolation" else {name: None}
    child = read_options(both, parent)
    assert getattr(parent, name) != getattr(KindOptions(), name) == getattr(child, name)
    changed = {each for each in OPTION_NAMES if getattr(child, each) != getattr(parent, each)}
    assert changed == set(both)


def test_options_are_checked_against_the_parents() -> None:
    """A timeout that is above the parent's longest execution is refused."""
    parent = read_options({"max_execution_timeout": "1m", "backoff_max": "5s"}, KindOptions())
    with pytest.raises(OptionError, match="is above max_execution_timeout"):
        read_options({"attempt_timeout": "2m"}, parent)
    with pytest.raises(OptionError, match="is above backoff_max"):
        read_options({"backoff_base": "6s"}, parent)


def test_zero_is_a_backoff_and_no_timeout() -> None:
    """Retrying at once can be wished for, ending at once cannot."""
    assert read_options({"backoff_base": "0s", "backoff_max": "0s"}, KindOptions()).backoff_max == timedelta(0)
    for name in ("attempt_timeout", "max_execution_timeout"):
        with pytest.raises(OptionError, match=f"{name} is '0s'"):
            read_options({name: "0s"}, KindOptions())


@pytest.mark.parametrize("value", [5, None])
def test_an_unknown_option_is_told_the_known_ones(value: Any) -> None:
    """The message lists every option there is."""
    with pytest.raises(OptionError) as caught:
        read_options({"retries": value}, KindOptions())
    assert all(name in str(caught.value) for name in (*OPTION_NAMES, "topic", "abstract"))


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 11])
def test_integers_are_integers_within_their_range(value: Any) -> None:
    """Neither booleans nor numbers in other forms pass for integers."""
    with pytest.raises(OptionError, match="Give an integer from 1 to 10"):
        check_integer("number", value, range(1, 11))
    assert check_integer("number", 10, range(1, 11)) == 10


def test_a_member_of_an_enumeration_is_its_number() -> None:
    """Wherever it is written, as in COPY, it is written as a number."""

    class Urgency(int, Enum):
        HIGH = 3

    assert f"{check_integer('number', Urgency.HIGH, range(1, 11))}" == "3"


def kind(**options: Any) -> Kind:
    """A kind with these options."""
    return Kind("topic", dict, read_options(options, KindOptions()))


def test_a_kind_without_options_takes_the_workers_settings() -> None:
    """What the class leaves out is the worker's to say."""
    settings = WorkerSettings.create(
        max_attempts=7, attempt_timeout="10s", max_execution_timeout="20s", backoff_base="3s", backoff_max="30s"
    )
    policy = kind().policy(settings)
    assert policy.max_attempts == 7
    assert (policy.attempt_timeout, policy.max_execution_timeout) == (10 * SECOND, 20 * SECOND)
    assert (policy.backoff_base, policy.backoff_max) == (3 * SECOND, 30 * SECOND)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"attempt_timeout": "1h"}, {"attempt_timeout": 3600, "max_execution_timeout": 3600}),
        ({"max_execution_timeout": "5s"}, {"attempt_timeout": 5, "max_execution_timeout": 5}),
        ({"attempt_timeout": "1s", "max_execution_timeout": "2s"}, {"attempt_timeout": 1, "max_execution_timeout": 2}),
        ({"backoff_max": "1s"}, {"backoff_base": 1, "backoff_max": 1}),
        ({"backoff_max": "0s"}, {"backoff_base": 0, "backoff_max": 0}),
        ({"backoff_base": "1h"}, {"backoff_base": 3600, "backoff_max": 3600}),
        ({"backoff_base": "0s"}, {"backoff_base": 0, "backoff_max": 30}),
        ({"max_attempts": 1}, {"max_attempts": 1}),
    ],
)
def test_an_option_wins_and_the_setting_gives_way(options: dict[str, Any], expected: dict[str, int]) -> None:
    """Where a worker's setting would break a rule against a class's option, the option stands (T1, R1)."""
    settings = WorkerSettings.create(
        max_attempts=7, attempt_timeout="10s", max_execution_timeout="20s", backoff_base="3s", backoff_max="30s"
    )
    policy = kind(**options).policy(settings)
    got = {name: getattr(policy, name) for name in expected}
    assert got == {
        name: value if name == "max_attempts" else timedelta(seconds=value) for name, value in expected.items()
    }
    assert policy.attempt_timeout <= policy.max_execution_timeout
    assert policy.backoff_base <= policy.backoff_max


def plain(job: Any, claim: Any) -> None:
    """A handler."""


async def coroutine(job: Any, claim: Any) -> None:
    """An async handler."""


class Callables:
    """Handlers that are methods of objects."""

    def __call__(self, job: Any, claim: Any) -> None:
        pass

    async def method(self, job: Any, claim: Any) -> None:
        pass


class AsyncCallable:
    """An object that is an async handler."""

    async def __call__(self, job: Any, claim: Any) -> None:
        pass


@functools.wraps(coroutine)
async def wrapped(job: Any, claim: Any) -> None:
    """A decorated async handler."""
    await coroutine(job, claim)


@pytest.mark.parametrize(
    "handler, expected",
    [
        (None, False),
        (plain, False),
        (coroutine, True),
        (wrapped, True),
        (functools.partial(plain), False),
        (functools.partial(coroutine), True),
        (Callables(), False),
        (Callables().method, True),
        (AsyncCallable(), True),
    ],
    ids=["none", "def", "async def", "wrapped", "partial", "async partial", "object", "async method", "async object"],
)
def test_a_kind_knows_async_handlers(handler: Callable[..., Any] | None, expected: bool) -> None:
    """Whether a handler is async is told from functions, methods, partials, decorated ones and callable objects."""
    one = kind()
    one.handler = handler
    assert one.is_async is expected


def test_a_registry_is_a_mapping_of_topics() -> None:
    """Kinds are found by topic; one topic has one kind."""
    registry = Registry()
    one = kind()
    registry.add(one)
    assert (registry["topic"], list(registry), len(registry), "other" in registry) == (one, ["topic"], 1, False)
    assert repr(registry) == "Registry(topic)"
    assert repr(one) == "Kind('topic', dict)"
    with pytest.raises(DeclarationError, match=r"takes topic 'topic', which 'builtins\.dict' already has"):
        registry.add(kind())


def test_a_class_is_described_by_name_and_place() -> None:
    """Dotted name, file and line if there are any."""
    assert described(dict) == "'builtins.dict'"
    text = described(Callables)
    assert "test_kinds.Callables' (" in text
    assert "test_kinds.py:" in text
