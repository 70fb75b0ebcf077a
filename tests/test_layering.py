"""The layers of the package import only from the layers below them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import spark_kafka_sink
from tests.support.import_rules import (
    LAYERS,
    MOST_LINES,
    ROOMS,
    TOP,
    check_source,
    long_modules,
    parts_of_one_module,
)

REPOSITORY = Path(__file__).parents[1]
PACKAGE_DIRECTORY = Path(spark_kafka_sink.__file__).parent
MODULES = sorted(
    PurePosixPath(path.relative_to(PACKAGE_DIRECTORY).as_posix())
    # And the stub, which imports the public names.
    for path in PACKAGE_DIRECTORY.rglob("*.py*")
    if path.suffix in {".py", ".pyi"}
)


def test_a_module_imports_only_what_its_layer_may():
    """Every module follows the import table."""
    assert MODULES
    assert [] == [
        str(violation)
        for path in MODULES
        for violation in check_source(path, (PACKAGE_DIRECTORY / path).read_text())
    ]


@pytest.mark.parametrize("layer", sorted(ROOMS))
def test_arrows_between_rooms_point_down_only(layer):
    """A room imports only those rooms of its layer that come before it in the table."""
    above: set[str] = set()
    for room, imported in ROOMS[layer].items():
        assert set(imported) <= above
        above.add(room)


@pytest.mark.parametrize("layer", sorted(ROOMS))
def test_each_room_is_there(layer):
    """Every folder or module that the table names exists."""
    for room in set(ROOMS[layer]) - {TOP}:
        place = PACKAGE_DIRECTORY / layer / room
        assert place.is_dir() or place.with_suffix(".py").is_file()


@pytest.mark.parametrize("root", ["spark_kafka_sink", "tests", "scripts", "benchmarks", "examples"])
def test_no_module_is_long(root):
    """Modules that have grown too long are split by topic."""
    modules = {
        PurePosixPath(path.relative_to(REPOSITORY).as_posix()): path.read_text()
        for path in (REPOSITORY / root).rglob("*.py")
    }
    assert modules
    assert [] == long_modules(modules)


def test_a_long_module_is_found():
    """One line too many is found, except in a kernel."""
    lines = "pass\n" * MOST_LINES
    long = lines + "pass"
    kernel = PurePosixPath("spark_kafka_sink/record/kernel/kernel.py")
    modules = {PurePosixPath("a/fits.py"): lines, PurePosixPath("a/long.py"): long, kernel: long}
    assert ["a/long.py"] == long_modules(modules)


def test_no_short_module_is_a_part_of_another():
    """What only one module of the same room imports, and is short, stands in that module."""
    modules = {path: (PACKAGE_DIRECTORY / path).read_text() for path in MODULES}
    assert [] == parts_of_one_module(modules)


@pytest.mark.parametrize(
    ("importers", "expected"),
    [
        ({"network/a.py": "{}"}, ["network/part.py"]),
        ({"network/a.py": "if TYPE_CHECKING:\n    {}"}, []),
        ({"network/a.py": "def load():\n    {}"}, []),
        ({"network/connection/a.py": "{}"}, []),
        ({"network/a.py": "{}", "network/b.py": "{}"}, []),
        ({}, []),
    ],
    ids=["one", "for types", "late", "another room", "two", "none"],
)
@pytest.mark.parametrize(
    "line",
    [
        "from spark_kafka_sink.network.part import f",
        "from spark_kafka_sink.network import part",
        "import spark_kafka_sink.network.part",
    ],
)
def test_a_short_module_with_one_importer_is_found(importers, expected, line):
    """Only an import at the top of a module of the same room makes it a part of that module."""
    modules = {PurePosixPath(name): text.format(line) for name, text in importers.items()}
    short = {PurePosixPath("network/part.py"): "pass\n" * 99}
    assert expected == parts_of_one_module({**modules, **short})
    long = {PurePosixPath("network/part.py"): "pass\n" * 100}
    assert [] == parts_of_one_module({**modules, **long})


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_arrows_point_down_only(layer):
    """The import table has no cycle: no layer imports itself through others."""
    reached: set[str] = set()
    frontier = {layer}
    while frontier:
        below = {name for above in frontier for name in LAYERS[above]}
        frontier = {name.partition(".")[0] for name in below} - reached
        reached |= frontier
    assert layer not in reached


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("record/columns.py", "import spark_kafka_sink.producer.sending.sender", "may not import"),
        ("record/columns.py", "from spark_kafka_sink.protocol import frame", "may not import"),
        ("record/columns.py", "from spark_kafka_sink import protocol", "may not import"),
        ("record/columns.py", "from ..protocol import frame", "may not import"),
        (
            "record/columns.py",
            "def f():\n    from spark_kafka_sink import network",
            "may not import",
        ),
        ("errors.py", "from spark_kafka_sink.model import Node", "may not import"),
        ("spark/data_source.py", "from spark_kafka_sink.protocol import frame", "may not import"),
        ("network/metadata.py", "from spark_kafka_sink import KafkaSink", "may not import"),
        (
            "devbroker/net/server.py",
            "from spark_kafka_sink.producer.sending import sender",
            "may not import",
        ),
        ("record/columns.py", "import pyarrow.compute", "may be imported only"),
        ("producer/records/partitioner.py", "import pyspark", "may be imported only"),
        ("producer/records/partitioner.py", "from asyncio import Future", "may be imported only"),
        ("protocol/frame.py", "import socket", "may be imported only"),
        ("spark/data_source.py", "import numba", "may be imported only"),
        ("record/columns.py", "import time", "may be imported only"),
        ("record/columns.py", "from datetime import datetime\ndatetime.now()", "clock"),
        ("record/columns.py", "import datetime\ndatetime.datetime.utcnow()", "clock"),
        ("consumer/subscription/m.py", "import datetime\ndatetime.datetime.now()", "clock"),
        ("consumer/subscription/m.py", "import asyncio", "may be imported only"),
        ("consumer/subscription/m.py", "import time", "may be imported only"),
        ("consumer/group/m.py", "import time", "may be imported only"),
        ("consumer/group/m.py", "import datetime\ndatetime.datetime.now()", "clock"),
        (
            "consumer/subscription/m.py",
            "import spark_kafka_sink.consumer.group.m",
            "may not import",
        ),
        ("elsewhere/module.py", "", "not in the import table"),
        ("producer/elsewhere/module.py", "", "not in the import table"),
        ("config/elsewhere/module.py", "", "not in the import table"),
        (
            "producer/batch/producer_batch.py",
            "from spark_kafka_sink.producer.sending import sender, produce_requests",
            "room 'batch' of 'producer' may not import 'sending'",
        ),
        (
            "producer/batch/producer_batch.py",
            "from spark_kafka_sink.producer import producer_core",
            "room 'batch' of 'producer' may not import '(top)'",
        ),
        (
            "producer/batch/producer_batch.py",
            "from ..sending.sender import Sender",
            "may not import",
        ),
        (
            "producer/batch/producer_batch.py",
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                "    from spark_kafka_sink.spark import data_source"
            ),
            "layer 'producer' may not import 'spark'",
        ),
        (
            "record/columns.py",
            "from spark_kafka_sink.record.kernel.kernel import append_rows",
            "may not import 'kernel'",
        ),
        (
            "devbroker/handlers/fetch.py",
            "from spark_kafka_sink.devbroker import broker",
            "may not import 'broker'",
        ),
        (
            "devbroker/log/files.py",
            "import spark_kafka_sink.devbroker.groups.group_offsets",
            "room 'log' of 'devbroker' may not import 'groups'",
        ),
    ],
)
def test_a_planted_violation_is_found(path, source, expected):
    """The checker finds each kind of violation, anywhere in a module."""
    (violation,) = check_source(PurePosixPath(path), source)
    assert expected in violation.message


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("record/kernel/kernel.py", "from spark_kafka_sink.record.columns import RecordColumns"),
        ("record/decode.py", "from spark_kafka_sink.record.default_record import decode_varint"),
        ("record/decode.py", "from .varint import decode_varint"),
        ("devbroker/net/server.py", "from spark_kafka_sink.devbroker import broker"),
        ("record/arrow/record_columns.py", "import pyarrow as pa"),
        (
            "producer/sending/sender.py",
            "import asyncio\nfrom spark_kafka_sink.network import metadata",
        ),
        ("producer/sending/sender.py", "from spark_kafka_sink.errors import KafkaError"),
        ("spark/data_source.py", "from spark_kafka_sink.protocol.error_codes import ErrorCode"),
        ("spark/data_source.py", "from spark_kafka_sink.protocol import error_codes"),
        ("spark/sink/writers.py", "from pyspark.sql import datasource\nimport time"),
        (
            "producer/batch/producer_batch.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
        ),
        (
            "producer/batch/producer_batch.py",
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                "    from spark_kafka_sink.producer.sending.sender import Sender"
            ),
        ),
    ],
)
def test_what_the_table_allows_passes(path, source):
    """The checker reports no violation for imports that the table allows."""
    assert [] == check_source(PurePosixPath(path), source)
