"""The pages of the documentation that are written from the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_reference.py"
_SPEC = importlib.util.spec_from_file_location("write_reference", SCRIPT)
write_reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(write_reference)
PAGES = write_reference.pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path):
    """The page follows from the code; `python scripts/write_reference.py` writes it."""
    assert PAGES[path] == path.read_text()


def test_only_the_part_between_its_comments_is_replaced():
    """The text around a generated part stays as it is."""
    page = "before\n<!-- map -->\nold\n<!-- end -->\nafter\n"

    assert "before\n<!-- map -->\n\nnew\n<!-- end -->\nafter\n" == write_reference.with_part(
        page, "map", "new"
    )
