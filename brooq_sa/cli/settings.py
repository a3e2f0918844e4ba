"""The settings of `WorkerSettings` as options, for the commands that run jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from brooq_sa.durations import format_duration
from brooq_sa.settings import (
    DEFAULT_HTTP_ADDR,
    NAMES,
    NOWHERE,
    SWITCHES,
    URLS,
    VARIABLES,
    Loaded,
    WorkerSettings,
    load_settings,
)

from .failing import hide
from .options import DOTENV

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = {
    "workers": "How many jobs run at once.",
    "poll_interval": "How long to wait before looking again after nothing was ready.",
    "lease": "How long a claim holds without a heartbeat: the speed of recovery, no limit on run time.",
    "attempt_timeout": "After how long an attempt is told to stop.",
    "max_execution_timeout": "After how long its lease is no longer renewed.",
    "backoff_base": "The longest delay after the first failure; it doubles with each further one.",
    "backoff_max": "The longest delay after any failure.",
    "max_attempts": "The attempt whose failure makes a job dead.",
    "reaper_period": "Between looks for leases that ran out.",
    "watchdog_grace": "How long a handler may outlive being told to stop before it counts as hung.",
    "retention_ttl": "How long finished jobs are kept; 0s is for ever.",
    "retention_batch": "How many of them are deleted in one transaction.",
    "retention_period": "Between looks for those.",
    "grace": "How long a stop waits for running jobs before it tells them to stop.",
    "wake": "Whether to be woken when jobs are enqueued, on PostgreSQL, and not only to look now and then.",
    "wake_url": "A way to the database on which to be woken, past a pooler in transaction mode.",
}
"""The help of each setting; what is left open here is said in `WorkerSettings`."""

COMPUTED = {
    "reaper_period": "a quarter of the lease, at least 5s",
    "watchdog_grace": "the lease",
    "retention_period": "a 24th of the TTL, from 1m to 1h",
    "wake_url": "where the jobs are",
}


def settings_options(*, without: Collection[str] = ()) -> Callable[[F], F]:
    """An option for each setting, whose values `read_settings` takes."""

    def decorate(command: F) -> F:
        for name in reversed([name for name in NAMES if name not in without]):
            command = _option(name)(command)
        return command

    return decorate


def read_settings(arguments: Mapping[str, object]) -> Loaded:
    """Settings from options, the environment and ``.env``.

    Raises:
        SettingsError: with every problem there is.
    """
    loaded = load_settings(arguments, os.environ, DOTENV)
    if loaded.settings.wake_url is not None:
        from .database import readable_url

        readable_url(loaded.settings.wake_url, "--wake-url")
    return loaded


def effective(loaded: Loaded) -> dict[str, tuple[str, str]]:
    """What each setting comes to, as text without passwords, and where that comes from."""
    shown = {name: (_shown(loaded.settings, name), _source(loaded, name)) for name in NAMES}
    return shown | {"http_addr": (loaded.http_addr or NOWHERE, loaded.sources["http_addr"])}


def _shown(settings: WorkerSettings, name: str) -> str:
    value = getattr(settings, f"effective_{name}", getattr(settings, name))
    if name in URLS:
        return COMPUTED[name] if value is None else hidden(value)
    return _text(value)


def _source(loaded: Loaded, name: str) -> str:
    is_computed = name in COMPUTED and name not in URLS and not getattr(loaded.settings, name)
    return "computed" if is_computed else loaded.sources[name]


def hidden(url: str) -> str:
    """The URL with its password hidden."""
    from .database import readable_url

    return hide(readable_url(url).render_as_string(hide_password=True))


def http_option(command: F) -> F:
    """The option ``http_addr``, for commands that serve metrics."""
    note = (
        "Where to serve /metrics, /healthz and /readyz: host:port, where port 0 is any that is free; 'off' or '' is"
        f" nowhere.  [env var: {VARIABLES['http_addr']}; default: {DEFAULT_HTTP_ADDR}]"
    )
    return click.option("--http-addr", metavar="ADDRESS", help=note)(command)


def log_options(command: F) -> F:
    """The options ``log_format`` and ``log_level``."""
    for option in (
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="The lowest level that is logged.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["console", "json"]),
            help="How the log is written.  [default: console on a terminal, json elsewhere]",
        ),
    ):
        command = option(command)
    return command


def _option(name: str) -> Callable[[F], F]:
    note = f"{SETTINGS[name]}  [env var: {VARIABLES[name]}; default: {_default(name)}]"
    if name in SWITCHES:
        return click.option(f"--{name}/--no-{name}", name, default=None, help=note)
    return click.option(f"--{name.replace('_', '-')}", name, metavar=_metavar(name), help=note)


def _default(name: str) -> str:
    value = getattr(WorkerSettings, name)
    return COMPUTED[name] if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, int) else format_duration(value)


def _metavar(name: str) -> str:
    if name in URLS:
        return "URL"
    return "NUMBER" if isinstance(getattr(WorkerSettings, name), int) else "DURATION"
