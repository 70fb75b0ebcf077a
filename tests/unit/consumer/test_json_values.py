"""Keys and values as JSON in `send_arrow`, `read_arrow` and `poll_arrow`."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_kafka_sink.consumer.read_arrow import read_arrow
from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, PayloadError, SchemaError
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.consumer.embedded_consuming import PATIENCE

DDL = "id bigint, tags array<string>"
ROWS = [{"id": 2**53 + 1, "tags": ["a", None]}, {"id": None, "tags": []}, None]
JSON = {"value_format": "json"}


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 1}, schema_registry=True) as broker:
        yield broker


def send(broker, table, **options):
    """Write a table."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send_arrow(table, topic="orders", **options).result(PATIENCE)


def read(broker, **options):
    """Return the topic as a table."""
    formats = {**JSON, **options}
    return read_arrow(broker.bootstrap_servers, "orders", **formats).read_all()


def test_a_table_is_written_and_read(broker):
    """The payloads are plain JSON, and a null is a tombstone."""
    send(broker, pa.table({"value": ROWS}), **JSON)
    raw = read(broker, value_format=None).column("value").to_pylist()
    assert [b'{"id":9007199254740993,"tags":["a",null]}', b'{"tags":[]}', None] == raw
    assert ROWS == read(broker, value_schema=DDL).column("value").to_pylist()
    part = read(broker, value_schema=json.dumps({"type": "struct", "fields": []}))
    assert [{}, {}, None] == part.column("value").to_pylist()


def test_keys_in_avro_may_stand_beside_values_in_json(broker):
    """The registry has the schema of the keys only."""
    registry = {"url": broker.schema_registry_url}
    formats = {"key_format": "avro", "schema_registry": registry, **JSON}
    table = pa.table({"key": ["a", "b", "c"], "value": ROWS})
    send(broker, table, **formats, format_options={"autoRegisterSchemas": True})
    typed = read(broker, **formats, value_schema=DDL)
    assert ["a", "b", "c"] == typed.column("key").to_pylist()
    assert ROWS == typed.column("value").to_pylist()


def test_a_malformed_payload_fails_a_read_or_becomes_null(broker):
    """Whatever its headers say: JSON needs no schema to be read."""
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for value in (b'{"id":1}', b'{"id":"1"}', None):
            producer.send("orders", value, None, [("__value_schema_id", b"\1")])
    with pytest.raises(PayloadError, match=r"offset 1, value\.id: .* instead of an integer"):
        read(broker, value_schema=DDL)
    table = read(broker, value_schema=DDL, format_options={"onDecodeError": "null"})
    assert [{"id": 1, "tags": None}, None, None] == table.column("value").to_pylist()
    assert [None, "value.id: '\"1\"}' instead of an integer", None] == table.column(
        "decodeError"
    ).to_pylist()
    assert [None, b'{"id":"1"}', None] == table.column("rawValue").to_pylist()


def test_what_cannot_be_is_refused_before_anything_is_read_or_written(broker):
    """A read without a type, a type that cannot be parsed, a column without JSON."""
    with pytest.raises(ConfigError, match="valueFormat=json needs the type of the column"):
        read(broker)
    with pytest.raises(SchemaError, match="instead of a type that JSON is read as"):
        read(broker, value_schema="id uuid")
    with pytest.raises(SchemaError, match="column 'value' is string; to_json takes a struct"):
        send(broker, pa.table({"value": ["text"]}), **JSON)
