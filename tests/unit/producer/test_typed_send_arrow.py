"""Tables with keys and values as Avro, through the producer to the embedded broker."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import ConfigError, PayloadError, SchemaError, SchemaRegistryError
from spark_kafka_sink.formats import payload_encoder
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from spark_kafka_sink.registry.rest_service import SUBJECT_NOT_FOUND
from spark_kafka_sink.testing import AnswerStatus
from tests.support.producer.sending import records_of

TIMEOUT = 120
PLACE = TopicPartition("orders", 0)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
    ],
}
ROWS = [{"id": 1, "item": "book"}, {"id": 2, "item": None}]
TYPE = pa.struct([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])
REGISTER = {"autoRegisterSchemas": True}


@pytest.fixture
def broker():
    with DevBroker(topics={"orders": 1, "others": 1}, schema_registry=True) as broker:
        yield broker


@pytest.fixture
def producer(broker):
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        yield producer


@pytest.fixture
def avro(broker):
    """Return the arguments of a call that writes Avro."""
    registry = {"url": broker.schema_registry_url, "max.retries": 0}
    return {"value_format": "avro", "schema_registry": registry}


def decoded(payload, schema=ORDER):
    """Return the id and the row of a payload, by another library."""
    value = fastavro.schemaless_reader(io.BytesIO(payload[5:]), schema)
    return int.from_bytes(payload[1:5], "big"), value


def payloads(broker, topic="orders"):
    """Return the keys and values of a topic with one partition."""
    return [(record.key, record.value) for record in records_of(broker, topic)]


def test_values_are_written_by_a_schema_that_is_registered(broker, producer, avro):
    """The rows have the id of the schema, which the future names; a null is a tombstone."""
    table = pa.table({"key": ["a", "b", "c"], "value": pa.array([*ROWS, None], TYPE)})
    future = producer.send_arrow(table, topic="orders", **avro, format_options=REGISTER)
    assert 3 == future.result(TIMEOUT)[PLACE].records
    assert ("values by schema 1 (subject orders-value, version 1)",) == future.schemas
    (first_key, first), (_, second), (_, third) = payloads(broker)
    assert b"a" == first_key
    assert [(1, ROWS[0]), (1, ROWS[1])] == [decoded(first), decoded(second)]
    assert third is None


def test_both_sides_may_have_formats_without_a_registry(broker, producer):
    """The schemas are texts then, the payloads have no frame, and there is nothing to report."""
    table = pa.table({"key": [1, 2], "value": ROWS})
    future = producer.send_arrow(
        table,
        topic="orders",
        key_format="avro",
        key_schema='"long"',
        value_format="avro",
        value_schema=json.dumps(ORDER),
    )
    future.result(TIMEOUT)
    assert () == future.schemas
    [(key, value), _] = payloads(broker)
    assert b"\x02" == key
    assert ROWS[0] == fastavro.schemaless_reader(io.BytesIO(value), ORDER)


def test_a_schema_is_looked_up_once(broker, producer, avro):
    """Further calls with the same arguments and types ask nothing, those with others do."""
    table = pa.table({"value": ROWS})
    latest, registered = (
        broker.schema_registry.on(f"{request}", lambda *_: None)
        for request in (
            "GET /subjects/{subject}/versions/latest",
            "POST /subjects/{subject}/versions",
        )
    )
    for _ in range(2):
        producer.send_arrow(table, topic="orders", **avro, format_options=REGISTER).result(TIMEOUT)
    assert (0, 1) == (latest.seen, registered.seen)
    for _ in range(3):
        producer.send_arrow(table, topic="orders", **avro).result(TIMEOUT)
    assert (1, 1) == (latest.seen, registered.seen)
    narrow = pa.table({"value": [{"id": 1}]})
    producer.send_arrow(narrow, topic="orders", **avro).result(TIMEOUT)
    assert (2, 1) == (latest.seen, registered.seen)


def test_a_failed_look_up_is_not_kept(broker, producer, avro):
    """The next call asks again."""
    table = pa.table({"value": ROWS})
    producer.send_arrow(table, topic="orders", **avro, format_options=REGISTER).result(TIMEOUT)
    broker.schema_registry.on("GET /subjects/...", AnswerStatus(500), times=1, expect=True)
    with pytest.raises(SchemaRegistryError):
        producer.send_arrow(table, topic="orders", **avro)
    assert 2 == producer.send_arrow(table, topic="orders", **avro).result(TIMEOUT)[PLACE].records


def test_the_error_of_a_row_counts_the_rows_of_the_table(broker, producer, avro, monkeypatch):
    """Rows are encoded in parts, and those of the parts before may be sent."""
    monkeypatch.setattr(payload_encoder, "MOST_ROWS", 2)
    table = pa.table({"value": pa.array(ROWS, TYPE)})
    producer.send_arrow(table, topic="orders", **avro, format_options=REGISTER).result(TIMEOUT)
    value = pa.array([ROWS[0]] * 6 + [{"id": None, "item": None}])
    chunked = pa.chunked_array([value[:3], value[3:]])
    with pytest.raises(PayloadError) as caught:
        producer.send_arrow(pa.table({"value": chunked}), topic="orders", **avro)
    assert (6, 1, "value.id") == (caught.value.row, caught.value.schema_id, caught.value.field)
    producer.flush(TIMEOUT)
    assert 2 + 5 == len(payloads(broker))


def test_topics_of_a_column_need_a_subject(broker, producer, avro):
    """The subject cannot depend on a topic that only the rows name."""
    table = pa.table({"topic": ["orders", "others"], "value": ROWS})
    with pytest.raises(ConfigError, match="the subject of values depends on the topic"):
        producer.send_arrow(table, **avro, format_options=REGISTER)
    options = {**REGISTER, "valueSubject": "all"}
    producer.send_arrow(table, **avro, format_options=options).result(TIMEOUT)
    assert [1, 1] == [len(payloads(broker, topic)) for topic in ("orders", "others")]


@pytest.mark.parametrize(
    ("table", "given", "expected"),
    [
        (
            {"key": ["a"]},
            {},
            (
                "valueFormat=avro needs a column 'value', and there is none: add it, a struct of "
                "the fields, or remove the option"
            ),
        ),
        (
            {"value": [1]},
            {"value_schema": '"string"'},
            (
                "valueSchema is not registered under the subject 'orders-value': register it, or "
                "set autoRegisterSchemas=true"
            ),
        ),
        (
            {"value": [1]},
            {"format_options": {"valueFramng": "none"}},
            "unknown option 'valueFramng'; did you mean 'valueFraming'?",
        ),
    ],
)
def test_a_refused_table_sends_nothing(broker, avro, table, given, expected):
    """The error is that of a write of Spark."""
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    error = ConfigError if expected.startswith("unknown") else SchemaError
    with KafkaProducer(settings) as producer, pytest.raises(error) as caught:
        producer.send_arrow(pa.table(table), topic="orders", **avro, **given)
    assert expected == str(caught.value)
    assert [] == payloads(broker)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, "Set valueSchema to the text of a compatible schema. (This one was derived from "),
        (
            {"value_schema": json.dumps({**ORDER, "fields": [{"name": "n", "type": "long"}]})},
            "Change the schema (a new field may need a default), or the subject's compatibility",
        ),
    ],
)
def test_a_schema_that_is_not_compatible_is_refused(producer, avro, given, advice):
    """The error has the registry's reason, and says what to do about this schema."""
    first = producer.send_arrow(
        pa.table({"value": ROWS}), topic="orders", **avro, format_options=REGISTER
    )
    first.result(TIMEOUT)
    new = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    table = pa.table({"value": pa.array([{"n": 1}], new)})
    with pytest.raises(SchemaError) as caught:
        producer.send_arrow(table, topic="orders", **avro, **given, format_options=REGISTER)
    assert "the schema of values is not compatible with the subject 'orders-value': " in str(
        caught.value
    )
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in str(caught.value)
    assert "{oldSchemaVersion: 1}; {validateFields: " in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"type": "lnog"}', "Avro schema: the type 'lnog' is not defined; the nearest is 'long'"),
        ("{", "the text of the schema is not JSON: "),
    ],
)
def test_a_wrong_text_is_refused_with_the_name_of_its_option(producer, avro, text, problem):
    """Keys and values may both have one."""
    with pytest.raises(SchemaError) as caught:
        producer.send_arrow(pa.table({"value": [1]}), topic="orders", **avro, value_schema=text)
    assert str(caught.value).startswith(f"valueSchema: {problem}")


def test_two_columns_of_one_name_are_refused(producer, avro):
    """It is not known which of them to encode."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["value", "value"])
    with pytest.raises(SchemaError, match=r"^2 columns are named 'value': keep one of them$"):
        producer.send_arrow(table, topic="orders", **avro, format_options=REGISTER)


def test_a_missing_subject_names_the_option_that_makes_one(producer, avro):
    """A first write finds no schema, unless it may register one; a missing version is another."""
    said = []
    for given in ({}, {"value_schema": "version:7"}):
        with pytest.raises(SchemaRegistryError) as caught:
            producer.send_arrow(pa.table({"value": ROWS}), topic="orders", **avro, **given)
        assert SUBJECT_NOT_FOUND == caught.value.error_code
        said.append(str(caught.value))
    advice = ", as the write does with autoRegisterSchemas=true"
    assert said[0].endswith(f"check the name of the subject, or register a schema under it{advice}")
    assert advice not in said[1]


def test_a_missing_topic_is_named_first(producer, avro):
    """Without any topic, the error is not one about subjects."""
    with pytest.raises(SchemaError, match="there is no column 'topic'"):
        producer.send_arrow(pa.table({"value": ROWS}), **avro)


def test_nothing_is_registered_for_a_table_that_is_refused(broker, producer, avro):
    """All columns are checked before."""
    registered = broker.schema_registry.on("POST /subjects/{subject}/versions", lambda *_: None)
    table = pa.table({"key": [1], "value": ROWS[:1]})
    with pytest.raises(SchemaError):
        producer.send_arrow(
            table,
            topic="orders",
            key_format="avro",
            key_schema='"string"',
            **avro,
            format_options=REGISTER,
        )
    assert 0 == registered.seen


def test_an_empty_table_is_checked_and_sends_nothing(broker, producer, avro):
    """Wrong arguments are errors even then."""
    empty = pa.table({"value": pa.array([], pa.string())})
    assert {} == producer.send_arrow(empty, topic="orders", **avro).result(TIMEOUT)
    with pytest.raises(ConfigError, match="unknown option 'x'"):
        producer.send_arrow(empty, topic="orders", **avro, format_options={"x": 1})
