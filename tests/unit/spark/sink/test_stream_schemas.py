"""The schemas of streams, which outlive the process of the driver that has resolved them."""

from __future__ import annotations

import logging
import os

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.spark.sink.payload_writes import StreamSchemas
from tests.support.registry.fake_registry import TEXT, FakeRegistry, by_version, error

COLUMNS = StructType([StructField("value", StructType([StructField("id", LongType(), False)]))])
LATEST = "/subjects/orders-value/versions/latest"


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        fake.values[LATEST] = by_version(7, 3)
        yield fake


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Return the directory of the application, which Spark names to its Python processes."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/another")
    return tmp_path / "spark-kafka-sink-schemas"


def options(registry, **more):
    """Return the options of a stream with the latest schema."""
    return SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "topic": "orders",
            "valueFormat": "avro",
            "schema.registry.url": registry.url.replace("//", "//me:planted@"),
            "schema.registry.max.retries": "0",
            **more,
        }
    )


def schema_of(registry, query="t", **more):
    """Return the schema of values that a new process of the driver finds."""
    return StreamSchemas().of(query, COLUMNS, options(registry, **more), "orders")["value"]


def test_a_new_process_has_the_schemas_of_the_query(registry):
    """It asks no registry, which may be away, and another latest version changes nothing."""
    first = schema_of(registry)
    registry.values[LATEST] = by_version(8, 4)
    registry.asked.clear()
    assert (7, 3, TEXT) == (first.schema_id, first.version, first.text)
    assert first == schema_of(registry)
    assert [] == registry.asked


def test_a_query_that_is_started_again_has_the_latest_schema(registry, caplog):
    """Each time a schema is resolved, one line has its id."""
    caplog.set_level(logging.INFO, logger="spark_kafka_sink.report")
    schema_of(registry)
    schema_of(registry)
    registry.values[LATEST] = by_version(8, 4)
    assert 8 == schema_of(registry, query="u").schema_id
    assert [
        "Kafka: writes values by schema 7 (subject orders-value, version 3)",
        "Kafka: writes values by schema 8 (subject orders-value, version 4)",
    ] == caplog.messages


def test_a_registered_schema_may_reach_a_node_later(registry):
    """The node that is asked for its version is asked again until it knows it."""
    registry.script = [(200, {"is_compatible": True}), (200, {"id": 9}), error(404, 40403)]
    registry.values["/subjects/orders-value"] = by_version(9, 5)
    retries = {"schema.registry.max.retries": "1", "schema.registry.retries.wait.ms": "0"}
    found = schema_of(registry, autoRegisterSchemas="true", **retries)
    assert (9, 5) == (found.schema_id, found.version)


def test_a_schema_that_the_user_chose_is_not_printed(registry, caplog):
    """Its id is in the options."""
    caplog.set_level(logging.INFO, logger="spark_kafka_sink.report")
    registry.values["/schemas/ids/9"] = {"schema": TEXT}
    assert 9 == schema_of(registry, valueSchema="id:9").schema_id
    assert [] == caplog.messages


def test_a_process_remembers_without_files(registry, monkeypatch):
    """Outside of Spark there are no files."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    schemas = StreamSchemas()
    for _ in range(2):
        schemas.of("t", COLUMNS, options(registry), "orders")
    assert 1 == len(registry.asked)


@pytest.mark.parametrize("content", ["", "{", '{"value": 5}', '{"value": {"new": 1}}'])
def test_a_file_that_cannot_be_read_is_written_again(registry, directory, content, caplog):
    """A warning says why, and the schema is resolved."""
    schema_of(registry)
    path = directory / "t.json"
    kept = path.read_text("utf-8")
    path.write_text(content)
    assert 7 == schema_of(registry).schema_id
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("Kafka: the schemas of a stream cannot be read (")
    assert kept == path.read_text("utf-8")
    assert (0o700, 0o600) == (directory.stat().st_mode & 0o777, path.stat().st_mode & 0o777)


def test_a_directory_that_cannot_be_made_is_a_warning(registry, directory, caplog):
    """The stream goes on."""
    directory.write_text("a file")
    assert 7 == schema_of(registry).schema_id
    assert "cannot be kept" in caplog.messages[-1]


def test_files_of_old_queries_are_removed(registry, directory, monkeypatch):
    """Only the newest are kept."""
    monkeypatch.setattr("spark_kafka_sink.spark.sink.payload_writes._MOST_STREAMS", 2)
    for number in range(4):
        schema_of(registry, query=f"t{number}")
        # As files that were written long after each other.
        os.utime(directory / f"t{number}.json", ns=(number, number))
    assert ["t2.json", "t3.json"] == sorted(path.name for path in directory.iterdir())


def test_a_registry_that_is_away_when_a_stream_starts_is_named(registry):
    """The error has the URL without credentials, and the setting that limits the attempts."""
    registry.values.clear()
    registry.script = [(503, {})] * 2
    more = {"schema.registry.max.retries": "1", "schema.registry.retries.wait.ms": "0"}
    with pytest.raises(SchemaRegistryError) as caught:
        schema_of(registry, **more)
    message = str(caught.value)
    assert message.startswith(f"GET {registry.url}{LATEST} failed after 2 attempts (")
    assert "schema.registry.max.retries" in message
    assert "planted" not in message
