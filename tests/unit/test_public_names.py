"""The names that the package promises, and what it costs to ask for them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import spark_kafka_sink
import spark_kafka_sink.testing
from spark_kafka_sink import errors
from spark_kafka_sink.devbroker import DevBroker

SOURCE = Path(spark_kafka_sink.__file__)
HEAVY = ["asyncio", "lz4", "numba", "numpy", "pyarrow", "pyspark", "socket", "ssl", "zstandard"]


def imported_for_types(source: str) -> dict[str, str]:
    """List what a module imports for type checkers alone: the module of each name."""
    return {
        alias.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "collections.abc"
    }


def loaded_by(statement: str) -> set[str]:
    """List the heavy libraries, and modules of ours, that a statement loads in a new process."""
    code = (
        f"import json, sys; before = set(sys.modules); {statement}; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter and statement
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    return {
        name
        for name in json.loads(done.stdout)
        if name in HEAVY or name.startswith("spark_kafka_sink")
    }


@pytest.mark.parametrize("name", spark_kafka_sink.__all__)
def test_each_public_name_is_the_one_of_its_module(name):
    """A name of the package is the object that the module in the table has by that name."""
    module = import_module(spark_kafka_sink._MODULES[name])

    assert getattr(module, name) is getattr(spark_kafka_sink, name)


def test_type_checkers_see_the_names_that_the_table_has():
    """The table, `__all__` and the imports for type checkers agree."""
    assert spark_kafka_sink._MODULES == imported_for_types(SOURCE.read_text())
    assert list(spark_kafka_sink._MODULES) == spark_kafka_sink.__all__


@pytest.mark.parametrize("module", [spark_kafka_sink, spark_kafka_sink.testing])
def test_public_names_are_sorted(module):
    """`__all__` lists names in order, each once."""
    assert sorted(set(module.__all__)) == module.__all__


def test_every_error_is_public():
    """Users can catch each error of the package by a public name."""
    assert set() == {name for name, value in vars(errors).items() if isinstance(value, type)} - set(
        spark_kafka_sink.__all__
    )


def test_names_are_listed_before_they_are_imported():
    """`dir` lists each public name, for completion in a shell."""
    code = "import spark_kafka_sink as s; print(sorted({*s.__all__, '__version__'} - {*dir(s)}))"
    done = subprocess.run(  # noqa: S603 - our own line
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    assert "[]" == done.stdout.strip()


def test_an_unknown_name_is_an_attribute_error():
    """A name that there is not is refused as by any module."""
    with pytest.raises(AttributeError, match="'spark_kafka_sink' has no attribute 'KafkaSource'"):
        _ = spark_kafka_sink.KafkaSource


def test_importing_the_package_loads_nothing_else():
    """The package alone loads no module of its own, and no heavy library."""
    assert {"spark_kafka_sink"} == loaded_by("import spark_kafka_sink")


def test_importing_an_error_loads_the_errors_alone():
    """A name costs the import of its module, and no other name's."""
    assert {"spark_kafka_sink", "spark_kafka_sink.errors"} == loaded_by(
        "from spark_kafka_sink import KafkaError"
    )


@pytest.mark.parametrize("name", ["TopicPartition", "ProducerInterceptor", "MetricsReporter"])
def test_importing_a_value_loads_no_heavy_library(name):
    """Values and light plug-ins load neither numba nor pyarrow, network or Spark."""
    assert [] == sorted(loaded_by(f"from spark_kafka_sink import {name}") & set(HEAVY))


def test_the_embedded_broker_has_one_class():
    """The public door and the package of the broker have the same DevBroker."""
    assert DevBroker is spark_kafka_sink.testing.DevBroker
