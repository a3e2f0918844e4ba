"""What the documentation gives to systemd, containers and Kubernetes is what they take."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from brooq_sa.cli import main
from brooq_sa.durations import parse_duration
from brooq_sa.settings import VARIABLES, WorkerSettings
from brooq_sa.worker.worker import LAST_TURNS, LAST_WRITES, NOTICE

PAGE = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text(encoding="utf-8")

LONGEST_STOP = WorkerSettings().grace.total_seconds() + NOTICE + LAST_WRITES + LAST_TURNS


def block(language: str) -> str:
    """The page's one block of the language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    text: str = found
    return text


UNIT = block("ini")
MANIFEST: Any = yaml.safe_load(block("yaml"))
CONTAINERFILE = block("dockerfile")


def systemd_analyze(*arguments: str) -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("there is no systemd-analyze here")
    run = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit as a file, with a program that exists here."""
    path = tmp_path / "brooq-worker@0.service"
    here = UNIT.replace("/srv/shop/.venv/bin/brooq-sa", sys.executable).replace("/srv/shop", str(tmp_path))
    path.write_text(here, encoding="utf-8")
    return path


def test_systemd_takes_the_unit(unit: Path) -> None:
    """`systemd-analyze verify` has nothing to say about it."""
    said = systemd_analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert [line for line in said.splitlines() if unit.name in line or str(unit) in line] == []


def test_the_unit_is_hardened(unit: Path) -> None:
    """`systemd-analyze security` finds little that it could still do."""
    said = systemd_analyze("security", "--offline=true", "--no-pager", str(unit))
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert level is not None, said
    assert float(level[1]) <= 2.0, said


def test_the_unit_and_the_worker_agree() -> None:
    """The unit's times leave the worker its own, and it sets what the worker knows."""
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert parse_duration(settings["TimeoutStopSec"]).total_seconds() > LONGEST_STOP
    assert settings["Type"] == "notify"
    assert "WatchdogSec" in settings
    variables = {pair.partition("=")[0] for pair in settings["Environment"].split()}
    assert variables <= set(VARIABLES.values())


def test_the_manifest_and_the_worker_agree() -> None:
    """Probes ask pages that there are, and the pod is given the time that a stop takes."""
    assert (MANIFEST["apiVersion"], MANIFEST["kind"]) == ("apps/v1", "Deployment")
    labels = MANIFEST["spec"]["template"]["metadata"]["labels"]
    assert MANIFEST["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pod = MANIFEST["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP
    [container] = pod["containers"]
    [port] = container["ports"]
    assert {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")} == {
        "startupProbe": "/readyz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {container[probe]["httpGet"]["port"] for probe in container if probe.endswith("Probe")} == {port["name"]}
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment == {"HTTP_ADDR": f":{port['containerPort']}", "DATABASE_URL": None}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    parameters = {option for each in worker_options() for option in each}
    assert {argument for argument in container["args"] if argument.startswith("--")} <= parameters


def test_kubernetes_takes_the_manifest() -> None:
    """It fits Kubernetes' own schema, and has no field that this does not know."""
    schemas = pytest.importorskip("kubernetes_validate", reason="there is no kubernetes-validate here")
    schemas.validate(MANIFEST, schemas.latest_version(), strict=True)


def worker_options() -> list[list[str]]:
    import click

    command = main.get_command(click.Context(main), "worker")
    assert command is not None
    return [parameter.opts for parameter in command.params]


def test_the_container_agrees() -> None:
    """Its entry point is a list, so that signals reach the worker, and its health check asks a page that there is."""
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    assert yaml.safe_load(entry)[:2] == ["brooq-sa", "worker"]
    assert "http://127.0.0.1:8090/healthz" in CONTAINERFILE
    assert "HTTP_ADDR=:8090" in CONTAINERFILE
    assert re.search(r"^USER (?!root)\w+$", CONTAINERFILE, re.MULTILINE)


def test_the_page_says_how_long_a_stop_takes() -> None:
    """The time that the page asks for is what the worker takes at the most."""
    assert "the grace and 15 s" in PAGE
    assert WorkerSettings().grace.total_seconds() + 15 > LONGEST_STOP
