"""Conversion of Arrow batches to columns of records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidPartitionError, RecordError, SchemaError
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.columns import NULL_PARTITION, NULL_TIMESTAMP
from spark_kafka_sink.record.decode import Record
from tests.support.record.arrow_rows import (
    HEADER,
    HEADERS,
    LISTS,
    NOW_MS,
    STRINGS_AND_BINARIES,
    batch_of,
    expected_headers,
    read,
    read_batch,
)

# --- keys and values

OTHERS = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.decimal128(10, 2),
    pa.date32(),
    pa.timestamp("us"),
    pa.time64("us"),
    pa.duration("us"),
    pa.list_(pa.string()),
    pa.struct([("a", pa.string())]),
    pa.map_(pa.string(), pa.binary()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
]


@pytest.mark.parametrize("column", ["key", "value"])
@pytest.mark.parametrize("kind", STRINGS_AND_BINARIES, ids=str)
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4])
def test_strings_and_bytes_of_every_type_are_accepted(column, kind, first):
    """Keys and values may have any string or binary type, in any slice of an array."""
    values = ["abc", None, "déf"[:1] + "ef", "xyz"]
    if not (pa.types.is_string(getattr(kind, "value_type", kind)) or "string" in str(kind)):
        values = [None if value is None else value.encode() for value in values]
    batch = batch_of(**{column: pa.array(values, kind)}).slice(first)
    expected = [b"abc", None, b"def", b"xyz"][first:]
    assert expected == [getattr(record, column) for record in read_batch(batch)]


@pytest.mark.parametrize("column", ["key", "value"])
@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_types_of_keys_and_values_are_rejected(column, kind):
    """Any other type is an error: the user has to convert the column to bytes."""
    with pytest.raises(SchemaError, match=f"column '{column}' has type .*string or binary"):
        record_columns(batch_of(**{column: pa.nulls(2, kind)}), topic="t")


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_column_of_type_null_contains_nulls(column):
    """A column of the type null, which SQL's NULL literal has, contains only nulls."""
    records = read_batch(batch_of(**{column: pa.nulls(2)}))
    assert [None, None] == [getattr(record, column) for record in records]


def test_the_key_column_is_optional():
    """Without a key column, every key is null."""
    assert [Record(0, NOW_MS, None, b"v")] == read_batch(batch_of())


def test_the_value_column_is_required():
    """A batch without a value column is an error."""
    with pytest.raises(SchemaError, match="no column 'value'"):
        record_columns(pa.record_batch({"key": ["k"]}), topic="t")


def test_other_columns_are_ignored():
    """Columns other than those of Spark's own sink and `timestamp` are ignored."""
    batch = batch_of(Value=["x"], KEY=[1], offset=[5], value2=[None])
    assert [Record(0, NOW_MS, None, b"v")] == read_batch(batch)


@pytest.mark.parametrize("name", ["key", "value", "topic", "partition", "headers", "timestamp"])
def test_duplicate_column_names_are_rejected(name):
    """A column name that occurs twice is ambiguous, and so an error."""
    names = ["value", name, name][-2 if name == "value" else -3 :]
    batch = pa.RecordBatch.from_arrays([pa.array(["1"])] * len(names), names)
    with pytest.raises(SchemaError, match=f"2 columns are named '{name}'"):
        record_columns(batch, topic=None if name == "topic" else "t")


def test_buffers_of_arrow_are_not_copied():
    """Bytes, and integers of the required width, are views of Arrow's buffers."""
    value = pa.array(["some", "strings"], pa.large_string())
    partition = pa.array([1, 2], pa.int32())
    timestamp = pa.array([1, 2], pa.timestamp("ms"))
    columns = record_columns(
        batch_of(value=value, partition=partition, timestamp=timestamp), topic="t"
    )
    for array, buffer, view in (
        (value, 1, columns.value.offsets),
        (value, 2, columns.value.data),
        (partition, 1, columns.partition),
        (timestamp, 1, columns.timestamp),
    ):
        assert array.buffers()[buffer].address == view.ctypes.data


@pytest.mark.parametrize("topics", [["t"], ["t", "t"], ["orders"] * 100], ids=len)
@pytest.mark.parametrize("first", [0, 1])
def test_a_column_of_one_topic_shares_its_index_array(topics, first):
    """A column with a single topic, in any slice, shares the index array of a given topic."""
    array = pa.array(["another", *topics]).slice(1)
    columns = record_columns(batch_of(topic=array).slice(first), topic=None)
    given = record_columns(batch_of(topic=array), topic="t")
    assert (len(topics) - first > 0) == np.shares_memory(columns.topic_index, given.topic_index)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()], ids=str
)
def test_an_empty_batch_has_empty_columns(kind):
    """An empty batch has empty columns, whether or not it has buffers."""
    for array in (
        pa.array([], kind),
        pa.array(["a"], pa.string()).cast(kind).slice(1),
        pa.nulls(0, kind),
    ):
        batch = batch_of(
            key=array,
            topic=pa.array([], pa.string()),
            partition=pa.array([], pa.int32()),
            timestamp=pa.array([], pa.timestamp("us")),
            headers=pa.array([], HEADERS),
        )
        columns = record_columns(batch, topic=None)
        assert (0, (), None) == (columns.num_rows, columns.topics, columns.headers)


def test_missing_offsets_of_an_empty_array():
    """An empty Arrow array may have no offsets at all."""
    nothing = pa.py_buffer(b"")
    array = pa.Array.from_buffers(pa.string(), 0, [None, nothing, nothing])
    batch = pa.record_batch({"value": array, "key": array, "topic": array})
    assert 0 == record_columns(batch, topic=None).num_rows


# --- topics


def topics_of(batch: pa.RecordBatch) -> list[str | None]:
    columns = record_columns(batch, topic=None)
    return [columns.topics[i] if i >= 0 else None for i in columns.topic_index]


@pytest.mark.parametrize("count", [1, 3], ids=["one topic", "several topics"])
@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        (b"a" * 40_000, "the topic has 40000 bytes; Kafka's limit is 32767"),
        (b"a\xff", "the topic is not UTF-8: invalid start byte"),
    ],
    ids=["too long", "not UTF-8"],
)
def test_a_topic_that_no_request_can_name_is_refused_with_its_row(count, name, trouble):
    """The request for its metadata would end the producer, with the records of all topics."""
    names = [b"a", b"b", name][-count:]
    batch = batch_of(topic=pa.array(names, pa.binary()).view(pa.string()))
    with pytest.raises(RecordError, match=f"row {count - 1 + 7}: {trouble}"):
        record_columns(batch, topic=None, first_row=7)


def test_the_longest_topic_that_a_request_can_name_is_left_to_the_broker():
    """It is no valid name, which the broker says."""
    assert ["é" * 16_383] == topics_of(batch_of(topic=["é" * 16_383]))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("column", ["key", "value", "topic"])
def test_dictionaries_of_views_are_read(kind, column):
    """Arrow itself cannot take views by their index."""
    if column == "topic" and kind == pa.binary_view():
        kind = pa.large_string()
    words = pa.array([b"x", b"yy"], pa.binary()).cast(pa.string()).cast(kind)
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.int8()), words)
    batch = batch_of(**{column: array.slice(1)})
    if column == "topic":
        assert ["x", None, "yy"] == topics_of(batch)
    else:
        read_column = [getattr(record, column) for record in read_batch(batch)]
        assert [b"x", None, b"yy"] == read_column


def test_a_layout_that_arrow_cannot_decode_is_a_schema_error():
    """The error says what to do, and not where in Arrow it was raised."""
    words = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["a"]))
    array = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), words)
    with pytest.raises(SchemaError, match=r"Arrow cannot decode a column: .*Cast it to string or"):
        record_columns(batch_of(value=array), topic="t")


def test_a_given_topic_applies_to_all_rows():
    """A given topic applies to every row, whatever the topic column contains."""
    columns = record_columns(batch_of(topic=[1, None]), topic="orders")
    assert (("orders",), [0, 0]) == (columns.topics, list(columns.topic_index))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int64(), pa.large_string()),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "topics",
    [
        ["a", "b", None, "a"],
        ["a", "a", "a"],
        ["a", "b", "c"],
        [None, None],
        ["a"],
        ["", "a"],
        ["aa", "a"],
    ],
    ids=str,
)
def test_topics_in_every_layout_are_read(kind, topics):
    """Each row gets its own topic in every layout, and null remains null."""
    batch = batch_of(topic=pa.array(topics, kind))
    assert topics == topics_of(batch)
    assert topics[1:] == topics_of(batch.slice(1))


def test_topics_are_distinct():
    """Each topic is listed once, and only if a row uses it."""
    array = pa.array(["unused", "a", "b", "a", "b", "unused"]).dictionary_encode()
    batch = batch_of(topic=array).slice(1, 4)
    assert ("a", "b") == record_columns(batch, topic=None).topics


@pytest.mark.parametrize("topics", [["a", "b"] * 4, ["ab", "ba"] * 4, ["aab", "aab", "aba"]])
def test_similar_topics_are_distinguished(topics):
    """Topics of equal length or with the same letters are distinguished."""
    assert topics == topics_of(batch_of(topic=topics))


def test_a_topic_column_of_type_null_contains_nulls():
    """Rows with a null topic get no topic index, so that they are rejected when they are placed."""
    for topics in (pa.nulls(2), pa.nulls(2, pa.string())):
        columns = record_columns(batch_of(topic=topics), topic=None)
        assert ((), [-1, -1]) == (columns.topics, list(columns.topic_index))


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.int32(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.binary())],
    ids=str,
)
def test_other_types_of_topics_are_rejected(kind):
    """A topic column that does not contain strings is an error."""
    with pytest.raises(SchemaError, match=r"column 'topic' has type .*must be a string"):
        record_columns(batch_of(topic=pa.nulls(1, kind)), topic=None)


def test_a_topic_is_required():
    """Without a topic column and a topic for all rows, there is no destination."""
    with pytest.raises(SchemaError, match="no column 'topic'"):
        record_columns(batch_of(), topic=None)


# --- partitions

INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]


def test_without_partitions_the_producer_chooses():
    """A missing partition column means the same as one with only nulls."""
    assert [NULL_PARTITION] == list(record_columns(batch_of(), topic="t").partition)
    columns = record_columns(batch_of(partition=pa.nulls(1)), topic="t")
    assert [NULL_PARTITION] == list(columns.partition)


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
@pytest.mark.parametrize("partitions", [[0, 5, 127], [1, None, 2], [None, None]], ids=str)
def test_partitions_of_every_integer_type_are_accepted(kind, partitions):
    """Partitions may have any integer type, and null leaves the choice to the producer."""
    batch = batch_of(partition=pa.array(partitions, kind))
    for first in range(len(partitions) + 1):
        expected = [NULL_PARTITION if p is None else p for p in partitions[first:]]
        columns = record_columns(batch.slice(first), topic="t")
        assert expected == list(columns.partition)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.float64(), pa.bool_(), pa.decimal128(5, 0), pa.date32()], ids=str
)
def test_other_types_of_partitions_are_rejected(kind):
    """A partition column that does not contain integers is an error."""
    with pytest.raises(SchemaError, match=r"column 'partition' has type .*must be an integer"):
        record_columns(batch_of(partition=pa.nulls(1, kind)), topic="t")


@pytest.mark.parametrize(
    ("kind", "partition"),
    [
        (pa.int8(), -1),
        (pa.int32(), -1),
        (pa.int32(), NULL_PARTITION),
        (pa.int64(), 2**31),
        (pa.int64(), -(2**63)),
        (pa.uint32(), 2**31),
        (pa.uint64(), 2**64 - 1),
    ],
    ids=str,
)
def test_invalid_partition_numbers_are_rejected(kind, partition):
    """The error for a partition number that no topic can have names row, topic and partition."""
    batch = batch_of(
        partition=pa.array([0, None, partition, partition], kind), topic=["t", "t", "u", "t"]
    )
    with pytest.raises(InvalidPartitionError, match="row 102, topic 'u'") as caught:
        record_columns(batch, topic=None, first_row=100)
    assert (102, "u", partition) == (
        caught.value.row,
        caught.value.topic,
        caught.value.partition,
    )


def test_the_error_for_a_row_without_a_topic_names_no_topic():
    """The error for a row without a topic does not name another row's topic."""
    batch = batch_of(partition=pa.array([0, -1], pa.int32()), topic=["t", None])
    with pytest.raises(InvalidPartitionError) as caught:
        record_columns(batch, topic=None)
    assert (1, None, -1) == (caught.value.row, caught.value.topic, caught.value.partition)


def test_values_stored_for_nulls_are_ignored():
    """The values that Arrow stores for nulls are ignored."""
    validity = pa.py_buffer(bytes([0b101]))
    partitions = pa.Array.from_buffers(
        pa.int32(), 3, [validity, pa.py_buffer(np.array([1, -7, 2], np.int32))]
    )
    timestamps = pa.Array.from_buffers(
        pa.timestamp("us"), 3, [validity, pa.py_buffer(np.array([1000, -7, 2000]))]
    )
    columns = record_columns(batch_of(partition=partitions, timestamp=timestamps), topic="t")
    assert [1, NULL_PARTITION, 2] == list(columns.partition)
    assert [1, NULL_TIMESTAMP, 2] == list(columns.timestamp)


# --- timestamps


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("s", 1_700_000_000, 1_700_000_000_000),
        ("ms", 1_700_000_000_123, 1_700_000_000_123),
        ("us", 1_700_000_000_123_999, 1_700_000_000_123),
        ("ns", 1_700_000_000_123_999_999, 1_700_000_000_123),
        ("s", 0, 0),
        ("us", 999, 0),
        ("ms", 2**63 - 1, 2**63 - 1),
        ("s", (2**63 - 1) // 1000, (2**63 - 1) // 1000 * 1000),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
def test_timestamps_of_every_unit_are_rounded_down(unit, value, expected, zone):
    """Timestamps are rounded down to milliseconds, whatever their time zone; none means UTC."""
    array = pa.array([0, None, value], pa.timestamp(unit, zone))
    for first in range(3):
        columns = record_columns(batch_of(timestamp=array).slice(first), topic="t")
        assert [0, NULL_TIMESTAMP, expected][first:] == list(columns.timestamp)


def test_time_zones_are_converted_to_utc():
    """A timestamp with a time zone is sent as the same moment in UTC."""
    moment = datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    array = pa.array([moment], pa.timestamp("us", "Asia/Kolkata"))
    (record,) = read_batch(batch_of(timestamp=array))
    assert datetime(2024, 2, 29, 7, 0, tzinfo=UTC).timestamp() * 1000 == record.timestamp


@pytest.mark.parametrize(
    ("unit", "value"), [("s", -1), ("ms", -1), ("us", -1), ("ns", -1), ("us", -(2**63))]
)
def test_timestamps_before_1970_are_rejected(unit, value):
    """Kafka accepts negative timestamps but consumers do not, so the error names the row."""
    array = pa.array([0, None, value, value], pa.timestamp(unit))
    with pytest.raises(RecordError, match="row 12, topic 't': the timestamp is before"):
        record_columns(batch_of(timestamp=array), topic="t", first_row=10)


def test_timestamps_that_overflow_are_rejected():
    """Seconds can exceed 64 bits of milliseconds, which is an error."""
    array = pa.array([0, (2**63 - 1) // 1000 + 1], pa.timestamp("s"))
    with pytest.raises(RecordError, match="row 1, topic 't': the timestamp in milliseconds does"):
        record_columns(batch_of(timestamp=array), topic="t")


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.date32(), pa.date64()], ids=str)
def test_a_timestamp_column_of_another_type_is_refused(kind):
    """Milliseconds as numbers are common, and their times must not be lost without a word."""
    with pytest.raises(SchemaError, match="it must be a timestamp: cast it, rename it or drop it"):
        record_columns(batch_of(timestamp=pa.nulls(1, kind)), topic="t")


# --- encoded columns


def by_dictionary(values: list, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode()


def by_runs(values: list, kind: pa.DataType) -> pa.Array:
    return pc.run_end_encode(pa.array(values, kind))


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("encoded", [by_dictionary, by_runs])
def test_encoded_columns_are_decoded_to_their_rows(encoded, first):
    """Dictionary- and run-end-encoded columns are decoded to their rows, in any slice."""
    batch = batch_of(
        value=encoded(["a", "a", None, "b"], pa.string()),
        key=encoded([b"k", None, None, b"k"], pa.large_binary()),
        topic=encoded(["t", "u", "u", "t"], pa.string()),
        partition=encoded([2, 2, None, 7], pa.int64()),
        timestamp=encoded([5_000, None, None, 6_999], pa.timestamp("us")),
    )
    columns = record_columns(batch.slice(first), topic=None)
    topics = [columns.topics[index] for index in columns.topic_index]
    assert ["t", "u", "u", "t"][first:] == topics
    assert [2, 2, NULL_PARTITION, 7][first:] == list(columns.partition)
    assert [5, NULL_TIMESTAMP, NULL_TIMESTAMP, 6][first:] == list(columns.timestamp)
    values = [(b"k", b"a"), (None, b"a"), (None, None), (b"k", b"b")]
    assert values[first:] == [
        (record.key, record.value) for record in read_batch(batch.slice(first))
    ]


# --- everything at once

TEXT = st.none() | st.text(max_size=10)
BYTES = st.none() | st.binary(max_size=10)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": TEXT,
            "value": BYTES,
            "topic": st.none() | st.sampled_from(["t", "u", "long.name"]),
            "partition": st.none() | st.integers(0, 2**31 - 1),
            "timestamp": st.none() | st.integers(0, 2**53),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=5), "value": BYTES}), max_size=3
            ),
        }
    ),
    max_size=30,
)
SCHEMAS = st.builds(
    lambda key, value, topic, make, unit: pa.schema(
        [
            ("key", key),
            ("value", value),
            ("topic", topic),
            ("partition", pa.int32()),
            ("timestamp", pa.timestamp(unit, "UTC")),
            ("headers", make(HEADER)),
        ]
    ),
    st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]),
    st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
    st.sampled_from(list(LISTS.values())),
    st.sampled_from(["ms", "us", "ns"]),
)


@given(rows=ROWS, schema=SCHEMAS, data=st.data())
def test_any_rows_in_any_layout_are_read(rows, schema, data):
    """Every row is read correctly, whatever the layout and the slice."""
    batch = pa.RecordBatch.from_pylist(rows, schema)
    first = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - first))
    columns = record_columns(batch.slice(first, count), topic=None)
    per_milli = {"ms": 1, "us": 1000, "ns": 1_000_000}[schema.field("timestamp").type.unit]
    expected = [
        (
            None if row["key"] is None else row["key"].encode(),
            row["value"],
            row["topic"],
            NULL_PARTITION if row["partition"] is None else row["partition"],
            NOW_MS if row["timestamp"] is None else row["timestamp"] // per_milli,
            expected_headers([row["headers"]])[0],
        )
        for row in rows[first : first + count]
    ]
    assert expected == [
        (record.key, record.value, topic, partition, record.timestamp, record.headers)
        for record, topic, partition in zip(
            read(columns),
            [columns.topics[i] if i >= 0 else None for i in columns.topic_index],
            list(columns.partition),
            strict=True,
        )
    ]
