import re
from pathlib import Path

import pytest

from spark_kafka_sink import errors
from spark_kafka_sink.config.options_table import TABLES, options_table
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.model import TopicPartition

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
#: The address in the snippets, which readers replace.
ADDRESS = "localhost:9092"
PRODUCER_SECTION = "KafkaProducer, without Spark"


def _section(title: str) -> str:
    """Return the text under a heading of the second level."""
    _, _, rest = README.read_text().partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def _snippets(title: str) -> list[str]:
    """Return the Python snippets of a section."""
    return re.findall(r"```python\n(.*?)```", _section(title), re.DOTALL)


@pytest.mark.parametrize("table", TABLES)
def test_the_readme_has_the_table_of_options_that_the_code_has(table):
    """The tables of the README are exactly those generated from the definitions."""
    found = re.search(
        rf"<!-- options: {table} -->\n(.*?)<!-- end -->", README.read_text(), re.DOTALL
    )
    assert found is not None
    assert options_table(table) == found[1]


@pytest.mark.parametrize("name", ["compression.type", "batch.size"])
def test_the_readme_names_the_defaults_that_differ_from_javas(name):
    """The table of different defaults has the defaults of the code."""
    row = re.search(rf"\| `{re.escape(name)}` \| \w+ \| (\w+)", README.read_text())
    assert row is not None
    [default] = [key.default for key in PRODUCER_CONFIG_DEF if key.name == name]
    assert str(default) == row[1]


@pytest.mark.parametrize("snippet", _snippets(PRODUCER_SECTION))
def test_the_snippets_of_the_producer_run_as_they_stand(snippet, capsys):
    """Each snippet runs on its own with a real address, and its record is in the topic."""
    with DevBroker() as broker:
        assert ADDRESS in snippet
        exec(snippet.replace(ADDRESS, broker.bootstrap_servers), {})  # noqa: S102 - our own text

        # One record, followed by a marker if there was a transaction.
        end = broker.call(
            lambda it: it.cluster.partition(TopicPartition("events", 0)).log.log_end_offset
        )
        assert (2 if "transactional.id" in snippet else 1) == end
        assert ("print(" in snippet) == bool(capsys.readouterr().out)


def test_the_section_of_the_producer_has_a_snippet_for_each_way_to_use_it():
    """Sending, transactions and metrics have a snippet each."""
    found = [
        [word for word in ("future.result", "commit_transaction", "metrics()") if word in snippet]
        for snippet in _snippets(PRODUCER_SECTION)
    ]

    assert [["future.result"], ["commit_transaction"], ["metrics()"]] == found


def test_the_snippet_of_the_embedded_broker_runs_as_it_stands(capsys):
    """The snippet starts a broker and prints its address."""
    [snippet] = _snippets("The embedded broker")

    exec(snippet, {})  # noqa: S102 - our own text

    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", capsys.readouterr().out)


def test_the_readme_names_errors_that_there_are():
    """Each error in the table is one of the package, or Python's for a wrong argument."""
    _, _, table = _section(PRODUCER_SECTION).partition("### Errors")
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in row.split("`")[1::2]
    }

    assert {"TypeError", "ValueError"} == {name for name in named if not hasattr(errors, name)}


def test_every_file_that_the_readme_names_is_there():
    """Linked files of the repository and modules of the file map exist."""
    text = README.read_text()
    links = re.findall(r"\]\(([\w./]+)\)", text)
    _, _, file_map = text.partition("## For who reads the code")
    modules = re.findall(r"`(\w+\.py)`", file_map)
    known = {path.name for path in (ROOT / "spark_kafka_sink").rglob("*.py")}

    assert [] == [link for link in links if not (ROOT / link).exists()]
    assert set() == set(modules) - known - {"test_layering.py"}
