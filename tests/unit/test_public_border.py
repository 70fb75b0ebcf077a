"""What users are shown uses public names alone: the examples, the docs and README."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))
#: What users may import.
DOORS = {
    "spark_kafka_sink",
    "spark_kafka_sink.observability",
    "spark_kafka_sink.testing",
    "pyspark_pykafka",
}
#: What they may run by `python -m`.
COMMANDS = {
    "spark_kafka_sink.config.options_table",
    "spark_kafka_sink.devbroker",
    "spark_kafka_sink.groups",
    "spark_kafka_sink.transactions",
    "spark_kafka_sink.warm_cache",
}
#: What the page of the API names in full.
NAMES = {
    f"{door.__name__}.{name}"
    for door in (spark_kafka_sink, spark_kafka_sink.observability, spark_kafka_sink.testing)
    for name in door.__all__
}
#: What they may configure, by `logging.getLogger`.
LOGGERS = {
    "spark_kafka_sink.progress",
    "spark_kafka_sink.report",
    "spark_kafka_sink.stream_events",
}
ROOTS = {door.partition(".")[0] for door in DOORS}


def deep_imports(source: str) -> list[str]:
    """List the modules of ours that a piece of Python imports, and users should not."""
    imported = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # A name that is not public may be a module.
            public = spark_kafka_sink.__all__ if node.module == "spark_kafka_sink" else None
            imported += [
                node.module
                if public is None or alias.name in public
                else f"{node.module}.{alias.name}"
                for alias in node.names
            ]
    return [name for name in imported if name.partition(".")[0] in ROOTS and name not in DOORS]


def deep_names(page: str) -> list[str]:
    """List the modules of ours that a page names, and users should not import or run."""
    return [
        match["name"]
        for match in re.finditer(r"(?P<m>-m )?\b(?P<name>spark_kafka_sink(?:\.\w+)+)", page)
        if match["name"] not in (COMMANDS if match["m"] else DOORS | NAMES | LOGGERS)
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_examples_import_only_public_names(path):
    """No example imports from deeper than the doors."""
    assert [] == deep_imports(path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_only_public_modules(path):
    """No page names a module, in text or in a code block, that users should not import or run."""
    assert [] == deep_names(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "from spark_kafka_sink.devbroker import DevBroker",
        "from spark_kafka_sink import devbroker",
        "import spark_kafka_sink.errors",
        "def f():\n    from spark_kafka_sink.model import Node",
    ],
)
def test_a_deep_import_is_found(source):
    """An import of anything but the doors is found wherever it stands."""
    assert 1 == len(deep_imports(source))


def test_a_deep_module_name_is_found():
    """A module that may only be run may not be named as one to import, and the reverse."""
    assert ["spark_kafka_sink.devbroker", "spark_kafka_sink.testing"] == deep_names(
        "`spark_kafka_sink.devbroker` and `python -m spark_kafka_sink.testing`"
    )
