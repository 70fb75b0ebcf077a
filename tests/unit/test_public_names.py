"""The public names of the package, and what importing each of them loads."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from zipfile import ZipFile

import pytest

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing
from spark_kafka_sink import errors
from spark_kafka_sink.devbroker import DevBroker

SOURCE = Path(spark_kafka_sink.__file__)
HEAVY = ["asyncio", "lz4", "numba", "numpy", "pyarrow", "pyspark", "socket", "ssl", "zstandard"]


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


def test_type_checkers_see_each_name_as_public():
    """A stub exports what it imports `as` the same name, and has nothing else."""
    stub = ast.parse(SOURCE.with_suffix(".pyi").read_text())
    aliases = [alias for statement in stub.body for alias in statement.names]
    assert [(name, name) for name in spark_kafka_sink.__all__] == sorted(
        (alias.name, alias.asname) for alias in aliases
    )


def test_the_package_can_be_imported_from_a_zip_file(tmp_path):
    """Spark ships packages to its workers in zip files (--py-files)."""
    archive = tmp_path / "package.zip"
    with ZipFile(archive, "w") as zipped:
        for path in SOURCE.parent.rglob("*.py*"):
            if path.suffix in {".py", ".pyi"}:
                zipped.write(path, path.relative_to(SOURCE.parents[1]))
    code = "import spark_kafka_sink as s; print(s.__file__, s.TopicPartition('t', 0))"
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"{archive}/spark_kafka_sink/__init__.py t-0" == done.stdout.strip()


def test_a_package_without_its_stub_says_so(tmp_path):
    """Without the stub, no public name is known."""
    (tmp_path / "spark_kafka_sink").mkdir()
    (tmp_path / "spark_kafka_sink" / "__init__.py").write_text(SOURCE.read_text())
    done = subprocess.run(
        [sys.executable, "-c", "import spark_kafka_sink"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "was installed without __init__.pyi: install it again" in done.stderr


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


@pytest.mark.parametrize(
    "name", [name for name, value in vars(errors).items() if isinstance(value, type)]
)
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
        "['BadRow', 'BadRows', 'CheckedWrite', 'DryRun', 'KafkaSink', 'KafkaSource', "
        "'SizeSummary', 'WriteReport', 'WriteSchema']\n" == done.stdout
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
    assert {"spark_kafka_sink", "spark_kafka_sink.errors"} == loaded_by(
        "from spark_kafka_sink import KafkaError"
    )


@pytest.mark.parametrize("name", ["TopicPartition", "ProducerInterceptor", "MetricsReporter"])
def test_importing_a_value_loads_no_heavy_library(name):
    """Values and light plug-in interfaces load no heavy library, network code or Spark."""
    assert [] == sorted(loaded_by(f"from spark_kafka_sink import {name}") & set(HEAVY))


def test_the_embedded_broker_has_one_class():
    """`spark_kafka_sink.testing` and `spark_kafka_sink.devbroker` export the same DevBroker."""
    assert DevBroker is spark_kafka_sink.testing.DevBroker
