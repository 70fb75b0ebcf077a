"""What notebooks show is escaped, bounded in size, and can be read without a style sheet."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink import display


def test_text_is_escaped():
    """No value can add markup, wherever it stands."""
    evil = '<script>alert("x")</script>&'
    page = display.block(
        evil,
        display.facts({evil: evil}),
        display.table([evil], [[evil]], count=1, things=(evil, evil)),
        display.table(["n"], [[evil]], count=3, things=(evil, evil)),
        notes=[evil],
    )

    assert "<script" not in page
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;" in page


def test_a_table_shows_its_first_rows_and_counts_the_others():
    """A table of 10,000 rows has no more lines than one of 21."""
    page = display.table(
        ["n"], ([number] for number in range(10_000)), count=10_000, things=("part", "parts")
    )

    assert display.MAX_ROWS == page.count("<td")
    assert "... and 9,980 more parts" in page
    assert "more part<" in display.table(["n"], [[1]] * 20, count=21, things=("part", "parts"))


def test_an_empty_table_has_only_its_headings():
    """A table without rows is not an error, and nothing is drawn."""
    page = display.table(["a", "b"], [], count=0, bars=1)

    assert "<td" not in page
    assert "more" not in page


def test_bars_are_relative_to_the_largest_value():
    """The largest value has a full bar, and values that are not above 0 have none."""
    page = display.table(["n"], [[200], [50], [0], [None], [float("nan")], [-5]], count=6, bars=0)

    assert ["100.0", "25.0"] == re.findall(r"width:([\d.]+)%\"></div>", page)


def test_bars_are_beside_their_numbers():
    """The column of bars is at the right of its numbers, so a narrow page shows both."""
    page = display.table(["n", "name"], [[5, "five"]], count=1, bars=0)

    assert ["5", "bar", "five"] == [
        "bar" if "<div" in cell else cell for cell in re.findall(r"<td[^>]*>(.*?)</td>", page)
    ]
    assert ["n", "", "name"] == re.findall(r"<th[^>]*>(.*?)</th>", page)


def test_facts_of_one_kind_are_aligned():
    """Numbers stand at the right with `aligned`, and at the left among facts of other kinds."""
    assert "text-align:right" not in display.facts({"tasks": 2})
    assert "text-align:right" in display.facts({"tasks": 2}, aligned=True)


def test_there_is_no_column_of_bars_without_bars():
    """A table whose numbers are all 0 or unknown has no empty column for their bars."""
    page = display.table(["n"], [[0], [None]], count=2, bars=0)

    assert (1, 2) == (page.count("<th"), page.count("<td"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "&ndash;"),
        (float("nan"), "&ndash;"),
        (float("inf"), "&ndash;"),
        (1234567, "1,234,567"),
        (1234.56, "1,234.6"),
        (0.3163, "0.32"),
        (0.0, "0"),
        (20_000.0, "20,000"),
        (True, "True"),
        ("a" * 500, "a" * 199 + "\N{HORIZONTAL ELLIPSIS}"),
    ],
)
def test_values_are_formatted(value, expected):
    """Numbers have separators, missing values are dashes, and long text is cut."""
    assert expected == display.text(value)


def test_facts_leave_out_what_is_not_known():
    """A fact whose value is None has no line."""
    page = display.facts({"topic": "orders", "columns": None})

    assert "topic" in page
    assert "columns" not in page


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (2e13, "20.0 TB"),
        (3e16, "30,000.0 TB"),
    ],
)
def test_sizes_have_a_suitable_unit(count, expected):
    """A number of bytes is shown in powers of 1000."""
    assert expected == display.size(count)


def test_words_agree_with_their_number():
    """One thing is singular, and long lists of names end with the number of the others."""
    assert "1 row" == display.counted(1, "row")
    assert "2,000 rows" == display.counted(2000, "row")
    assert "2 entries" == display.counted(2, "entry", "entries")
    assert "a, b" == display.listed(["a", "b"])
    assert "a, b and 2 more" == display.listed(["a", "b", "c", "d"], most=2)
