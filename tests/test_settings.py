"""A worker's settings."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest

from brooq_sa.exc import SettingsError
from brooq_sa.settings import DEFAULT_HTTP_ADDR, INTEGERS, NAMES, SWITCHES, VARIABLES, WorkerSettings, load_settings

SECOND = timedelta(seconds=1)


def problems_of(
    arguments: dict[str, object] | None = None, environ: dict[str, str] | None = None, dotenv: Path | None = None
) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load_settings(arguments or {}, environ or {}, dotenv)
    return caught.value.problems


def test_defaults_work() -> None:
    """Without any setting the worker has the documented defaults (U3)."""
    assert dataclasses.asdict(WorkerSettings()) == {
        "workers": 2,
        "poll_interval": SECOND,
        "lease": timedelta(minutes=2),
        "attempt_timeout": timedelta(minutes=1),
        "max_execution_timeout": timedelta(minutes=5),
        "backoff_base": SECOND,
        "backoff_max": timedelta(minutes=1),
        "max_attempts": 5,
        "reaper_period": None,
        "watchdog_grace": None,
        "retention_ttl": timedelta(days=30),
        "retention_batch": 1_000,
        "retention_period": None,
        "grace": timedelta(seconds=30),
        "wake": True,
        "wake_url": None,
    }
    loaded = load_settings({}, {}, None)
    assert loaded.settings == WorkerSettings()
    assert (loaded.database_url, loaded.http_addr) == (None, DEFAULT_HTTP_ADDR)
    assert set(loaded.sources.values()) == {"default"}


@pytest.mark.parametrize(
    "argument, variable, address, source",
    [
        (None, None, DEFAULT_HTTP_ADDR, "default"),
        (None, "", DEFAULT_HTTP_ADDR, "default"),
        (None, "off", None, "environment"),
        (None, ":9000", ":9000", "environment"),
        ("off", ":9000", None, "argument"),
        ("", ":9000", None, "argument"),
        ("[::1]:0", "off", "[::1]:0", "argument"),
    ],
)
def test_where_metrics_are_served(argument: str | None, variable: str | None, address: str | None, source: str) -> None:
    """HTTP_ADDR is host:port, or 'off'; an empty variable counts as unset, an empty argument as off (U3)."""
    environ = {} if variable is None else {"HTTP_ADDR": variable}
    loaded = load_settings({"http_addr": argument}, environ, None)
    assert (loaded.http_addr, loaded.sources["http_addr"]) == (address, source)


def test_every_variable_is_read() -> None:
    """Each of the documented variables reaches its setting (U3)."""
    loaded = load_settings(
        {},
        {
            "QUEUE_WORKERS": "3",
            "QUEUE_POLL_INTERVAL": "2s",
            "QUEUE_LEASE": "120s",
            "QUEUE_ATTEMPT_TIMEOUT": "4s",
            "QUEUE_MAX_EXECUTION_TIMEOUT": "1h30m",
            "QUEUE_BACKOFF_BASE": "6s",
            "QUEUE_BACKOFF_MAX": "7s",
            "QUEUE_MAX_ATTEMPTS": "8",
            "QUEUE_REAPER_PERIOD": "9s",
            "QUEUE_WATCHDOG_GRACE": "10s",
            "QUEUE_RETENTION_TTL": "11h",
            "QUEUE_RETENTION_BATCH": "12",
            "QUEUE_RETENTION_PERIOD": "13m",
            "DATABASE_URL": "postgresql://user:word@host/name",
            "HTTP_ADDR": ":9000",
        },
        None,
    )
    assert loaded.settings == WorkerSettings(
        workers=3,
        poll_interval=2 * SECOND,
        lease=120 * SECOND,
        attempt_timeout=4 * SECOND,
        max_execution_timeout=timedelta(minutes=90),
        backoff_base=6 * SECOND,
        backoff_max=7 * SECOND,
        max_attempts=8,
        reaper_period=9 * SECOND,
        watchdog_grace=10 * SECOND,
        retention_ttl=timedelta(hours=11),
        retention_batch=12,
        retention_period=timedelta(minutes=13),
    )
    assert (loaded.database_url, loaded.http_addr) == ("postgresql://user:word@host/name", ":9000")


def test_arguments_go_first_then_the_environment_then_the_file(tmp_path: Path) -> None:
    """The nearest place wins, and each setting says where it came from (U3)."""
    dotenv = tmp_path / ".env"
    dotenv.write_text('QUEUE_WORKERS=11\nQUEUE_LEASE="12s"\nexport QUEUE_MAX_ATTEMPTS=13  # a comment\n')
    loaded = load_settings({"workers": 31}, {"QUEUE_WORKERS": "21", "QUEUE_LEASE": "22s"}, dotenv)
    settings, sources = loaded.settings, loaded.sources
    assert (settings.workers, sources["workers"]) == (31, "argument")
    assert (settings.lease, sources["lease"]) == (22 * SECOND, "environment")
    assert (settings.max_attempts, sources["max_attempts"]) == (13, ".env")
    assert sources["grace"] == "default"


def test_what_is_empty_is_unset(tmp_path: Path) -> None:
    """An empty variable and an argument of None leave the next place to decide; a missing file is no file (U3)."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("QUEUE_WORKERS=7\nQUEUE_LEASE=\nDATABASE_URL\n")
    loaded = load_settings({"workers": None}, {"QUEUE_WORKERS": "", "DATABASE_URL": ""}, dotenv)
    assert (loaded.settings.workers, loaded.settings.lease) == (7, timedelta(minutes=2))
    assert loaded.database_url is None
    assert load_settings({}, {}, tmp_path / "missing").settings == WorkerSettings()


def test_values_in_the_file_mean_themselves(tmp_path: Path) -> None:
    """A password with dollar signs and braces in .env is not expanded (U3)."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("DATABASE_URL=postgresql://user:a${HOME}b@host/name\n")
    assert load_settings({}, {}, dotenv).database_url == "postgresql://user:a${HOME}b@host/name"


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A .env that is no UTF-8 text is reported with its path, along with the other problems (U3)."""
    dotenv = tmp_path / ".env"
    dotenv.write_bytes(b"QUEUE_WORKERS=\xff\n")
    problems = problems_of({"workers": 0}, dotenv=dotenv)
    assert len(problems) == 2
    assert problems[0].startswith(f"{dotenv}: cannot be read:")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Every fault from every place is named as its giver knows it, in one error (U3)."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("QUEUE_RETENTION_BATCH=many\n")
    problems = problems_of(
        {"workers": 0, "poll_interval": "1", "colour": "red"},
        {"QUEUE_LEASE": "120", "QUEUE_ATTEMPT_TIMEOUT": "6m", "HTTP_ADDR": "nowhere"},
        dotenv,
    )
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "HTTP_ADDR",
        "QUEUE_ATTEMPT_TIMEOUT",
        "QUEUE_LEASE",
        "QUEUE_RETENTION_BATCH (.env)",
        "colour",
        "poll_interval",
        "workers",
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {*INTEGERS, *SWITCHES}])
@pytest.mark.parametrize("value", ["120", "-1s", "soon", "99999d"])
def test_durations_need_a_unit_and_a_sane_size(name: str, value: str) -> None:
    """No duration may be a bare number, negative, text or longer than a database can add to its clock (U3)."""
    [problem] = problems_of(environ={"QUEUE_MAX_EXECUTION_TIMEOUT": "3650d", VARIABLES[name]: value})
    assert problem.startswith(f"{VARIABLES[name]}: ")


@pytest.mark.parametrize(
    "name", ["poll_interval", "lease", "attempt_timeout", "max_execution_timeout", "reaper_period", "watchdog_grace"]
)
def test_periods_are_longer_than_nothing(name: str) -> None:
    """A period or limit of zero is refused (U3)."""
    with pytest.raises(SettingsError, match=rf"{name}: 0s is out of range\. Give more than 0s"):
        WorkerSettings.create(**{name: timedelta(0)})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "9" * 30])
def test_counts_are_whole_numbers_from_one(name: str, value: str) -> None:
    """A count below one, above reason, or that is no whole number is refused; an empty one is unset (U3)."""
    environ = {VARIABLES[name]: value}
    if not value:
        assert getattr(load_settings({}, environ, None).settings, name) == getattr(WorkerSettings(), name)
    else:
        [problem] = problems_of(environ=environ)
        assert problem.startswith(f"{VARIABLES[name]}: {value!r}" if value[-1] not in "01" else f"{VARIABLES[name]}: ")


@pytest.mark.parametrize(
    "text, expected", [("on", True), ("TRUE", True), ("1", True), ("off", False), ("no", False), (" 0 ", False)]
)
def test_switches_are_on_or_off(text: str, expected: bool) -> None:
    """A switch takes the usual words for on and off, an empty one keeps its default, and others are refused (U3)."""
    assert load_settings({}, {"QUEUE_WAKE": text}, None).settings.wake is expected
    assert load_settings({}, {"QUEUE_WAKE": ""}, None).settings.wake is True
    assert problems_of(environ={"QUEUE_WAKE": "perhaps"}) == (
        "QUEUE_WAKE: 'perhaps' is neither on nor off. Give one of them.",
    )
    with pytest.raises(SettingsError, match="wake: 1 is neither True nor False"):
        WorkerSettings(wake=1)  # type: ignore[arg-type]


def test_the_attempt_may_not_outlast_the_execution() -> None:
    """An attempt timeout above the maximal execution time is refused, and both are named (U3)."""
    assert problems_of({"attempt_timeout": "10m"}) == (
        "attempt_timeout: 10m is above max_execution_timeout (default) 5m. Lower the one or raise the other.",
    )
    assert WorkerSettings.create(attempt_timeout="5m").attempt_timeout == timedelta(minutes=5)
    assert WorkerSettings.create(attempt_timeout="5m", lease="1s").lease == SECOND


def test_settings_are_valid_however_they_are_made() -> None:
    """The constructor, create() and changed() refuse the same (U3)."""
    for make in (WorkerSettings, WorkerSettings.create, WorkerSettings().changed):
        with pytest.raises(SettingsError) as caught:
            make(workers=0, lease=-SECOND)
        assert sorted(problem.split(":")[0] for problem in caught.value.problems) == ["lease", "workers"]
    with pytest.raises(SettingsError, match="lease: '30s' is no timedelta"):
        WorkerSettings(lease="30s")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="leese: there is no such setting"):
        WorkerSettings.create(leese="30s")


def test_settings_can_be_changed_in_part() -> None:
    """changed() takes strings like create(), and leaves the rest as it is."""
    settings = WorkerSettings(workers=7).changed(lease="30s", grace=None)
    assert settings == WorkerSettings(workers=7, lease=timedelta(seconds=30))


@pytest.mark.parametrize("ttl, period", [("720h", "1h"), ("1h", "150s"), ("5m", "1m"), ("0s", "1m"), ("12h", "30m")])
def test_what_is_left_out_is_computed(ttl: str, period: str) -> None:
    """Reaper, watchdog, heartbeat and retention periods follow lease and TTL unless set, and 0 is unset (U3)."""
    for retention_period in ("0s", None):
        settings = WorkerSettings.create(lease="12s", retention_ttl=ttl, retention_period=retention_period)
        assert settings.effective_retention_period == WorkerSettings.create(lease=period).lease
    assert settings.heartbeat_period == timedelta(seconds=4)
    assert settings.effective_watchdog_grace == timedelta(seconds=12)
    assert settings.effective_reaper_period == timedelta(seconds=5)
    assert WorkerSettings().effective_reaper_period == timedelta(seconds=30)
    assert WorkerSettings.create(reaper_period="2s").effective_reaper_period == timedelta(seconds=2)


def test_passwords_are_not_shown() -> None:
    """The text of what was loaded holds no database URL (W3)."""
    loaded = load_settings({"database_url": "postgresql://user:s3cr3t@host/name"}, {}, None)
    assert "s3cr3t" not in repr(loaded)
    assert loaded.database_url == "postgresql://user:s3cr3t@host/name"


def test_wake_url() -> None:
    """The way on which to be woken is a URL of PostgreSQL, and its password is neither shown nor repeated (W3)."""
    url = "postgresql://user:s3cret@host/name"
    settings = load_settings({}, {"QUEUE_WAKE_URL": url}, None).settings
    assert settings.wake_url == url
    assert "s3cret" not in repr(settings)
    for other in ("mysql://user:s3cret@host/name", "s3cret"):
        [problem] = problems_of({}, {"QUEUE_WAKE_URL": other})
        assert problem.startswith("QUEUE_WAKE_URL: It is no URL of PostgreSQL. Give one such as postgresql://")
        assert "s3cret" not in problem
