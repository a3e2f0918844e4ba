"""Every example in README and docs runs.

Of the code blocks on a page, those in three languages are run, from top to bottom, in an empty folder:

- ``python``: all of a page as one module. A block that begins with a comment like ``# shop.py`` is that file, and is
  saved instead.
- ``bash``: with the commands of this environment.
- ``sql``: on the SQLite files that the page has made by then, and on PostgreSQL. A block that begins with
  ``-- SQLite`` or ``-- PostgreSQL`` runs there alone.

Blocks of any other language, ``console`` among them, are for reading.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine
from sybil import Example
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))

FILE_NAME = re.compile(r"# (\w+\.py)\n")
SECONDS = 60


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
        elif isinstance(value, AsyncEngine):
            value.sync_engine.dispose(close=False)  # its connections went with their event loop


class Page:
    """A page whose examples are run in the current folder.

    Attributes:
        saved: the files that blocks are.
    """

    def __init__(self, path: Path, module: ModuleType, pg_url: str) -> None:
        self.saved: list[str] = []
        self._pg_url = pg_url
        languages = {"python": self._python, "bash": self._bash, "sql": self._sql}
        parsers = [CodeBlockParser(language, evaluator) for language, evaluator in languages.items()]
        self._document = Document.parse(str(path), *parsers)
        self._document.namespace = vars(module)

    def run(self) -> None:
        for example in self._document.examples():
            example.evaluate()

    def _python(self, example: Example) -> None:
        if named := FILE_NAME.match(example.parsed):
            Path(named[1]).write_text(example.parsed, encoding="utf-8")
            self.saved.append(named[1])
        else:
            PythonEvaluator()(example)

    def _bash(self, example: Example) -> None:
        code, output = run_in_bash(example.parsed)
        assert code == 0, f"{example.path}:{example.line}: exit code {code}\n{output}"

    def _sql(self, example: Example) -> None:
        only = example.parsed.partition("\n")[0].removeprefix("-- ")
        if only != "PostgreSQL":
            files = [file for file in sorted(Path().glob("*.db")) if is_migrated(file)]
            assert files, f"{example.path}:{example.line}: the page has no database"
            for file in files:
                run_on_sqlite(file, example.parsed)
        if only != "SQLite":
            run_on_postgresql(self._pg_url, example.parsed)


def run_in_bash(source: str) -> tuple[int, str]:
    """The exit code and the output of a script that stops at its first error; what it started ends with it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = Path("bash.log")  # no pipe: what the script leaves running would keep it open
    with log.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", source],
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


def is_migrated(file: Path) -> bool:
    return bool(run_on_sqlite(file, "SELECT name FROM sqlite_master WHERE name = 'job'"))


def run_on_sqlite(file: Path, sql: str) -> list[tuple[object, ...]]:
    """The rows of the last statement."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        rows: list[tuple[object, ...]] = []
        for statement in statements(sql):
            rows = connection.execute(statement).fetchall()
    return rows


def run_on_postgresql(url: str, sql: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for statement in statements(sql):
            connection.exec_driver_sql(statement)


def statements(sql: str) -> list[str]:
    return [part for part in sql.split(";\n") if part.strip()]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(path: Path, module: ModuleType, pg_url: str) -> None:
    """The examples of a page run from top to bottom."""
    Page(path, module, pg_url).run()


def test_the_readme_ends_as_it_says(module: ModuleType, pg_url: str) -> None:
    """After the README's example the job is done at its second attempt, and its effect is there once (S2, S3, I11)."""
    page = Page(README, module, pg_url)
    page.run()
    assert page.saved == ["shop.py", "order.py"]
    job = run_on_sqlite(Path("shop.db"), "SELECT state, attempts, locked_by FROM job")
    assert job == [("done", 2, None)]
    assert "| done  | 2        |" in README.read_text(encoding="utf-8")
    assert run_on_sqlite(Path("shop.db"), "SELECT receipts FROM orders") == [(1,)]


@pytest.mark.parametrize(
    "block, error, message",
    [
        ("```python\nassert half == 1\n```\n", AssertionError, None),
        ("```bash\nfalse\n```\n", AssertionError, "page.md:7: exit code 1"),
        ("```sql\nSELECT 1;\n```\n", AssertionError, "page.md:7: the page has no database"),
        ("```sql\n-- PostgreSQL\nSELECT 1;\nSELECT * FROM nowhere;\n```\n", ProgrammingError, "nowhere"),
    ],
    ids=["python", "bash", "sqlite", "postgresql"],
)
def test_a_broken_example_is_noticed(
    block: str, error: type[Exception], message: str | None, module: ModuleType, tmp_path: Path, pg_url: str
) -> None:
    """An example that fails fails its page's test, at its own line."""
    path = tmp_path / "page.md"
    path.write_text(f"# A page\n\n```python\nhalf = 0.5\n```\n\n{block}", encoding="utf-8")
    with pytest.raises(error, match=message) as caught:
        Page(path, module, pg_url).run()
    if block.startswith("```python"):
        assert (caught.traceback[-1].path, caught.traceback[-1].lineno + 1) == (path, 8)


@pytest.mark.parametrize("path", [README, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tests_that_a_page_names_are_there(path: Path) -> None:
    """A page that points to a test points to a file of this repository."""
    named = re.findall(r"\btests/[\w/]+\.py\b", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).is_file()] == []
