"""Single payloads of Avro as Python values."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pytest

from spark_kafka_sink.errors import PayloadError, SchemaError
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.avro.value_decoder import ValueDecoder
from spark_kafka_sink.formats.avro.value_encoder import ValueEncoder
from spark_kafka_sink.record.default_record import encode_varint

UTC = dt.UTC


def logical(kind, logical_type, **more):
    return {"type": kind, "logicalType": logical_type, **more}


def record(*fields, name="Order"):
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def decoder(writer, reader=None):
    parsed = parse_schema(json.dumps(writer))
    return ValueDecoder(parsed, parsed if reader is None else parse_schema(json.dumps(reader)))


def payload(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
LOCAL = AT.replace(tzinfo=None)
LONG_AGO = dt.datetime(1, 1, 1, tzinfo=UTC)
DECIMAL = logical("bytes", "decimal", precision=5, scale=2)
A, B = record(field("a", "int"), name="A"), record(field("b", ["null", "int"]), name="B")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", False),
        ("int", -1),
        ("long", 2**62),
        ("float", 1.5),
        ("double", 1.1),
        ("string", "ü"),
        ("bytes", b"\x00"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        (DECIMAL, Decimal("-1.20")),
        (logical("int", "date"), dt.date(1969, 12, 31)),
        (logical("int", "time-millis"), dt.time(23, 59, 59, 999_000)),
        (logical("long", "time-micros"), dt.time(23, 59, 59, 999_999)),
        (logical("long", "timestamp-millis"), AT),
        (logical("long", "timestamp-micros"), LONG_AGO),
        (logical("long", "local-timestamp-millis"), LOCAL),
        (logical("long", "local-timestamp-micros"), LOCAL),
        ({"type": "array", "items": logical("int", "date")}, [dt.date(2026, 1, 2)]),
        ({"type": "array", "items": ["null", logical("int", "date")]}, [None, dt.date(1, 1, 1)]),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], []]),
        ({"type": "map", "values": "int"}, {"a": 1, "b": 2}),
        (
            {"type": "map", "values": ["null", logical("long", "timestamp-millis")]},
            {"a": AT, "b": None},
        ),
        (["null", logical("long", "timestamp-millis")], AT),
        (["null", logical("long", "timestamp-millis")], None),
        (["null", "string", logical("int", "date"), A], dt.date(2026, 1, 2)),
        (["null", "string", logical("int", "date"), A], "text"),
        (["null", "string", logical("int", "date"), A], None),
        ([A, B], {"b": None}),
        (["int", "long"], 2**40),
        (["float", "double"], 1.1),
        ([logical("int", "date"), logical("long", "timestamp-millis")], dt.date(2026, 1, 2)),
        (["null", "int", logical("long", "timestamp-micros")], 5),
        (["null", "int", logical("long", "timestamp-micros")], AT),
        (["null", "int", logical("long", "timestamp-micros")], None),
        (
            record(
                field("id", "long"),
                field("at", logical("long", "timestamp-micros")),
                field("n", "null"),
            ),
            {"id": 1, "at": AT, "n": None},
        ),
        (
            record(field("a", A), field("m", {"type": "map", "values": "string"})),
            {"a": {"a": 1}, "m": {}},
        ),
    ],
)
def test_values_are_those_of_fastavro(schema, value):
    """Users of Confluent's deserializers get the same objects."""
    data = payload(schema, value)
    expected = fastavro.schemaless_reader(io.BytesIO(data), schema)
    found = decoder(schema).decode(data)
    assert (value, type(value)) == (found, type(found))
    assert expected == found


@pytest.mark.parametrize("value", [AT, dt.date(2026, 1, 2), None])
def test_a_moment_of_a_union_is_read_as_it_was_written(value):
    """A timestamp is no date, although both are numbers, and Python's datetime is a date."""
    schema = [logical("int", "date"), "null", logical("long", "timestamp-millis")]
    data = ValueEncoder(parse_schema(json.dumps(schema))).encode(value)
    assert value == decoder(schema).decode(data)


def test_values_that_fastavro_has_otherwise():
    """A UUID is a str, and timestamps of nanoseconds are numbers."""
    text = "12345678-1234-5678-1234-567812345678"
    schema = logical("string", "uuid")
    assert text == decoder(schema).decode(payload("string", text))
    nanos = logical("long", "timestamp-nanos")
    assert 10**18 + 1 == decoder(nanos).decode(payload("long", 10**18 + 1))
    interval = {"type": "long", "spark.sql.catalyst.type": "interval day to second"}
    assert dt.timedelta(seconds=-1) == decoder(interval).decode(payload("long", -(10**6)))


def test_the_readers_schema_decides():
    """Order, promoted numbers, defaults and skipped fields follow Avro's rules."""
    writer = record(field("old", "string"), field("id", "int"))
    reader = record(field("day", logical("int", "date"), default=1), field("id", "double"))
    data = payload(writer, {"old": "x", "id": 7})
    assert {"day": dt.date(1970, 1, 2), "id": 7.0} == decoder(writer, reader).decode(data)


NESTED = record(
    field(
        "lines", {"type": "array", "items": record(field("day", logical("int", "date")), name="L")}
    ),
    field("times", {"type": "map", "values": logical("long", "timestamp-micros")}),
)


@pytest.mark.parametrize(
    ("schema", "data", "path", "cause"),
    [
        ("string", b"\x04\xff\xff", "value", "a string is not UTF-8"),
        ("int", b"\x02\x02", "value", "bytes are left behind the value"),
        (record(field("id", "boolean")), b"\x02", "value.id", "a boolean is 2"),
        (
            logical("int", "time-millis"),
            encode_varint(86_400_000),
            "value",
            "the number is no time of the day",
        ),
        (
            logical("long", "timestamp-micros"),
            encode_varint(2**62),
            "value",
            "the timestamp is not between the years 1 and 9999",
        ),
        (
            logical("long", "local-timestamp-micros"),
            encode_varint(-(2**62)),
            "value",
            "the timestamp is not between the years 1 and 9999",
        ),
        (
            NESTED,
            b"\x02" + encode_varint(2**31 - 1) + b"\0\0",
            "value.lines[].day",
            "the date is not between the years 1 and 9999",
        ),
        (
            NESTED,
            b"\0\x02\x02a" + encode_varint(2**62) + b"\0",
            "value.times{}",
            "the timestamp is not between the years 1 and 9999",
        ),
    ],
)
def test_a_malformed_payload_is_refused(schema, data, path, cause):
    """The error names the path of the field; so it does for what Python's types do not have."""
    with pytest.raises(PayloadError) as caught:
        decoder(schema).decode(data)
    assert path == caught.value.field
    assert cause in caught.value.cause


def test_schemas_that_do_not_match_are_refused():
    """A required field that the writer lacks has no value."""
    with pytest.raises((SchemaError, PayloadError), match="id"):
        decoder(record(field("a", "int")), record(field("id", "int"))).decode(b"\x02")
