from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.spark.arrow_types import arrow_columns
from spark_kafka_sink.spark.source.columns import check_columns, default_columns

NAMES = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def schema_of(*fields):
    return StructType([StructField(*field) for field in fields])


def test_the_columns_are_those_of_sparks_own_source():
    """Without a schema, a read has Spark's columns, and the headers only if they are included."""
    assert NAMES == default_columns(include_headers=False).names
    assert [*NAMES, "headers"] == default_columns(include_headers=True).names
    assert all(field.nullable for field in default_columns(include_headers=True))
    check_columns(default_columns(include_headers=True))


def test_the_arrow_types_are_sparks():
    """The schema of the batches is the one with which PySpark compares them."""
    assert [
        pa.binary(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
        pa.int32(),
    ] == arrow_columns(default_columns(include_headers=False)).types
    headers = arrow_columns(default_columns(include_headers=True)).field("headers").type
    assert ["key", "value"] == [field.name for field in headers.value_type]


def test_any_columns_can_be_selected_in_any_order():
    """A schema may have some of the columns, and say NOT NULL of those that never are."""
    check_columns(schema_of(("offset", LongType(), False), ("value", BinaryType())))
    check_columns(schema_of(("timestampType", IntegerType())))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (schema_of(), "the schema has no column"),
        (schema_of(("id", LongType())), "there is no column 'id'. The columns of a Kafka record"),
        (
            schema_of(("Value", BinaryType())),
            "there is no column 'Value' .there is 'value', but column names are case-sensitive",
        ),
        (
            schema_of(("value", StringType())),
            "column 'value' is string, but must be binary: read it as it is, and cast it",
        ),
        (schema_of(("partition", LongType())), "'partition' is bigint, but must be int:"),
        (schema_of(("timestamp", TimestampNTZType())), "is timestamp_ntz, but must be timestamp:"),
        (
            schema_of(("value", BinaryType()), ("value", BinaryType())),
            "2 columns are named 'value': keep only one of them",
        ),
        (schema_of(("key", BinaryType(), False)), "column 'key' must be nullable"),
        (
            schema_of(
                (
                    "headers",
                    ArrayType(schema_of(("key", StringType(), False), ("value", BinaryType()))),
                )
            ),
            "the parts of column 'headers' must be nullable",
        ),
    ],
)
def test_another_schema_is_refused_with_the_columns_there_are(schema, message):
    """An error says what is wrong, and lists the columns with their types."""
    with pytest.raises(SchemaError, match=message) as caught:
        check_columns(schema)
    assert "key binary, value binary, topic string, partition int, offset bigint" in str(
        caught.value
    )


def test_all_problems_are_listed():
    """One error names all columns that are wrong."""
    with pytest.raises(
        SchemaError, match=r"no column 'a'; column 'offset' is int, .*; there is no"
    ):
        check_columns(schema_of(("a", LongType()), ("offset", IntegerType()), ("b", LongType())))
