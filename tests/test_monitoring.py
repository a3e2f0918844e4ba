"""The dashboards and alert rules that come with the documentation."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from brooq_sa.depths import Snapshot
from brooq_sa.metrics import Families, _depth_families

FOLDER = Path(__file__).parent.parent / "docs" / "monitoring"
PAGE = FOLDER.parent / "observability.md"

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
A_NAME = re.compile(r"\bbrooq_[a-z_]+")


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("monitoring_generate", FOLDER / "generate.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018 - both are there for a file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()
FILES: dict[str, str] = dict(GENERATOR.files())


def families() -> Iterator[Metric]:
    """Every family of metrics there is."""
    registry = CollectorRegistry()
    Families.of(registry)
    yield from registry.collect()
    look = Snapshot({}, {}, frozenset(), frozenset(), rows=0, dead_rows=0, size=0, oldest_transaction=0.0)
    yield from _depth_families([(look, ["work"])])


def names() -> set[str]:
    """Every name of a sample there may be."""
    return {family.name + suffix for family in families() for suffix in SUFFIXES[family.type]}


@pytest.mark.parametrize("name", FILES)
def test_files_are_what_is_generated(name: str) -> None:
    """Each file that is committed is what docs/monitoring/generate.py writes (W4)."""
    assert (FOLDER / name).read_text(encoding="utf-8") == FILES[name]


def test_nothing_else_lies_there() -> None:
    """No file is left over that nothing generates any more."""
    found = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert found == {*FILES, "generate.py"}


@pytest.mark.parametrize("name", FILES)
def test_every_metric_exists(name: str) -> None:
    """No dashboard and no rule asks for a metric that is not served (W4)."""
    used = set(A_NAME.findall(FILES[name]))
    assert used
    assert used - names() == set()


def test_every_metric_is_seen() -> None:
    """Each metric stands in a dashboard or a rule (W4)."""
    used = {name for text in FILES.values() for name in A_NAME.findall(text)}
    unseen = {
        family.name for family in families() if not used & {family.name + suffix for suffix in SUFFIXES[family.type]}
    }
    assert unseen == set()


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_dashboards_are_whole(name: str) -> None:
    """A dashboard has an id of its own, panels that do not overlap, and a source that can be chosen (W4)."""
    dashboard = json.loads(FILES[name])
    assert dashboard["uid"].startswith("brooq-")
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) > 5
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert "datasource" in variables
    used = set(re.findall(r"\$(\w+)", "".join(t["expr"] for p in dashboard["panels"] for t in p["targets"])))
    assert used - {"__rate_interval"} <= variables


def test_the_alerts_that_are_promised() -> None:
    """The rules know of each trouble that somebody is to be woken for (W4)."""
    assert {alert.name for alert in GENERATOR.ALERTS} >= {
        "BrooqQueueStalled",
        "BrooqJobsDying",
        "BrooqHungHandlers",
        "BrooqLeasesLost",
        "BrooqTargetDown",
        "BrooqStartsLate",
        "BrooqUnknownTopics",
        "BrooqCrashSuspects",
        "BrooqTableBloat",
        "BrooqOldTransaction",
    }
    for alert in GENERATOR.ALERTS:
        assert alert.severity in ("info", "warning", "critical")
        assert alert.name in PAGE.read_text(encoding="utf-8")


def promtool(*arguments: str) -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool here; Debian's package prometheus has it")
    run = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_promtool_takes_the_rules() -> None:
    """`promtool check rules` finds no fault in them (W4)."""
    assert f"{len(GENERATOR.ALERTS)} rules found" in promtool("check", "rules", str(FOLDER / "alerts.yml"))


FIRING = {
    "BrooqQueueStalled": ('brooq_ready_oldest_age_seconds{topic="work"}', "400x60", {"topic": "work"}),
    "BrooqJobsDying": ('brooq_settle_total{topic="work",outcome="dead"}', "0+1x60", {"topic": "work"}),
    "BrooqHungHandlers": ('brooq_hung_workers_total{topic="work"}', "0x30 1x30", {"topic": "work"}),
    "BrooqLeasesLost": ('brooq_lease_lost_total{topic="work"}', "0x30 1x30", {"topic": "work"}),
    "BrooqTargetDown": ('up{job="brooq"}', "0x60", {"job": "brooq"}),
    "BrooqUnknownTopics": ("brooq_unknown_topics", "2x60", {}),
    "BrooqCrashSuspects": ('brooq_crash_suspects_total{topic="work"}', "0x30 1x30", {"topic": "work"}),
    "BrooqOldTransaction": ("brooq_oldest_transaction_age_seconds", "3000+60x60", {}),
}
"""For each of some alerts: a series, its values a minute apart, and the labels of the alert that comes of it."""


def test_no_worker_at_all_is_an_alert(tmp_path: Path) -> None:
    """That there is nothing to scrape any more, as when all pods are gone, is told too (W4)."""
    fired = {"exp_labels": {"job": "brooq", "severity": "critical"}}
    test = {
        "interval": "1m",
        "alert_rule_test": [{"eval_time": "5m", "alertname": "BrooqTargetDown", "exp_alerts": [fired]}],
    }
    run_rules(tmp_path, test)


@pytest.mark.parametrize("name", FIRING)
def test_alerts_fire(name: str, tmp_path: Path) -> None:
    """What an alert is for makes it fire, and nothing does not (W4)."""
    series, values, labels = FIRING[name]
    [alert] = [each for each in GENERATOR.ALERTS if each.name == name]
    fired = {"exp_labels": labels | {"severity": alert.severity}}
    well = [{"series": 'up{job="brooq"}', "values": "1x60"}]
    quiet = {
        "interval": "1m",
        "input_series": well,
        "alert_rule_test": [{"eval_time": "40m", "alertname": name, "exp_alerts": []}],
    }
    loud = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values}],
        "alert_rule_test": [{"eval_time": "40m", "alertname": name, "exp_alerts": [fired]}],
    }
    run_rules(tmp_path, quiet, loud)


def run_rules(folder: Path, *tests: dict[str, Any]) -> None:
    # The texts of alerts, in which the value stands, are not what is tested.
    rules = re.sub(r"        annotations:\n(          .*\n)+", "", FILES["alerts.yml"])
    (folder / "alerts.yml").write_text(rules)
    path = folder / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(folder / "alerts.yml")], "tests": tests}))
    promtool("test", "rules", str(path))
