"""Single records as JSON, by plug-ins of the clients."""

from __future__ import annotations

import copy
import datetime as dt
import json
import pickle
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.errors import (
    ConfigError,
    PayloadError,
    RecordDeserializationError,
    SchemaError,
    SerializationError,
)
from spark_kafka_sink.formats.json.encode_plan import make_encode_plan
from spark_kafka_sink.formats.json.encoder import Encoder
from spark_kafka_sink.formats.json.types import parse_type
from spark_kafka_sink.formats.json_serializers import JsonDeserializer, JsonSerializer
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.producer.kafka_producer import KafkaProducer
from tests.support.consumer.embedded_consuming import consuming, take

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
HALF = "\ud800"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


def write(value):
    return JsonSerializer().serialize("orders", [], value)


def read(data, schema=None):
    return JsonDeserializer(schema).deserialize("orders", [], data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 2**63 - 1),
        ("double", -0.5),
        ("double", float("nan")),
        ("double", float("-inf")),
        ("double", float("inf")),
        ("boolean", True),
        ("boolean", False),
        ("decimal(10, 2)", Decimal("1.10")),
        ("string", 'a "quoted" \\ ü\n\u2028'),
        ("binary", b"\x00\xff\x10"),
        ("date", dt.date(2024, 12, 31)),
        ("timestamp", AT),
        ("timestamp", AT.replace(microsecond=1)),
        ("timestamp", AT.replace(year=1, microsecond=5000)),
        ("timestamp_ntz", AT.replace(tzinfo=None)),
        ("array<bigint>", [1, None, 3]),
        ("array<array<date>>", [[], [dt.date(1970, 1, 1), None]]),
        ("map<string, bigint>", {"a": 1, "b": None}),
        ("map<string, timestamp>", {"a": AT, "b": None}),
        ("struct<b: binary>", {"b": b"abc"}),
    ],
)
def test_a_value_is_written_and_read_as_that_of_a_column(kind, value):
    """Records by themselves and tables may be mixed in a topic."""
    data = write({"a": value})
    column = pa.array([{"a": value}], parse_type(f"a {kind}"))
    assert [data] == Encoder(make_encode_plan(column.type)).encode(column).to_pylist()
    # By their texts, since a NaN differs from itself.
    assert repr({"a": value}) == repr(read(data, f"a {kind}"))


def test_a_time_zone_is_converted_to_utc():
    """As by a column, whose timestamps are instants."""
    zone = dt.timezone(dt.timedelta(hours=2))
    assert b'"2026-01-02T01:04:05.000Z"' == write(AT.replace(tzinfo=zone))


@given(ANY)
def test_any_json_is_read_as_it_was_written(value):
    """Without a schema, dicts and lists of plain values come back as they were."""
    data = write(value)
    expected = json.loads(json.dumps(value), parse_constant=lambda word: word)
    assert expected == json.loads(data)
    assert expected == read(data)


def test_other_values_of_python_have_a_text():
    """UUIDs, tuples, buffers, and keys that are numbers or booleans."""
    assert b'["00000000-0000-0000-0000-000000000005",[1,true],"AAE=","AQ=="]' == write(
        [UUID(int=5), (1, True), bytearray(b"\x00\x01"), memoryview(b"\x01")]
    )
    assert b'{"5":null,"true":{},"false":[]}' == write({5: None, True: {}, False: []})


@pytest.mark.parametrize(
    ("value", "field", "cause"),
    [
        ({"a": [1, {"b": object()}]}, "value.a[].b", "the value is object, which JSON does not"),
        ({"at": dt.time(1)}, "value.at", "the value is time, which JSON does not have"),
        ({"b": [1], "a": Decimal("NaN")}, "value.a", "the decimal is not finite"),
        ({"a": HALF}, "value.a", "the string has half of a surrogate pair"),
        ({"a": {HALF: 1}}, "value.a", "the string has half of a surrogate pair"),
        ({"a": {1.5: 1}}, "value.a", "a key is float"),
        ({1, 2}, "value", "the value is set, which JSON does not have"),
    ],
)
def test_a_value_that_json_does_not_have_is_named(value, field, cause):
    """The error has the path, and never the value."""
    with pytest.raises(PayloadError) as caught:
        write(value)
    assert field == caught.value.field
    assert caught.value.cause.startswith(cause)


def test_a_value_that_contains_itself_is_refused():
    """So is one of too many levels, in both directions."""
    value = []
    value.append(value)
    with pytest.raises(PayloadError, match="too many levels, or contains itself"):
        write(value)
    with pytest.raises(PayloadError, match="objects and arrays are in too many others"):
        read(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    ("schema", "data", "field", "cause"),
    [
        (None, b"", "value", "it is not JSON: Expecting value at character 0"),
        (None, b"{} {}", "value", "it is not JSON: Extra data at character 3"),
        (None, b"[NaN]", "value", "it is not JSON: NaN is not a number there"),
        (None, b'"\xff"', "value", "it is not UTF-8"),
        (None, b'["\\ud800"]', "value", "a string has half of a surrogate pair"),
        (None, b"1" * 5000, "value", "it is not JSON: Exceeds the limit"),
        ("a bigint", b'{"a": 1.5}', "value.a", "1.5 is not written as an integer"),
        ("a bigint", b"[]", "value", "'[]' instead of an object"),
        ("a array<date>", b'{"a": ["+99999-01-01"]}', "value.a[]", "the date is not between"),
        (
            "a map<string, timestamp>",
            b'{"a": {"b": "+99999-01-01T00:00:00Z"}}',
            "value.a{}",
            "the timestamp is not between",
        ),
    ],
)
def test_a_malformed_payload_is_named(schema, data, field, cause):
    """The error says where and why, as that of a column."""
    with pytest.raises(PayloadError) as caught:
        read(data, schema)
    assert field == caught.value.field
    assert caught.value.cause.startswith(cause)


@pytest.mark.parametrize(
    ("schema", "error", "text"),
    [
        (5, TypeError, "value_schema must be a str, not int"),
        ("latest", ConfigError, "JSON has no schema in a Schema Registry: pass schema as DDL"),
        ("id:42", ConfigError, "valueSchema=id:42 is a schema in a Schema Registry"),
        ("a interval", SchemaError, "JSON"),
        ("bigint", SchemaError, "JSON"),
    ],
)
def test_a_wrong_schema_is_refused_at_once(schema, error, text):
    """Before anything is read, with the sentences of Spark's options."""
    with pytest.raises(error) as caught:
        JsonDeserializer(schema)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("plug_in", "method", "wrong"),
    [
        (JsonSerializer(), "serialize", object()),
        (JsonDeserializer("a date"), "deserialize", b"5"),
        (JsonDeserializer(), "deserialize", b"no"),
    ],
)
def test_an_object_is_for_one_side_and_so_are_its_copies(plug_in, method, wrong):
    """Its errors call values by their side; a function for another process may refer to one."""
    plug_in.configure({}, is_key=True)
    for copied in (copy.deepcopy(plug_in), pickle.loads(pickle.dumps(plug_in))):  # noqa: S301
        copied.configure({}, is_key=True)
        with pytest.raises(ConfigError, match="create one for keys and one for values"):
            copied.configure({}, is_key=False)
        with pytest.raises(PayloadError) as caught:
            getattr(copied, method)("orders", [], wrong)
        assert "key" == caught.value.field


def test_clients_write_and_read_json():
    """A wrong value leaves the producer usable, and a malformed record names its place."""
    with DevBroker(topics={"orders": 1}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        with KafkaProducer({**servers, "value.serializer": JsonSerializer()}) as producer:
            producer.send("orders", {"id": 1})
            with pytest.raises(SerializationError, match=r"value\.a"):
                producer.send("orders", {"a": object()})
            producer.send("orders", {"id": "two"})
        reader = JsonDeserializer("id bigint")
        with consuming(broker, value_deserializer=reader) as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            assert [{"id": 1}] == [record.value for record in take(consumer, 1)]
            with pytest.raises(RecordDeserializationError, match=r"value\.id"):
                take(consumer, 1)
