"""The columns that a reader may ask for, and the errors for all others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.record.arrow.schema import arrow_schema, check_schema

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SPARK_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", HEADER))),
    ]
)


def test_all_columns_are_those_of_sparks_own_source():
    """The default schema has Spark's columns in Spark's order; headers are added on request."""
    assert SPARK_SCHEMA.remove(7) == arrow_schema()
    assert SPARK_SCHEMA == arrow_schema(include_headers=True)


def test_columns_can_be_selected_in_any_order():
    """Selected columns keep the order of the selection, and headers need no option."""
    assert ["headers", "offset", "value"] == arrow_schema(["headers", "offset", "value"]).names


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["payload"],
            "there is no column 'payload': the columns are key, value, topic, partition, ",
        ),
        ([], "no columns are selected: select some of key, "),
        (["key", "key"], "the column 'key' is selected twice"),
    ],
)
def test_wrong_selections_are_refused(columns, message):
    """A selection of unknown columns, of none, or of one twice is an error that names them."""
    with pytest.raises(SchemaError, match=message):
        arrow_schema(columns)


@pytest.mark.parametrize(
    "field",
    [
        pa.field("key", pa.large_binary()),
        pa.field("topic", pa.large_string()),
        pa.field("timestamp", pa.timestamp("us", tz="Europe/Berlin")),
        pa.field("timestamp", pa.timestamp("us")),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("headers", pa.list_(HEADER)),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field(
            "headers",
            pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        ),
    ],
    ids=str,
)
def test_other_types_of_a_column_are_allowed(field):
    """Offsets may have 64 bits, and timestamps any time zone, or milliseconds."""
    check_schema(pa.schema([field]))


@pytest.mark.parametrize(
    "field",
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(3)),
        pa.field("topic", pa.binary()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int32()),
        pa.field("timestamp", pa.timestamp("ns", tz="UTC")),
        pa.field("timestamp", pa.int64()),
        pa.field("timestampType", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("headers", pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
    ],
    ids=str,
)
def test_wrong_types_are_refused(field):
    """A column of another type is an error that names the column and its type."""
    with pytest.raises(SchemaError, match=f"column '{field.name}' has type .*; it must be "):
        check_schema(pa.schema([field]))
