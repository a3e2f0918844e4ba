"""What a topic's jobs are and how they are run: a kind. The kinds of one base make its registry."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from .durations import parse_duration
from .exc import DeclarationError, OptionError
from .payload import Codec
from .schema import PRIORITIES
from .settings import WorkerSettings

TOPIC = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
MAX_TOPIC = 200
MAX_ATTEMPTS = 1_000_000
MAX_DURATION = timedelta(days=3650)


def check_topic(topic: object) -> str:
    """The topic, if it is one.

    Raises:
        OptionError: it is not lowercase words joined by dots or dashes.
    """
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic) or len(topic) > MAX_TOPIC:
        raise OptionError(
            f"Topic {topic!r} is not lowercase letters and digits joined by dots or dashes, {MAX_TOPIC} characters at"
            " the most. Name it like 'email.send'."
        )
    return topic


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A kind's options with the worker's settings filled in."""

    max_attempts: int
    attempt_timeout: timedelta
    max_execution_timeout: timedelta
    backoff_base: timedelta
    backoff_max: timedelta
    conflict_reruns: int = 0

    @cached_property
    def attempt_seconds(self) -> float:
        return self.attempt_timeout.total_seconds()

    @cached_property
    def max_execution_seconds(self) -> float:
        return self.max_execution_timeout.total_seconds()


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """What a job class may set for its topic, and those that derive from it inherit; None takes the worker's setting.

    Attributes:
        max_attempts: the attempt whose failure makes the job dead, from 1.
        attempt_timeout: how long an attempt may run before it is told to stop.
        max_execution_timeout: after how long its lease is no longer renewed; not below `attempt_timeout`.
        backoff_base: the delay after the first failure; it doubles with each further one.
        backoff_max: the longest delay.
        priority: of jobs that are enqueued without one; the smaller goes first. Default 0.
        max_crashes: the crash of its worker that leaves a job dead; None, the default, never does.
        conflict_reruns: how often a handler whose ``claim.session`` lost out to another transaction (a deadlock, a
            serialization failure, a locked SQLite database) is run again within the attempt. 0 is never. Default 3.
        isolation: "thread", the default, or "process": the handler is run in a child process, which is killed when it
            does not stop.
        memory_limit: how many bytes that process may hold, or "512MB", "1GiB"; more, and it is killed. None, the
            default, is no limit.
    """

    max_attempts: int | None = None
    attempt_timeout: timedelta | None = None
    max_execution_timeout: timedelta | None = None
    backoff_base: timedelta | None = None
    backoff_max: timedelta | None = None
    priority: int = 0
    max_crashes: int | None = None
    conflict_reruns: int = 3
    isolation: str = "thread"
    memory_limit: int | None = None

    def policy(self, settings: WorkerSettings) -> Policy:
        """The options, with the worker's settings for those that are None.

        Where a setting then breaks a rule against an option (a timeout above the longest execution, say), the option
        stands and the setting gives way.
        """
        attempt_timeout = self.attempt_timeout or timedelta(0)
        longest_run = self.max_execution_timeout or max(settings.max_execution_timeout, attempt_timeout)
        longest_wait = settings.backoff_max if self.backoff_max is None else self.backoff_max
        if self.backoff_max is None and self.backoff_base is not None:
            longest_wait = max(longest_wait, self.backoff_base)
        return Policy(
            max_attempts=self.max_attempts or settings.max_attempts,
            attempt_timeout=self.attempt_timeout or min(settings.attempt_timeout, longest_run),
            max_execution_timeout=longest_run,
            backoff_base=min(settings.backoff_base, longest_wait) if self.backoff_base is None else self.backoff_base,
            backoff_max=longest_wait,
            conflict_reruns=self.conflict_reruns,
        )


_DEFAULTS = KindOptions()
OPTION_NAMES = tuple(field.name for field in dataclasses.fields(KindOptions))
_ALLOWED = {"priority": PRIORITIES, "conflict_reruns": range(101)}
_DURATIONS = ("attempt_timeout", "max_execution_timeout", "backoff_base", "backoff_max")
ISOLATIONS = ("thread", "process")
MEMORY_LIMITS = range(16 * 2**20, 2**60)
_MEMORY = re.compile(r"([0-9]{1,20})([KMGT]i?)B")
_MEMORY_UNITS = {
    f"{letter}{binary}": base**power
    for power, letter in enumerate("KMGT", 1)
    for binary, base in (("", 1000), ("i", 1024))
}


def read_options(given: Mapping[str, Any], inherited: KindOptions) -> KindOptions:
    """The options of a class statement, on top of those of its parent.

    None is a value too: it takes back what the parent says, to the default of `KindOptions`.

    Raises:
        OptionError: an option is unknown, or its value out of range.
    """
    values = {name: _read_option(name, value) for name, value in given.items()}
    options = dataclasses.replace(inherited, **values)
    timeout, ceiling = options.attempt_timeout, options.max_execution_timeout
    if timeout and ceiling and timeout > ceiling:
        raise OptionError(
            f"attempt_timeout {timeout} is above max_execution_timeout {ceiling}. Lower the one or raise the other."
        )
    base, longest = options.backoff_base, options.backoff_max
    if base and longest is not None and base > longest:
        raise OptionError(f"backoff_base {base} is above backoff_max {longest}. Lower the one or raise the other.")
    if options.memory_limit is not None and options.isolation != "process":
        raise OptionError("memory_limit is a limit of a process of the handler's own. Add isolation='process'.")
    return options


def _read_option(name: str, value: Any) -> Any:
    if name not in OPTION_NAMES:
        raise OptionError(f"There is no option {name!r}. Options are topic, {', '.join(OPTION_NAMES)} and abstract.")
    if value is None:
        return getattr(_DEFAULTS, name)
    if name in _DURATIONS:
        return _read_duration(name, value)
    if name == "isolation":
        return _read_isolation(value)
    if name == "memory_limit":
        return _read_memory(value)
    return check_integer(name, value, _ALLOWED.get(name, range(1, MAX_ATTEMPTS + 1)))


def _read_duration(name: str, value: Any) -> timedelta:
    try:
        duration = parse_duration(value)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
    may_be_zero = name.startswith("backoff")
    if duration > MAX_DURATION or (not duration and not may_be_zero):
        least = "0s" if may_be_zero else "above 0s"
        raise OptionError(f"{name} is {value!r}. Give a duration of {least}, {MAX_DURATION.days} days at the most.")
    return duration


def _read_isolation(value: Any) -> str:
    if not isinstance(value, str) or value not in ISOLATIONS:
        raise OptionError(f"isolation is {value!r}. Give 'thread' or 'process'.")
    return value


def _read_memory(value: Any) -> int:
    match = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    size = int(match[1]) * _MEMORY_UNITS[match[2]] if match else value
    if not isinstance(size, int) or isinstance(size, bool) or size not in MEMORY_LIMITS:
        raise OptionError(
            f"memory_limit is {value!r}. Give bytes, or a string such as '512MB' or '1GiB'; 16MiB at least."
        )
    return size


def check_integer(name: str, value: Any, allowed: range) -> int:
    """The integer, if it is one of those allowed; OptionError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise OptionError(f"{name} is {value!r}. Give an integer from {allowed.start} to {allowed.stop - 1}.")
    return int(value)  # a member of an enumeration is written by its name


class Kind:
    """A topic's settings, given in code with its job class.

    Attributes:
        topic: what kind of work it is.
        job_class: what payloads decode to.
        options: as declared.
        handler: the function that runs a job, or None while there is none.
    """

    def __init__(self, topic: str, job_class: type[Any], options: KindOptions) -> None:
        self.topic = topic
        self.job_class = job_class
        self.options = options
        self.handler: Callable[[Any, Any], Any] | None = None
        self._looked_at: tuple[Any, bool] = (None, False)
        self._codec: Codec | None = None

    @property
    def codec(self) -> Codec:
        """Made at first use, so that a field's type may be defined after the class that names it.

        Raises:
            DeclarationError: a type is not defined even then.
        """
        if self._codec is None:
            try:
                self._codec = Codec(self.topic, self.job_class)
            except NameError as error:
                raise DeclarationError(
                    f"Job class {described(self.job_class)}: a field's annotation says {error.name!r}, which its module"
                    " does not have at run time. Import it outside of 'if TYPE_CHECKING', or define it in the module."
                ) from error
            except TypeError as error:
                raise DeclarationError(f"Job class {described(self.job_class)}: {error}") from error
        return self._codec

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        handler, is_async = self._looked_at
        if handler is not self.handler:  # asked for every job
            handler, is_async = self._looked_at = (self.handler, _is_coroutine_function(self.handler))
        return is_async

    @property
    def is_isolated(self) -> bool:
        """Whether the handler is run in a child process."""
        return self.options.isolation == "process"

    def policy(self, settings: WorkerSettings) -> Policy:
        """The options, with the worker's settings for those that the class leaves out."""
        return self.options.policy(settings)

    def __repr__(self) -> str:
        return f"Kind({self.topic!r}, {self.job_class.__qualname__})"


def _is_coroutine_function(handler: Callable[..., Any] | None) -> bool:
    function = inspect.unwrap(handler) if handler else None
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - the method is wanted, not whether there is one


class Registry(Mapping[str, Kind]):
    """The kinds of one base, by topic."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}

    def add(self, kind: Kind) -> None:
        """Register a kind.

        Raises:
            DeclarationError: another class has its topic.
        """
        if other := self._kinds.get(kind.topic):
            raise DeclarationError(
                f"Job class {described(kind.job_class)} takes topic {kind.topic!r}, which {described(other.job_class)}"
                " already has. Give one of them another topic=."
            )
        self._kinds[kind.topic] = kind

    @property
    def crash_ceilings(self) -> dict[str, int]:
        """`max_crashes` of the kinds that have one, by topic."""
        return {topic: kind.options.max_crashes for topic, kind in self._kinds.items() if kind.options.max_crashes}

    def __getitem__(self, topic: str) -> Kind:
        return self._kinds[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return f"Registry({', '.join(sorted(self._kinds))})"


def described(job_class: type[Any]) -> str:
    """A class for an error message: its dotted name and, if known, where it stands."""
    name = f"'{job_class.__module__}.{job_class.__qualname__}'"
    try:
        file, (_, line) = inspect.getsourcefile(job_class), inspect.getsourcelines(job_class)
    except (OSError, TypeError):
        return name
    return f"{name} ({file}:{line})"
