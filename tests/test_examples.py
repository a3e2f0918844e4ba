"""Every Python example in README and docs runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Engine
from sybil.document import Document
from sybil.parsers.myst import PythonCodeBlockParser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module to run a page's examples in: job classes look up the names in their annotations there."""
    made = ModuleType("example")
    sys.modules["example"] = made
    yield made
    del sys.modules["example"]
    for value in vars(made).values():
        if isinstance(value, Engine):
            value.dispose()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python examples of a page run from top to bottom as one module, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    document = Document.parse(str(page), PythonCodeBlockParser())
    document.namespace = vars(module)
    for example in document.examples():
        example.evaluate()


def test_a_broken_example_is_noticed(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that fails fails its page's test, at its own line."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nhalf = 0.5\n```\n\n```python\nassert half == 1\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        test_examples_run(page, module, tmp_path, monkeypatch)
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (page, 8)
