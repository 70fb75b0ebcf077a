import re
from pathlib import Path

import pytest

from spark_kafka_sink.config.options_table import TABLES, options_table
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("table", TABLES)
def test_the_readme_has_the_table_of_options_that_the_code_has(table):
    """README's tables are those that the definitions print, to the letter."""
    found = re.search(
        rf"<!-- options: {table} -->\n(.*?)<!-- end -->", README.read_text(), re.DOTALL
    )
    assert found is not None
    assert options_table(table) == found[1]


@pytest.mark.parametrize("name", ["compression.type", "batch.size"])
def test_the_readme_names_the_defaults_that_differ_from_javas(name):
    """The table of differing defaults gives the default that the code has."""
    row = re.search(rf"\| `{re.escape(name)}` \| \w+ \| (\w+)", README.read_text())
    assert row is not None
    [default] = [key.default for key in PRODUCER_CONFIG_DEF if key.name == name]
    assert str(default) == row[1]
