"""What is said of a MODULE:BASE that is not one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from brooq_sa.cli.bases import load_base
from brooq_sa.cli.failing import Failure

JOBS = """
from brooq_sa import JobBase

class AppJob(JobBase):
    pass

class OtherJob(JobBase):
    pass

class Send(AppJob, topic="email.send"):
    def run(self, claim): ...

number = 1
"""


@pytest.fixture(autouse=True)
def _imports_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0].startswith("own_"):
            del sys.modules[name]


def write(name: str, source: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def refusal(target: str) -> str:
    with pytest.raises(click.BadParameter) as raised:
        load_base(target)
    return raised.value.message


def failure(target: str) -> str:
    with pytest.raises(Failure) as raised:
        load_base(target)
    assert raised.value.exit_code == 1
    return raised.value.message


def test_current_folder_is_importable_and_shadows_nothing() -> None:
    """A module of the current folder is found, but not in place of one that is installed."""
    write("own_app/__init__.py", "")
    write("own_app/jobs.py", JOBS)
    write("json.py", "raise RuntimeError('shadowed')")
    assert load_base("own_app.jobs:AppJob").__name__ == "AppJob"
    assert sys.path[-1] == str(Path.cwd())
    assert "has no attribute 'AppJob'" in refusal("json:AppJob")


def test_module_not_found() -> None:
    """A module that is not there is named, and so is the part of its name that is missing."""
    write("own_app/__init__.py", "")
    assert refusal("own_nothing:Base").startswith("Module 'own_nothing' was not found.")
    assert refusal("own_app.jobs:Base").startswith("Module 'own_app.jobs' was not found.")
    assert "(there is no 'own_nothing')" in refusal("own_nothing.jobs:Base")
    assert "(there is no 'own_app.more')" in refusal("own_app.more.jobs:Base")


@pytest.mark.parametrize(
    "source,error,line",
    [
        ("import sys\nx = nothing\n", "NameError: name 'nothing' is not defined", 2),
        ("\n\ndef broken(:\n", "SyntaxError: invalid syntax", 3),
        ("import own_absent_dependency\n", "ModuleNotFoundError: No module named 'own_absent_dependency'", 1),
        ("import sys\n\nsys.exit(0)\n", "SystemExit: 0", 3),
        (
            "from brooq_sa import JobBase\nclass A(JobBase): pass\nclass B(A): pass\n",
            "Job class 'own_failing.B'",
            3,
        ),
    ],
)
def test_failed_while_importing(source: str, error: str, line: int) -> None:
    """A module that is there and fails is told apart from one that is not: its error, and where."""
    write("own_failing.py", source)
    message = failure("own_failing:Base")
    assert message.startswith("Module 'own_failing' was found, but failed while it was imported: ")
    assert error in message
    assert message.endswith(f"own_failing.py:{line})")


def test_attribute_that_is_missing_or_no_base() -> None:
    """What the attribute is instead is said, and what could be given."""
    write("own_jobs.py", JOBS)
    choice = "Give own_jobs:AppJob or own_jobs:OtherJob."
    assert refusal("own_jobs:Nothing").endswith(f"has no attribute 'Nothing'. {choice}")
    assert refusal("own_jobs:number").endswith(choice)
    assert "'JobBase' in 'own_jobs' is not a base" in refusal("own_jobs:JobBase")
    assert refusal("own_jobs:Send") == "'Send' is a job class; its base is 'AppJob'. Give own_jobs:AppJob."


@pytest.mark.parametrize("target", ["own_jobs", "own_jobs:", "own_jobs.AppJob", ":AppJob", "own_jobs:a b", ""])
def test_malformed(target: str) -> None:
    """What is not MODULE:BASE is refused with an example, or with the bases that the module has."""
    write("own_jobs.py", JOBS)
    message = refusal(target)
    assert "MODULE:BASE" in message or "not found" in message
    if target == "own_jobs":
        assert message.endswith("Give own_jobs:AppJob or own_jobs:OtherJob.")
