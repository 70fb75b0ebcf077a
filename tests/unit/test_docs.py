"""What the pages under docs/ say of the tests is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page):
    """A claim whose test was renamed or dropped is a claim without a test."""
    named = re.findall(r"`(?:[\w/.]+::)?(test_\w+)`", page.read_text())
    assert named
    missing = [name for name in named if f"def {name}(" not in TESTS and not name.endswith(".py")]
    assert [] == missing
