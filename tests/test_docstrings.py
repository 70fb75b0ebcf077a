"""Every test says in one sentence what behaviour it proves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MODULES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))
SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?]\s+(?=[A-Z])")


def fault_of(docstring: str | None) -> str | None:
    """Say what keeps a docstring from being one sentence, or None."""
    if not docstring:
        return "has no docstring"
    if "\n\n" in docstring or SENTENCE_END.search(docstring):
        return "has more than one sentence"
    if not docstring.endswith("."):
        return "does not end with a full stop"
    return None


def faults_in(source: str) -> list[str]:
    """List the tests in a module's text whose docstrings are not one sentence."""
    return [
        f"{node.name} {fault}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test")
        if (fault := fault_of(ast.get_docstring(node)))
    ]


@pytest.mark.parametrize("path", MODULES)
def test_each_test_has_one_sentence(path):
    """The docstring of every test is a single sentence."""
    assert [] == faults_in((TESTS / path).read_text())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_it(): pass", "has no docstring"),
        ("async def test_it(): pass", "has no docstring"),
        ("class TestIt:\n    def test_it(self): pass", "has no docstring"),
        ('def test_it():\n    """It works"""', "does not end with a full stop"),
        ('def test_it():\n    """It works. Really."""', "has more than one sentence"),
        ('def test_it():\n    """It works.\n\n    Really."""', "has more than one sentence"),
    ],
)
def test_a_fault_is_found(source, expected):
    """A missing, unfinished or longer docstring is reported with the test's name."""
    assert [f"test_it {expected}"] == faults_in(source)
