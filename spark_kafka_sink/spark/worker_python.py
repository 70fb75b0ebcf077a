"""The Python that Spark starts for this package, compared with the one that calls it.

Spark plans a write, and runs its tasks, with the Python that PYSPARK_DRIVER_PYTHON or else
PYSPARK_PYTHON named when the session started, or with `python3`. It asks that Python for the schema
of a data source, on the driver's machine and without a job, so a request for a schema shows what a
write will run with. The executors of other machines start the same path, and are not asked.
"""

from __future__ import annotations

import json
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The option of a read that asks which Python Spark starts.
REQUEST_OPTION: Final = "__python"
_ANSWER: Final = "python"
#: What Spark says where its Python cannot import the package, if the class was registered, and
#: otherwise; the second has other causes, too.
_NO_PACKAGE: Final = "No module named 'spark_kafka_sink'"
_NOT_FOUND: Final = "DATA_SOURCE_NOT_FOUND"
#: What it says where `spark.dataSource.register` was called in another minor version of Python.
_MISMATCH: Final = "PYTHON_VERSION_MISMATCH"
#: What a write needs besides the package and PySpark.
_LIBRARIES: Final = ("pyarrow", "numba")


def describe_python() -> dict[str, Any]:
    """Return the path and version of this Python, and the versions of what a write needs.

    A library without metadata has the version "", one that is missing None.
    """
    return {
        "executable": sys.executable,
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "spark-kafka-sink": __version__,
        **{name: _installed(name) for name in _LIBRARIES},
    }


def python_schema() -> StructType:
    """Return the answer to a request (in the Python that Spark has started)."""
    answer = {_ANSWER: json.dumps(describe_python())}
    return StructType([StructField(_ANSWER, StringType(), nullable=True, metadata=answer)])


def compare_python(session: SparkSession, data_source: str) -> str | None:
    """Return how the Python that Spark starts differs from this one, in a sentence, or None.

    Raises ConfigError if a write could not run there.
    """
    # Each request is different, since Spark Connect caches plans.
    reader = session.read.format(data_source).option(REQUEST_OPTION, uuid.uuid4().hex)
    cure = _cure(session)
    try:
        answer = reader.load().schema
    except Exception as error:
        # Classic Spark may raise an error of Py4J, which has no name for the condition.
        reason = _reason(str(error), cure)
        if reason is None:
            raise
        raise ConfigError(reason) from None
    metadata = answer[_ANSWER].metadata if _ANSWER in answer.names else {}
    return differences(describe_python(), json.loads(metadata.get(_ANSWER, "{}")), cure)


def differences(
    here: dict[str, Any], there: dict[str, Any], cure: str = "install the same versions"
) -> str | None:
    """Return how Spark's Python differs from this one, in a sentence that ends with the cure.

    Without a difference, return None. `there` is empty if an older version of the package has
    answered. Raises ConfigError if a library is missing there.

    >>> here = {"executable": "/a/python", "Python": "3.11", "pyarrow": "26.0.1"}
    >>> differences(here, {"executable": "/b/python", "Python": "3.11", "pyarrow": "26.1.0"})
    >>> differences(here, {"executable": "/b/python", "Python": "3.12", "pyarrow": "26.1.0"})[:61]
    'Spark starts /b/python, which has Python 3.12 (here it is 3.1'
    """
    if not there:
        return (
            "Spark starts a Python with another version of spark-kafka-sink, which does not say "
            f"which (here it is {here['spark-kafka-sink']}): install the same version in both"
        )
    executable = there["executable"]
    missing = [name for name in _LIBRARIES if name in there and there[name] is None]
    if missing:
        raise ConfigError(
            f"Spark starts {executable}, which does not have {' and '.join(missing)}, so a write "
            f"would fail: install spark-kafka-sink there with its dependencies, or {cure}"
        )
    differing = [
        f"{name} {there[name]} (here it is {here[name]})"
        for name in here
        if name != "executable"
        and here[name]
        and there.get(name)
        and _series(name, here[name]) != _series(name, there[name])
    ]
    if not differing:
        return None
    return (
        f"Spark starts {executable}, which has {', '.join(differing)}: this check was made with "
        f"{here['executable']}; if a write fails, {cure}"
    )


def _installed(name: str) -> str | None:
    if find_spec(name) is None:
        return None
    try:
        return version(name) or ""
    except PackageNotFoundError:
        return ""


def _series(name: str, full: str) -> str:
    """Return the part of a version that should be equal: of a library, the major one, or 0.x."""
    if name not in _LIBRARIES:
        return full
    major, _, rest = full.partition(".")
    return f"0.{rest.partition('.')[0]}" if major == "0" else major


def _cure(session: SparkSession) -> str:
    """Return how to let Spark start a suitable Python: it depends on where Spark runs."""
    if type(session).__module__.startswith("pyspark.sql.connect."):
        # Variables of the client change nothing on the server.
        return "install the same versions in the server's Python"
    if str(session.sparkContext.master).startswith("local"):
        named, python = "PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON", sys.executable
    else:
        named = "PYSPARK_PYTHON"
        python = "a path that has such a Python on the driver and on every worker"
    # The JVM keeps its environment, also for the next session.
    return f"start again (in a notebook: a new kernel) with {named} set to {python}"


def _reason(message: str, cure: str) -> str | None:
    """Return in a sentence why Spark could not ask the data source, or None if it is unknown."""
    if _NO_PACKAGE in message:
        return (
            "the Python that Spark starts cannot import this package, so a write would fail: "
            f"install it there, or {cure}"
        )
    if _NOT_FOUND in message:
        return (
            "Spark does not find this format, so a write would fail. Either the Python that it "
            f"starts lacks the package or cannot run: install it there, or {cure}. Or this engine "
            "needs spark.dataSource.register(KafkaSink) first"
        )
    if _MISMATCH in message:
        return (
            "Spark starts another minor version of Python than this one, which cannot write with "
            "a class that was registered here, so a write would fail: leave out "
            f"spark.dataSource.register if Spark finds the format without it, or {cure}"
        )
    return None
