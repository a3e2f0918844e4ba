"""A worker's settings: from arguments, the environment or a ``.env`` file, with every problem reported at once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from .durations import format_duration, parse_duration
from .exc import OptionError, SettingsError

MAX_DURATION = timedelta(days=3_650)
"""Added to any date of the next millennia, it gives one that databases and Python can hold."""
MAX_NUMBER = 1_000_000

DEFAULT_HTTP_ADDR = "127.0.0.1:8090"
NOWHERE = "off"
"""The address of a worker that serves no metrics and no health pages."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How a worker works. A job class may set its own attempts, time limits and backoff, which then go first.

    Each setting is an argument of `Worker` and, in capitals after ``QUEUE_``, a variable of the environment.

    Attributes:
        workers: how many jobs run at once. Default 2.
        poll_interval: how long to wait before looking again after nothing was ready. Default 1 s.
        lease: how long a claim holds without a heartbeat: the speed of recovery, no limit on run time. Default 2 min.
        attempt_timeout: after how long an attempt is told to stop; not above `max_execution_timeout`. Default 1 min.
        max_execution_timeout: after how long its lease is no longer renewed. Default 5 min.
        backoff_base: the longest delay after the first failure; 0 is none. Default 1 s.
        backoff_max: the longest delay after any failure. Default 1 min.
        max_attempts: the attempt whose failure makes a job dead. Default 5.
        reaper_period: between looks for leases that ran out. Default None: a quarter of the lease, 5 s at least.
        watchdog_grace: how long a handler may outlive being told to stop, before it counts as hung. Default None: the
            lease.
        retention_ttl: how long terminal jobs are kept; 0 is for ever. Default 30 days.
        retention_batch: how many of them are deleted in one transaction. Default 1,000.
        retention_period: between looks for those. Default None, or 0: a 24th of `retention_ttl`, between 1 min and 1 h.
        grace: how long a shutdown waits for running jobs before it tells them to stop. Default 30 s.
        wake: whether to listen for wake-ups of other processes, on PostgreSQL. Default True.
        wake_url: where to listen, if not where the jobs are: a way to the database past a pooler in transaction mode,
            which does not pass wake-ups on. Default None.

    Raises:
        SettingsError: with every problem there is.
    """

    workers: int = 2
    poll_interval: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(minutes=2)
    attempt_timeout: timedelta = timedelta(minutes=1)
    max_execution_timeout: timedelta = timedelta(minutes=5)
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_max: timedelta = timedelta(minutes=1)
    max_attempts: int = 5
    reaper_period: timedelta | None = None
    watchdog_grace: timedelta | None = None
    retention_ttl: timedelta = timedelta(hours=720)
    retention_batch: int = 1_000
    retention_period: timedelta | None = None
    grace: timedelta = timedelta(seconds=30)
    wake: bool = True
    wake_url: str | None = dataclasses.field(default=None, repr=False)  # it may hold a password

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in NAMES}
        if problems := _rules_broken(values, {name: name for name in NAMES}):
            raise SettingsError(problems)

    @classmethod
    def create(cls, **arguments: object) -> WorkerSettings:
        """Settings from arguments, whose durations may be strings with a unit; None is the default.

        Raises:
            SettingsError: with every problem there is.
        """
        return load_settings(arguments, {}, None).settings

    def changed(self, **arguments: object) -> WorkerSettings:
        """These settings with some replaced, given as to `create`."""
        own = {name: getattr(self, name) for name in NAMES}
        return self.create(**own | {name: value for name, value in arguments.items() if value is not None})

    @property
    def heartbeat_period(self) -> timedelta:
        """Between renewals of the leases: a third of the lease."""
        return self.lease / 3

    @property
    def effective_reaper_period(self) -> timedelta:
        """`reaper_period`, or what None stands for."""
        return self.reaper_period or max(timedelta(seconds=5), self.lease / 4)

    @property
    def effective_watchdog_grace(self) -> timedelta:
        """`watchdog_grace`, or what None stands for."""
        return self.watchdog_grace or self.lease

    @property
    def effective_retention_period(self) -> timedelta:
        """`retention_period`, or what None and 0 stand for."""
        return self.retention_period or min(max(self.retention_ttl / 24, timedelta(minutes=1)), timedelta(hours=1))


NAMES = tuple(field.name for field in dataclasses.fields(WorkerSettings))
INTEGERS = ("workers", "max_attempts", "retention_batch")
SWITCHES = ("wake",)
URLS = ("wake_url",)
MAY_BE_ZERO = ("backoff_base", "backoff_max", "retention_ttl", "retention_period", "grace")
VARIABLES = {name: f"QUEUE_{name.upper()}" for name in NAMES} | {
    "database_url": "DATABASE_URL",
    "http_addr": "HTTP_ADDR",
}
"""The environment's variable for each setting."""


@dataclass(frozen=True)
class Loaded:
    """What `load_settings` found.

    Attributes:
        settings: of the worker.
        sources: where each came from, by name: ``argument``, ``environment``, ``.env`` or ``default``.
        database_url: as given, which may hold a password; None if nobody gave one.
        http_addr: where the worker's process shows its metrics and health, ``host:port``; None is nowhere.
    """

    settings: WorkerSettings
    sources: dict[str, str]
    database_url: str | None = dataclasses.field(repr=False)
    http_addr: str | None


@dataclass(frozen=True)
class _Given:
    """A value, where it came from, and what whoever gave it calls it."""

    value: object
    source: str
    label: str


def load_settings(arguments: Mapping[str, object], environ: Mapping[str, str], dotenv: Path | None) -> Loaded:
    """Settings from three places; an argument goes before the environment, that before ``.env``, that before defaults.

    Args:
        arguments: by the names of `WorkerSettings`, ``database_url`` and ``http_addr``; None counts as not given.
        environ: such as `os.environ`; an empty variable counts as unset.
        dotenv: a file of variables, taken as they are written; one that does not exist is as good as None.

    Raises:
        SettingsError: with every problem there is.
    """
    problems = [
        f"{name}: there is no such setting. There are {', '.join(VARIABLES)}."
        for name in arguments
        if name not in VARIABLES
    ]
    file = _read_dotenv(dotenv, problems)
    given = {name: found for name in VARIABLES if (found := _find(name, arguments, environ, file))}
    values = {name: value for name, found in given.items() if (value := _read(name, found, problems)) is not None}

    labels = {name: given[name].label if name in given else f"{name} (default)" for name in NAMES}
    defaults = {name: getattr(WorkerSettings, name) for name in NAMES if name not in given}
    problems += _rules_broken(defaults | values, labels)
    if problems:
        raise SettingsError(problems)
    return Loaded(
        settings=WorkerSettings(**{name: value for name, value in values.items() if name in NAMES}),
        sources={name: given[name].source if name in given else "default" for name in VARIABLES},
        database_url=values.get("database_url"),
        http_addr=read_address(values.get("http_addr", DEFAULT_HTTP_ADDR)),
    )


def _read_dotenv(path: Path | None, problems: list[str]) -> Mapping[str, str | None]:
    from dotenv import dotenv_values

    if path is None:
        return {}
    try:
        # Without interpolation: a password with ${ in it means itself.
        return dotenv_values(path, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}. Mend the file or remove it.")
        return {}


def _find(
    name: str, arguments: Mapping[str, object], environ: Mapping[str, str], file: Mapping[str, str | None]
) -> _Given | None:
    variable = VARIABLES[name]
    if (argument := arguments.get(name)) is not None:
        return _Given(argument, "argument", name)
    if text := environ.get(variable):
        return _Given(text, "environment", variable)
    if text := file.get(variable):
        return _Given(text, ".env", f"{variable} (.env)")
    return None


def _read(name: str, given: _Given, problems: list[str]) -> Any:
    """The value in its type, or None after adding to the problems."""
    try:
        return _reader(name)(given.value)
    except OptionError as error:
        problems.append(f"{given.label}: {error}")
        return None


def _reader(name: str) -> Callable[[Any], Any]:
    if name in INTEGERS:
        return _integer
    if name in SWITCHES:
        return _switch
    if name == "http_addr":
        return _address
    return str if name == "database_url" or name in URLS else parse_duration


def _integer(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value, re.ASCII):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise OptionError(f"{value!r} is not a whole number. Give one, such as 4.")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).strip().lower():
        case "on" | "true" | "yes" | "1":
            return True
        case "off" | "false" | "no" | "0":
            return False
    raise OptionError(f"{value!r} is neither on nor off. Give one of them.")


def read_address(value: object) -> str | None:
    """``host:port``, or None where the value is "off" or empty.

    Raises:
        OptionError: it is neither.
    """
    address = _address(value)
    return None if address == NOWHERE else address


def _address(value: object) -> str:
    if str(value).strip().lower() in (NOWHERE, ""):
        return NOWHERE
    host, colon, port = str(value).rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65_535:
        raise OptionError(f"{value!r} is not host:port. Give both, such as {DEFAULT_HTTP_ADDR}, or {NOWHERE!r}.")
    return f"{host}:{port}"


def _rules_broken(values: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """A sentence for each rule that values break; those that could not be read are left out of `values`."""
    faults = {name: fault for name in NAMES if name in values and (fault := _fault(name, values[name]))}
    limits = ("attempt_timeout", "max_execution_timeout")
    if all(name in values and name not in faults for name in limits):
        shorter, longer = (values[name] for name in limits)
        if shorter > longer:
            faults["attempt_timeout"] = (
                f"{format_duration(shorter)} is above {labels['max_execution_timeout']} {format_duration(longer)}."
                " Lower the one or raise the other."
            )
    return [f"{labels[name]}: {fault}" for name, fault in faults.items()]


def _fault(name: str, value: Any) -> str | None:
    """What is wrong with one value, or None."""
    if name in INTEGERS:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_NUMBER:
            return f"{value!r} is out of range. Give a whole number from 1 to {MAX_NUMBER}."
        return None
    if name in SWITCHES:
        return None if isinstance(value, bool) else f"{value!r} is neither True nor False. Give one of them."
    if value is None and getattr(WorkerSettings, name) is None:
        return None
    if name in URLS:
        is_one = isinstance(value, str) and re.match(r"postgres(ql)?(\+\w+)?://", value)
        # The value itself is not repeated: it may hold a password.
        return None if is_one else "It is no URL of PostgreSQL. Give one such as postgresql://user@host/name."
    if not isinstance(value, timedelta):
        return f"{value!r} is no timedelta. Give one, or a string with a unit to WorkerSettings.create()."
    least = timedelta(0) if name in MAY_BE_ZERO else timedelta(microseconds=1)
    if not least <= value <= MAX_DURATION:
        bound = "0s or more" if name in MAY_BE_ZERO else "more than 0s"
        return f"{format_duration(value)} is out of range. Give {bound}, at most {format_duration(MAX_DURATION)}."
    return None
