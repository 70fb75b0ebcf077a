"""The columns for Avro's types."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.avro.columns import columns_of
from spark_kafka_sink.formats.avro.schema import parse_schema
from spark_kafka_sink.formats.columnar.columns import MOST_COLUMNS
from tests.support.formats.avro_cases import make_case
from tests.support.formats.avro_oracle import types_of_spark

FIXED = {"type": "fixed", "name": "F", "size": 16}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}
SPARK_TYPE = "spark.sql.catalyst.type"
TYPES = [
    ("null", pa.null()),
    ("boolean", pa.bool_()),
    ("int", pa.int32()),
    ("long", pa.int64()),
    ("float", pa.float32()),
    ("double", pa.float64()),
    ("bytes", pa.binary()),
    ("string", pa.string()),
    ({"type": "string", "logicalType": "uuid"}, pa.string()),
    ({"type": "int", "logicalType": "date"}, pa.date32()),
    ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
    ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, pa.timestamp("us")),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
    ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.int64()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 6},
        pa.decimal128(38, 6),
    ),
    ({**FIXED, "logicalType": "decimal", "precision": 20, "scale": 2}, pa.decimal128(20, 2)),
    ({"type": "long", SPARK_TYPE: "interval day to second"}, pa.duration("us")),
    ({"type": "long", SPARK_TYPE: "INTERVAL  DAY TO SECOND"}, pa.duration("us")),
    ({"type": "long", SPARK_TYPE: "bigint"}, pa.int64()),
    ({"type": "long", SPARK_TYPE: 5}, pa.int64()),
    ({"type": "int", SPARK_TYPE: "int"}, pa.int32()),
    ({"type": "int", "logicalType": "date", SPARK_TYPE: "interval month"}, pa.date32()),
    (
        {"type": "long", "logicalType": "timestamp-micros", SPARK_TYPE: "interval day to second"},
        pa.timestamp("us", "UTC"),
    ),
    ({"type": "string", SPARK_TYPE: "interval month"}, pa.string()),
    (FIXED, pa.binary()),
    ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, pa.binary()),
    (ENUM, pa.string()),
    ({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32(), nullable=False))),
    ({"type": "array", "items": ["int", "null"]}, pa.list_(pa.field("element", pa.int32()))),
    (
        {"type": "map", "values": "long"},
        pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
    ),
    (RECORD, pa.struct([pa.field("a", pa.int32())])),
    (["null", "int"], pa.int32()),
    (["string"], pa.string()),
    (["int", "long"], pa.int64()),
    (["null", "long", "int"], pa.int64()),
    (["double", "float"], pa.float64()),
    (["null"], pa.struct([])),
    (
        ["null", "int", "string", RECORD],
        pa.struct(
            [
                pa.field("member0", pa.int32()),
                pa.field("member1", pa.string()),
                pa.field("member2", pa.struct([pa.field("a", pa.int32())])),
            ]
        ),
    ),
    (["int", "float"], pa.struct([("member0", pa.int32()), ("member1", pa.float32())])),
]


@pytest.mark.parametrize(("schema", "expected"), TYPES)
def test_a_schema_has_the_type_of_sparks_from_avro(schema, expected):
    """The type of Arrow is the one that Spark's own converter would choose."""
    column = columns_of(parse_schema(json.dumps(schema)))
    assert expected == column.type
    # Equality of types ignores the names of items.
    assert str(expected) == str(column.type)


@pytest.mark.parametrize(
    ("schema", "nullable"),
    [
        ("int", False),
        ("null", True),
        (["int"], False),
        (["null", "int"], True),
        (["int", "null", "long"], True),
        (["int", "string"], False),
        (["int", "string", "null"], True),
    ],
)
def test_a_union_with_null_is_nullable(schema, nullable):
    """Only null and unions with null can be null."""
    assert nullable == columns_of(parse_schema(json.dumps(schema))).nullable


def test_slots_number_the_columns_before_their_children():
    """The slots of a column's children follow its own, and `end` is one past the last."""
    fields = [
        {"name": "a", "type": {"type": "array", "items": "int"}},
        {"name": "b", "type": ["null", "int", "string"]},
        {"name": "c", "type": {"type": "map", "values": "int"}},
    ]
    column = columns_of(parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields})))

    def numbers(column):
        return [(column.slot, column.end), *map(numbers, column.children)]

    expected = [
        (0, 9),
        [(1, 3), [(2, 3)]],
        [(3, 6), [(4, 5)], [(5, 6)]],
        [(6, 9), [(7, 8)], [(8, 9)]],
    ]
    assert expected == numbers(column)
    union = column.children[1]
    assert (None, *union.children) == union.members


def test_a_decimal_of_39_digits_is_refused():
    """Spark has no more than 38 digits."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 39}
    with pytest.raises(SchemaError, match="a decimal of 39 digits; Spark has 38 at most"):
        columns_of(parse_schema(json.dumps(schema)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("int", "interval year to month"),
        ("long", "interval hour to minute"),
        ("int", "tinyint"),
        ("int", "bigint"),
        ("int", "no type"),
    ],
)
def test_a_type_of_spark_without_a_column_is_refused(kind, name):
    """PySpark has no Arrow type for such an interval, and a plain number is another column."""
    with pytest.raises(SchemaError, match=rf"the {kind} is '{name}' in Spark \(spark.sql.cat"):
        columns_of(parse_schema(json.dumps({"type": kind, SPARK_TYPE: name})))


def test_a_type_that_doubles_itself_again_and_again_is_refused():
    """A record that has another one twice, which has another one twice, is a short text."""
    schema = "int"
    for number in range(20):
        fields = [{"name": "a", "type": schema}]
        fields.append({"name": "b", "type": f"R{number - 1}" if number else "int"})
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    with pytest.raises(SchemaError, match=f"more than {MOST_COLUMNS} columns"):
        columns_of(parse_schema(json.dumps(schema)))


@pytest.mark.slow
def test_types_are_those_of_sparks_converter():
    """Types, names and nullability are those of `SchemaConverters`, of the table and at random."""
    schemas = [json.dumps(schema) for schema, _ in TYPES]
    schemas += [make_case(seed, payloads=0).writer for seed in range(1000)]
    for text, theirs in zip(schemas, types_of_spark(schemas), strict=True):
        column = columns_of(parse_schema(text))
        spark_type = from_arrow_type(column.type, prefer_timestamp_ntz=True)
        theirs_json, _, nullable = theirs.rpartition(" ")
        # Newest Spark has types for nanoseconds; those before it have a long, and so do we.
        for nanos in ("timestamp_ltz(9)", "timestamp_ntz(9)"):
            theirs_json = theirs_json.replace(nanos, "long")
        assert (json.loads(theirs_json), nullable) == (
            json.loads(spark_type.json()),
            str(column.nullable).lower(),
        ), text
