"""The layers of the package import only what lies below them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import spark_kafka_sink
from tests.support.import_rules import LAYERS, check_source

PACKAGE_DIRECTORY = Path(spark_kafka_sink.__file__).parent
MODULES = sorted(
    PurePosixPath(path.relative_to(PACKAGE_DIRECTORY).as_posix())
    for path in PACKAGE_DIRECTORY.rglob("*.py")
)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_what_its_layer_may(path):
    """Every module keeps to the import table."""
    source = (PACKAGE_DIRECTORY / path).read_text()
    assert [] == [str(violation) for violation in check_source(path, source)]


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_arrows_point_down_only(layer):
    """The import table itself has no cycle: no layer reaches itself through others."""
    reached: set[str] = set()
    frontier = set(LAYERS[layer])
    while frontier:
        reached |= frontier
        frontier = {below for above in frontier for below in LAYERS[above]} - reached
    assert layer not in reached


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("record/columns.py", "import spark_kafka_sink.producer.sender", "may not import"),
        ("record/columns.py", "from spark_kafka_sink.protocol import frame", "may not import"),
        ("record/columns.py", "from spark_kafka_sink import protocol", "may not import"),
        ("record/columns.py", "from ..protocol import frame", "may not import"),
        (
            "record/columns.py",
            "def f():\n    from spark_kafka_sink import network",
            "may not import",
        ),
        ("errors.py", "from spark_kafka_sink.model import Node", "may not import"),
        ("network/metadata.py", "from spark_kafka_sink import KafkaSink", "may not import"),
        ("devbroker/server.py", "from spark_kafka_sink.producer import sender", "may not import"),
        ("record/columns.py", "import pyarrow.compute", "may be imported only"),
        ("producer/partitioner.py", "import pyspark", "may be imported only"),
        ("producer/partitioner.py", "from asyncio import Future", "may be imported only"),
        ("protocol/frame.py", "import socket", "may be imported only"),
        ("spark/data_source.py", "import numba", "may be imported only"),
        ("record/columns.py", "import time", "may be imported only"),
        ("record/columns.py", "from datetime import datetime\ndatetime.now()", "clock"),
        ("record/columns.py", "import datetime\ndatetime.datetime.utcnow()", "clock"),
        ("elsewhere/module.py", "", "not in the import table"),
    ],
)
def test_a_planted_violation_is_found(path, source, expected):
    """The checker finds each kind of violation, wherever in a module it stands."""
    (violation,) = check_source(PurePosixPath(path), source)
    assert expected in violation.message


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("record/columns.py", "from spark_kafka_sink.record.kernel import append_rows"),
        ("record/columns.py", "from .kernel import append_rows"),
        ("record/arrow.py", "import pyarrow as pa"),
        ("producer/sender.py", "import asyncio\nfrom spark_kafka_sink.network import metadata"),
        ("producer/sender.py", "from spark_kafka_sink.errors import KafkaError"),
        ("spark/writers.py", "from pyspark.sql import datasource\nimport time"),
        (
            "producer/producer_batch.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
        ),
    ],
)
def test_what_the_table_allows_passes(path, source):
    """The checker finds nothing in imports that point down."""
    assert [] == check_source(PurePosixPath(path), source)
