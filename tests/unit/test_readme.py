"""README is short, and says what its pages say."""

from __future__ import annotations

import re

from tests.support.documentation import DOCS, ROOT, SITE

README = (ROOT / "README.md").read_text()
MOST_LINES = 130


def test_the_readme_is_short():
    """Everything that is longer than a few lines has a page of its own."""
    assert len(README.splitlines()) <= MOST_LINES


def test_the_readme_links_to_every_page():
    """Every page is linked but the site's front page and the API, which only the site has."""
    linked = {(ROOT / link.partition("#")[0]) for link in re.findall(r"\]\((docs/[^)]+)\)", README)}

    assert {DOCS / "index.md", DOCS / "reference" / "api.md"} == set(SITE) - linked


def test_the_figures_match_the_performance_page():
    """The ratios of the benchmark table are in the table of the page about performance."""
    page = (DOCS / "guides" / "performance.md").read_text()
    rows = re.findall(r"^\| (none|lz4|zstd)\b[^|]*\| ([\d.]+x) \| ([\d.]+x)", README, re.MULTILINE)

    assert 3 == len(rows)
    assert rows == re.findall(
        r"^\| (none|lz4|zstd)\b[^|]*\| ([\d.]+x) \| ([\d.]+x)", page, re.MULTILINE
    )
