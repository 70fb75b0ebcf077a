"""The pages of the documentation that are written from the code."""

from __future__ import annotations

import pytest

from tests.support.scripts import load_script

write_reference = load_script("write_reference")
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
