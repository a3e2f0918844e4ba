"""Every promise of the contract is shown by a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONTRACT = TESTS.parent / "docs" / "contract.md"

PROMISE = re.compile(r"^- \*\*(?P<number>[A-Z][0-9]+)\*\*(?P<planned> \*\(planned\)\*)?", re.MULTILINE)
IN_PARENTHESES = re.compile(r"\(([^()]*)\)")
NUMBER = re.compile(r"\b[IRTUMWS][0-9]+\b")


def numbers_named_in(source: str) -> set[str]:
    """The numbers that stand in parentheses in the docstrings of a module's tests and classes, or in its own."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    texts = (ast.get_docstring(node) or "" for node in nodes)
    return {number for text in texts for inside in IN_PARENTHESES.findall(text) for number in NUMBER.findall(inside)}


def numbers_named_by_tests() -> set[str]:
    files = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    return set().union(*(numbers_named_in(path.read_text(encoding="utf-8")) for path in files))


def promises() -> dict[str, bool]:
    """Whether each numbered promise of the page is a planned one as a whole."""
    page = CONTRACT.read_text(encoding="utf-8")
    return {found["number"]: found["planned"] is not None for found in PROMISE.finditer(page)}


def test_every_promise_is_named_by_a_test() -> None:
    """No promise that holds today goes without a test whose docstring names its number."""
    held = {number for number, is_planned in promises().items() if not is_planned}
    assert held - numbers_named_by_tests() == set()


def test_tests_name_promises_that_exist() -> None:
    """A number in a test's docstring is one that the contract has."""
    assert numbers_named_by_tests() - set(promises()) == set()


def test_the_contract_is_whole() -> None:
    """Each family of promises is numbered from 1 without a gap, and none appears twice."""
    found = [match["number"] for match in PROMISE.finditer(CONTRACT.read_text(encoding="utf-8"))]
    assert found == [
        f"{family}{number}"
        for family, last in {"I": 13, "R": 4, "T": 6, "U": 3, "M": 7, "W": 4, "S": 3}.items()
        for number in range(1, last + 1)
    ]


@pytest.mark.parametrize(
    "docstring, expected",
    [
        ("It holds (I1).", {"I1"}),
        ("It holds (I1, R2; M3).", {"I1", "R2", "M3"}),
        ("T1 waits for T2, see I13.", set()),
        ("(an I13x is none)", set()),
    ],
)
def test_numbers_are_found_in_parentheses(docstring: str, expected: set[str]) -> None:
    """A number counts where it stands in parentheses, so that a name like T1 in a sentence is no claim."""
    assert numbers_named_in(f'def test_it():\n    """{docstring}"""\n') == expected
