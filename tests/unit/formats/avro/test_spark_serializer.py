"""Values and refusals are those of Spark's `to_avro`, but for what the table lists."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.encode_plan import make_encode_plan
from spark_kafka_sink.formats.avro.encoder import Encoder
from spark_kafka_sink.formats.avro.schema import parse_schema
from tests.support.formats.avro_writer_oracle import payloads_of_spark


def logical(kind, logical_type, **properties):
    """Return a schema with a logical type."""
    return {"type": kind, "logicalType": logical_type, **properties}


#: Types of Spark, each with the same one of Arrow, and a value as text and in Arrow.
COLUMNS = [
    ("boolean", pa.bool_(), "true", True),
    ("byte", pa.int8(), "5", 5),
    ("short", pa.int16(), "-300", -300),
    ("integer", pa.int32(), "70000", 70000),
    ("long", pa.int64(), str(-(2**40)), -(2**40)),
    ("float", pa.float32(), "1.5", 1.5),
    ("double", pa.float64(), "0.1", 0.1),
    ("string", pa.string(), "RED", "RED"),
    ("binary", pa.binary(), "abcd", b"abcd"),
    ("date", pa.date32(), "-1", -1),
    ("timestamp", pa.timestamp("us", "UTC"), "-1", -1),
    ("timestamp_ntz", pa.timestamp("us"), "-1500", -1500),
    ("decimal(9,2)", pa.decimal128(9, 2), "-1.28", Decimal("-1.28")),
    ("time(6)", pa.time64("ns"), "1999", 1999),
    ("interval day to second", pa.duration("us"), "7", 7),
]
SCHEMAS = {
    **{name: name for name in ("boolean", "int", "long", "float", "double", "string", "bytes")},
    "fixed": {"type": "fixed", "name": "F", "size": 4},
    "enum": {"type": "enum", "name": "E", "symbols": ["BLUE", "RED"]},
    "uuid": logical("string", "uuid"),
    "decimal": logical("bytes", "decimal", precision=9, scale=2),
    "longer decimal": logical("bytes", "decimal", precision=10, scale=2),
    "fixed decimal": logical("fixed", "decimal", name="D", size=4, precision=9, scale=2),
    "date": logical("int", "date"),
    "time-millis": logical("int", "time-millis"),
    **{
        name: logical("long", name)
        for name in (
            "time-micros",
            "timestamp-millis",
            "timestamp-micros",
            "timestamp-nanos",
            "local-timestamp-millis",
            "local-timestamp-micros",
            "local-timestamp-nanos",
        )
    },
    "int or null": ["int", "null"],
    "int or long": ["int", "long"],
    "long, null or int": ["long", "null", "int"],
    "float or double": ["float", "double"],
    "string or int": ["string", "int"],
}
_LONGS = (
    "long",
    "time-micros",
    "timestamp-millis",
    "timestamp-micros",
    "timestamp-nanos",
    "local-timestamp-millis",
    "local-timestamp-micros",
    "local-timestamp-nanos",
)
#: What Spark refuses: exact widening, other unions of numbers, nanoseconds.
WIDER = {
    *((kind, schema) for kind in ("byte", "short", "integer") for schema in _LONGS),
    *((kind, schema) for kind in ("byte", "short") for schema in ("float", "float or double")),
    *((kind, "double") for kind in ("byte", "short", "integer", "float")),
    *((kind, "int or long") for kind in ("byte", "short", "integer")),
    *((kind, "long, null or int") for kind in ("byte", "short", "integer")),
    *((kind, "float or double") for kind in ("integer", "float")),
    ("decimal(9,2)", "longer decimal"),
    ("timestamp", "timestamp-nanos"),
    ("timestamp_ntz", "local-timestamp-nanos"),
}
#: What Spark writes although a reader cannot know what it means.
REFUSED = {
    ("date", "time-millis"),
    *(("interval day to second", schema) for schema in _LONGS if schema != "long"),
}


def encoded(schema, kind, value):
    """Return the payload of a value in hex, None if the schema does not have its type."""
    if pa.types.is_duration(kind) or pa.types.is_temporal(kind):
        storage = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        array = pa.array([value], storage).view(kind)
    else:
        array = pa.array([value], kind)
    try:
        plan = make_encode_plan(parse_schema(json.dumps(schema)), kind)
    except SchemaError:
        return None
    return Encoder(plan).encode(array)[0].as_py().hex()


@pytest.mark.slow
def test_payloads_are_those_of_spark():
    """Every type is written by every schema as Spark does, or is in a table of differences."""
    pairs = [(column, name) for column in COLUMNS for name in SCHEMAS]
    lines = [
        (json.dumps(spark), json.dumps(SCHEMAS[name]), text) for (spark, _, text, _), name in pairs
    ]
    differences = {}
    for ((spark, kind, _, value), name), answer in zip(
        pairs, payloads_of_spark(lines), strict=True
    ):
        own = encoded(SCHEMAS[name], kind, value)
        if own != (None if answer.startswith("!") else answer):
            differences[spark, name] = (own, answer)
    assert WIDER | REFUSED == differences.keys()
    assert {None} == {differences[key][0] for key in REFUSED}
    assert {"!"} == {differences[key][1][:1] for key in WIDER}
