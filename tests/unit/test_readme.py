"""README is short, and says what its pages say."""

from __future__ import annotations

import re

from tests.support.documentation import DOCS, ROOT, SITE
from tests.support.scripts import load_script

README = (ROOT / "README.md").read_text()
MOST_LINES = 130


def test_the_readme_is_short():
    """Everything that is longer than a few lines has a page of its own."""
    assert len(README.splitlines()) <= MOST_LINES


def test_the_readme_links_to_every_page():
    """All pages are linked but the site's front page, the API, and those that an overview links."""
    linked = {(ROOT / link.partition("#")[0]) for link in re.findall(r"\]\((docs/[^)]+)\)", README)}

    overviews = {page.parent for page in linked if page.name == "index.md"}
    missing = {page for page in set(SITE) - linked if page.parent not in overviews}

    assert {DOCS / "index.md", DOCS / "reference" / "api.md"} == missing


def test_the_figures_match_the_performance_page():
    """Each ratio of README's table of speed is in a table of the page about performance."""
    page = (DOCS / "guides" / "performance.md").read_text()
    writing, reading = page.split("## Reading", 1)
    written = {row[0].split()[0]: row[1] for row in _rows(writing)}
    read = {(row[0], row[1]): row[2] for row in _rows(reading)}

    assert [
        [codec, written[codec], read[codec, "all"], read.get((codec, "`value`"), "")]
        for codec in ("none", "lz4", "zstd")
    ] == _rows(README)


def test_the_chart_shows_the_figures_of_the_performance_page():
    """The chart of the site's home page is the one that `scripts/speed_chart.py` draws."""
    speed_chart = load_script("speed_chart")
    bars = speed_chart.figures((DOCS / "guides" / "performance.md").read_text())

    assert 6 == len(bars)
    assert speed_chart.chart(bars) == (DOCS / "speed.svg").read_text()


def _rows(text: str) -> list[list[str]]:
    """Return the cells of each line of a table whose first cell is a codec."""
    lines = re.findall(r"^\|( (?:none|lz4|zstd)\b.*)\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]
