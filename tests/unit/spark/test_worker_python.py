"""`KafkaSink.check` compares the Python that Spark starts with the one that calls it."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.spark.worker_python import compare_python, describe_python, differences
from tests.support.platforms.fake_frame import FakeFrame, FakeSession

HERE = {
    "executable": "/a/python",
    "Python": "3.11",
    "spark-kafka-sink": "0.1.0",
    "pyarrow": "26.0.1",
    "numba": "0.68.1",
}
CURE = (
    "start again (in a notebook: a new kernel) with PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON set "
    f"to {sys.executable}"
)


@pytest.fixture
def answer(monkeypatch):
    """Return a function that changes what Spark's Python says of itself."""

    def change(**others):
        metadata = {"python": json.dumps(describe_python() | others)}
        schema = StructType([StructField("python", StringType(), metadata=metadata)])
        monkeypatch.setattr("spark_kafka_sink.spark.data_source.python_schema", lambda: schema)

    return change


def check(devbroker):
    """Check a write of a column `value` to a topic of the broker."""
    devbroker.create_topic("events")
    df = FakeFrame(StructType([StructField("value", StringType())]))
    options = {"kafka.bootstrap.servers": devbroker.bootstrap_servers}
    return KafkaSink.check(df, options, topic="events")


def session_of(reader, master="local[2]"):
    """Return a classic session with this reader."""
    return SimpleNamespace(read=reader, sparkContext=SimpleNamespace(master=master))


def failing(error, master="local[2]"):
    """Return a session in which the look-up of a format raises an error."""

    def load():
        raise error

    reader = SimpleNamespace(load=load)
    reader.format = reader.option = lambda *_: reader
    return session_of(reader, master)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"Python": "3.12"}, "Python 3.12 (here it is 3.11)"),
        ({"spark-kafka-sink": "0.1.1"}, "spark-kafka-sink 0.1.1 (here it is 0.1.0)"),
        ({"pyarrow": "25.9.9"}, "pyarrow 25.9.9 (here it is 26.0.1)"),
        ({"numba": "0.69.0"}, "numba 0.69.0 (here it is 0.68.1)"),
        (
            {"Python": "3.13", "numba": "1.0.0"},
            "Python 3.13 (here it is 3.11), numba 1.0.0 (here it is 0.68.1)",
        ),
    ],
)
def test_a_difference_is_named_in_one_sentence(there, words):
    """The sentence has the path, what differs there and here, and what to do."""
    expected = (
        f"Spark starts /b/python, which has {words}: this check was made with /a/python; if a "
        f"write fails, {CURE}"
    )
    assert expected == differences(HERE, HERE | {"executable": "/b/python"} | there, CURE)


@pytest.mark.parametrize(
    "there",
    [
        {"executable": "/b/python"},
        {"pyarrow": "26.9.0"},
        {"numba": "0.68.9"},
        # It is installed without metadata.
        {"pyarrow": ""},
        # A later version of the package may say more.
        {"color": "blue"},
    ],
)
def test_what_does_not_matter_is_no_difference(there):
    """Another path, another minor version of a library, and unknown versions are no difference."""
    assert differences(HERE, HERE | there) is None
    assert differences(HERE | there, HERE) is None


def test_a_python_without_a_library_cannot_write():
    """A library that is missing where Spark writes is an error that names it and the path."""
    with pytest.raises(
        ConfigError, match="/b/python, which does not have pyarrow and numba, so a write would fail"
    ):
        differences(HERE, {"executable": "/b/python", "pyarrow": None, "numba": None})


def test_a_version_that_does_not_answer_is_another():
    """A version of the package that knows no such request gives a schema without an answer."""
    reader = SimpleNamespace(load=lambda: SimpleNamespace(schema=StructType([])))
    reader.format = reader.option = lambda *_: reader
    warning = compare_python(session_of(reader), "pykafka")
    assert "Spark starts a Python with another version of spark-kafka-sink" in warning


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: pykafka.\n at x",
            "Spark does not find this format, so a write would fail. Either the Python that it",
        ),
        (
            "Traceback:\nModuleNotFoundError: No module named 'spark_kafka_sink'\n",
            "the Python that Spark starts cannot import this package, so a write would fail",
        ),
        (
            "Traceback:\n[PYTHON_VERSION_MISMATCH] Python in worker has different version",
            "Spark starts another minor version of Python than this one, which cannot write with a",
        ),
    ],
)
def test_a_python_that_cannot_write_is_an_error(message, reason):
    """Where Spark cannot ask the data source, one sentence says why and what to do."""
    with pytest.raises(ConfigError) as caught:
        compare_python(failing(RuntimeError(message)), "pykafka")
    assert str(caught.value).startswith(reason)
    assert CURE in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_cure_on_a_cluster_is_a_path_of_all_its_machines():
    """The path of this Python may not be there on other machines, so it is not recommended."""
    with pytest.raises(ConfigError, match="that has such a Python on the driver and on every") as e:
        compare_python(failing(RuntimeError("DATA_SOURCE_NOT_FOUND"), "spark://host:7077"), "x")
    assert sys.executable not in str(e.value)


def test_the_cure_under_connect_is_on_the_server():
    """Variables of the client change nothing there, so none is named."""
    session = failing(RuntimeError("No module named 'spark_kafka_sink'"))
    of_connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    of_connect.read = session.read
    with pytest.raises(ConfigError, match=r"install the same versions in the server's Python$"):
        compare_python(of_connect, "pykafka")


def test_another_error_of_spark_is_raised_as_it_is():
    """What the comparison does not know is not reworded."""
    error = RuntimeError("the server is gone")
    with pytest.raises(RuntimeError) as caught:
        compare_python(failing(error), "pykafka")
    assert error is caught.value


def test_the_same_python_is_no_warning(devbroker, caplog):
    """A check in the Python that Spark starts warns of nothing."""
    with caplog.at_level(logging.WARNING):
        checked = check(devbroker)
    assert checked.warning is None
    assert "OK: 1 partition of events, column value" == repr(checked)
    assert [] == caplog.messages


def test_another_python_is_a_warning(devbroker, caplog, answer):
    """The result, its HTML and the log have the sentence; the check passes."""
    answer(executable="/<b>/python", Python="3.99")
    with caplog.at_level(logging.WARNING):
        checked = check(devbroker)
    assert "Spark starts /<b>/python, which has Python 3.99 (here it is" in checked.warning
    assert f"OK: 1 partition of events, column value; warning: {checked.warning}" == repr(checked)
    assert "/&lt;b&gt;/python" in checked._repr_html_()
    assert [f"Kafka: {checked.warning}"] == caplog.messages


def test_each_request_is_different():
    """Spark Connect caches plans, so no two requests are equal."""
    asked = []
    reader = SimpleNamespace(load=lambda: FakeSession().read.option("__python", "1").load())
    reader.format = lambda _: reader
    reader.option = lambda name, value: asked.append((name, value)) or reader
    for _ in range(2):
        assert compare_python(session_of(reader), "pykafka") is None
    assert [("__python",)] * 2 == [entry[:1] for entry in asked]
    assert 2 == len({value for _, value in asked})
