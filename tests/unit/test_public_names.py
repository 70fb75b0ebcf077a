"""The public names of the package, and what importing each of them loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing
from spark_kafka_sink import errors
from spark_kafka_sink.devbroker import DevBroker

SOURCE = Path(spark_kafka_sink.__file__)
HEAVY = ["asyncio", "lz4", "numba", "numpy", "pyarrow", "pyspark", "socket", "ssl", "zstandard"]


def imported_for_types(source: str) -> dict[str, str]:
    """Return the names that a module imports only for type checkers, each with its module."""
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
    """Return the heavy libraries and our modules that a statement loads in a new process."""
    code = (
        f"import json, sys; before = set(sys.modules); {statement}; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter and statement
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600
    )
    return {
        name
        for name in json.loads(done.stdout)
        if name in HEAVY or name.startswith("spark_kafka_sink")
    }


@pytest.mark.parametrize("name", spark_kafka_sink.__all__)
def test_each_public_name_is_the_object_of_its_module(name):
    """Each name of the package is the same object as in the module that the table names."""
    module = import_module(spark_kafka_sink._MODULES[name])

    assert getattr(module, name) is getattr(spark_kafka_sink, name)


@pytest.mark.slow
def test_type_checkers_report_a_name_that_is_not_public():
    """A misspelled import is an error for them, as it is when it runs."""
    code = "from spark_kafka_sink import KafkaProducer, KafkaProducr"
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    [error] = [line for line in done.stdout.splitlines() if line.startswith("<string>")]
    assert 'has no attribute "KafkaProducr"' in error


def test_type_checkers_see_the_names_in_the_table():
    """The table, `__all__` and the imports for type checkers agree."""
    assert spark_kafka_sink._MODULES == imported_for_types(SOURCE.read_text())
    assert list(spark_kafka_sink._MODULES) == spark_kafka_sink.__all__


@pytest.mark.parametrize(
    "module", [spark_kafka_sink, spark_kafka_sink.testing, spark_kafka_sink.observability]
)
def test_public_names_are_sorted(module):
    """`__all__` is sorted and has no duplicates."""
    assert sorted(set(module.__all__)) == module.__all__


def test_every_error_is_public():
    """Users can catch each error of the package by a public name."""
    assert set() == {name for name, value in vars(errors).items() if isinstance(value, type)} - set(
        spark_kafka_sink.__all__
    )


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_names_the_package_that_exports_it(name):
    """Tracebacks and pickles do not depend on the module that defines an error."""
    error = getattr(errors, name)

    assert ("spark_kafka_sink.errors", name) == (error.__module__, error.__qualname__)


def test_names_are_listed_before_they_are_imported():
    """`dir` lists each public name, for completion in a shell."""
    code = "import spark_kafka_sink as s; print(sorted({*s.__all__, '__version__'} - {*dir(s)}))"
    done = subprocess.run(  # noqa: S603 - our own line
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )

    assert "[]" == done.stdout.strip()


@pytest.mark.parametrize(
    "module", [spark_kafka_sink, spark_kafka_sink.observability, spark_kafka_sink.testing]
)
def test_only_public_names_are_listed(module):
    """`dir` lists no import of the package itself, so that completion offers none."""
    assert module.__all__ == dir(module)


def without_pyspark(statement: str) -> subprocess.CompletedProcess[str]:
    """Run a statement in a new process that finds no PySpark."""
    code = f"import sys; sys.modules['pyspark'] = None; {statement}"
    return subprocess.run(  # noqa: S603 - our own interpreter and statement
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize(
    "statement",
    [
        "from spark_kafka_sink import KafkaSink",
        "import spark_kafka_sink; spark_kafka_sink.WriteSchema",
        "import pyspark_pykafka",
    ],
)
def test_without_pyspark_a_sentence_says_so(statement):
    """A name that needs PySpark is an error of one sentence, without an earlier error."""
    error = without_pyspark(statement).stderr

    assert error.endswith(
        "ModuleNotFoundError: the Spark data source needs PySpark 4.0 or newer, which is not "
        "installed: pip install 'pyspark>=4.1,<5' (KafkaProducer, read_arrow and the embedded "
        "broker need no PySpark)\n"
    )
    assert 1 == error.count("Traceback")


def test_an_old_pyspark_is_told_from_a_missing_one():
    """A PySpark without data sources in Python is reported as too old."""
    code = (
        "import types; from importlib.machinery import ModuleSpec; "
        "sys.modules['pyspark'] = old = types.ModuleType('pyspark'); "
        "old.__path__ = []; old.__spec__ = ModuleSpec('pyspark', None, is_package=True); "
        "sys.modules['pyspark.sql'] = sql = types.ModuleType('pyspark.sql'); "
        "sql.__path__ = []; from spark_kafka_sink import KafkaSink"
    )
    error = without_pyspark(code).stderr

    assert "needs PySpark 4.0 or newer, which is installed in an older version" in error


def test_without_pyspark_all_else_can_be_used():
    """Each name that `dir` lists then can be imported, and so can the broker and the plug-in."""
    done = without_pyspark(
        "import spark_kafka_sink as s; [getattr(s, name) for name in dir(s)]; "
        "import pytest_spark_kafka_sink, spark_kafka_sink.testing, spark_kafka_sink.transactions; "
        "print(sorted({*s.__all__} - {*dir(s)}))"
    )

    assert (
        "['CheckedWrite', 'KafkaSink', 'KafkaSource', 'WriteReport', 'WriteSchema']\n"
        == done.stdout
    )


def test_an_unknown_name_is_an_attribute_error():
    """An unknown name raises AttributeError with the usual message."""
    with pytest.raises(AttributeError, match="'spark_kafka_sink' has no attribute 'KafkaTable'"):
        _ = spark_kafka_sink.KafkaTable


def test_importing_the_package_loads_nothing_else():
    """Importing the package loads none of its modules and no heavy library."""
    assert {"spark_kafka_sink"} == loaded_by("import spark_kafka_sink")


def test_importing_an_error_loads_only_the_errors():
    """Importing a name loads its module and no other."""
    families = ("base_errors", "consumer_errors", "producer_errors")
    assert {
        "spark_kafka_sink",
        "spark_kafka_sink.errors",
        *(f"spark_kafka_sink.errors.{family}" for family in families),
    } == loaded_by("from spark_kafka_sink import KafkaError")


@pytest.mark.parametrize("name", ["TopicPartition", "ProducerInterceptor", "MetricsReporter"])
def test_importing_a_value_loads_no_heavy_library(name):
    """Values and light plug-in interfaces load no heavy library, network code or Spark."""
    assert [] == sorted(loaded_by(f"from spark_kafka_sink import {name}") & set(HEAVY))


def test_the_embedded_broker_has_one_class():
    """`spark_kafka_sink.testing` and `spark_kafka_sink.devbroker` export the same DevBroker."""
    assert DevBroker is spark_kafka_sink.testing.DevBroker
