"""The checks of columns before kernels read them by address."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from spark_kafka_sink.record.columns import (
    COLUMNS_DTYPE,
    NULL_PARTITION,
    NULL_SIZE,
    NULL_TIMESTAMP,
    NULL_TOPIC_INDEX,
    RECORD_FIELDS,
    BytesColumn,
    EncodedHeaders,
    HeaderColumns,
    RecordColumns,
    _blank_parts,
    constant_topic,
    null_column,
    null_partitions,
    null_timestamps,
    plain_columns,
)
from tests.support.record.record_columns import bytes_column

TWO = bytes_column([b"ab", b"c"])
ONE_EACH = np.ones(2, np.int32)


def columns(**changes) -> RecordColumns:
    """Return two valid rows with the given changes."""
    fields = {
        "num_rows": 2,
        "key": TWO,
        "value": TWO,
        "topics": ("t",),
        "topic_index": constant_topic(2),
        "partition": null_partitions(2),
        "timestamp": null_timestamps(2),
        "headers": HeaderColumns(np.array([0, 1, 2]), TWO, TWO),
    }
    return RecordColumns(**fields | changes)


def test_the_table_points_to_the_arrays():
    """The kernels' table holds the address of each array and the number of rows."""
    made = columns(encoded_headers=EncodedHeaders(ONE_EACH, TWO))
    (row,) = made.table
    assert COLUMNS_DTYPE == made.table.dtype
    assert 2 == row["num_rows"]
    for name, array in [
        ("key_offsets", TWO.offsets),
        ("key_data", TWO.data),
        ("key_validity", TWO.validity),
        ("value_offsets", TWO.offsets),
        ("topic_index", made.topic_index),
        ("partition", made.partition),
        ("timestamp", made.timestamp),
        ("header_offsets", made.headers.offsets),
        ("header_key_data", TWO.data),
        ("header_value_validity", TWO.validity),
        ("encoded_headers_counts", ONE_EACH),
        ("encoded_headers_offsets", TWO.offsets),
        ("encoded_headers_data", TWO.data),
    ]:
        assert array.ctypes.data == row[name], name


def test_absent_bitmaps_and_headers_have_no_address():
    """Columns without nulls and batches without headers have the address 0."""
    made = columns(value=TWO._replace(validity=np.zeros(0, np.uint8)), headers=None)
    (row,) = made.table
    assert (0, 0, 0) == (
        row["value_validity"],
        row["header_offsets"],
        row["encoded_headers_offsets"],
    )


@pytest.mark.parametrize("key", [TWO, null_column(2), bytes_column([None, b"k"])])
def test_plain_columns_equals_the_general_constructor(key):
    """`plain_columns` builds the same table as `RecordColumns` does."""
    made = plain_columns("t", key, TWO)
    expected = columns(key=key, headers=None)
    assert expected.table.tolist() == made.table.tolist()
    for field in dataclasses.fields(RecordColumns):
        if field.name != "table":
            assert getattr(expected, field.name) is getattr(made, field.name) or np.array_equal(
                getattr(expected, field.name), getattr(made, field.name)
            )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (bytes_column([b"k"]), TWO),
        (TWO._replace(data=TWO.data[:-1]), TWO),
        (TWO, TWO._replace(data=TWO.data[:-1])),
    ],
    ids=["fewer keys", "keys out of the data", "values out of the data"],
)
def test_keys_and_values_of_plain_records_are_checked(key, value):
    """`plain_columns` checks keys and values, since the kernels read them by address."""
    with pytest.raises(ValueError, match=r"entries, not 3|exceed its data"):
        plain_columns("t", key, value)


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 10_000, 16_384, 16_385, 100_000])
def test_constant_columns_have_the_requested_length(rows):
    """Columns of nulls, or of one topic, have the requested length."""
    column = null_column(rows)
    assert (rows + 1, 0) == (column.offsets.size, int(column.offsets.max()))
    assert max(1, math.ceil(rows / 8)) == column.validity.size
    assert not column.validity.any()
    for array, value in [
        (constant_topic(rows), 0),
        (null_partitions(rows), NULL_PARTITION),
        (null_timestamps(rows), NULL_TIMESTAMP),
    ]:
        assert rows == array.size
        assert (array == value).all()


@pytest.mark.parametrize(
    ("rows", "others", "shared"),
    [
        (1, 16_384, True),
        (16_384, 16_385, False),
        (16_385, 32_768, True),
        (32_768, 32_769, False),
    ],
)
def test_constant_columns_are_shared(rows, others, shared):
    """Constant columns share one array for each power of two from 16,384 on."""
    assert shared == np.shares_memory(null_partitions(rows), null_partitions(others))


def test_the_shared_columns_are_cached_for_32_numbers_of_rows():
    """The shared columns are cached for the 32 most recently used numbers of rows."""
    # Not through `plain_columns`: its arrays are also cached one by one, whatever ran before.
    kept = [_blank_parts(rows) for rows in range(1, 33)]
    assert all(parts is _blank_parts(rows) for rows, parts in enumerate(kept, 1))
    _blank_parts(33)
    assert kept[1] is _blank_parts(2)
    assert kept[0] is not _blank_parts(1)


def test_constant_columns_are_read_only():
    """Constant columns are read-only, since they are shared."""
    with pytest.raises(ValueError, match="read-only"):
        null_timestamps(5)[0] = 1


def test_the_markers_for_nulls_are_fixed():
    """The markers for nulls have fixed values, since they are compiled into the kernels."""
    assert (-(2**31), -(2**63), -1) == (NULL_PARTITION, NULL_TIMESTAMP, NULL_TOPIC_INDEX)
    assert (-1, 4) == (NULL_SIZE, RECORD_FIELDS)


def test_a_bitmap_may_end_with_the_last_row():
    """A bitmap needs no bits past the last row, and by default starts at its first bit."""
    made = columns(key=TWO._replace(validity_offset=6))
    assert 6 == made.table["key_validity_offset"][0]
    assert 0 == BytesColumn(TWO.offsets, TWO.data).validity_offset


def test_the_repr_shows_no_addresses():
    """The repr does not show the table of addresses."""
    assert "table" not in repr(columns())


def test_an_empty_batch_is_valid():
    """A batch without rows is valid."""
    empty = BytesColumn(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    made = RecordColumns(
        num_rows=0,
        key=empty,
        value=empty,
        topics=(),
        topic_index=constant_topic(0),
        partition=null_partitions(0),
        timestamp=null_timestamps(0),
    )
    assert 0 == made.num_rows


def test_columns_are_immutable():
    """Columns are immutable, since the table would no longer match them."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        columns().num_rows = 3


OFFSETS = TWO.offsets
BAD_BYTES_COLUMNS = [
    (TWO._replace(offsets=np.array([0, 2])), "has 2 entries, not 3"),
    (TWO._replace(offsets=np.array([0, 2, 3, 3])), "has 4 entries, not 3"),
    (TWO._replace(offsets=OFFSETS.astype(np.int32)), "array of int64"),
    (TWO._replace(offsets=np.repeat(OFFSETS, 2)[::2]), "contiguous"),
    (TWO._replace(offsets=np.array([0, 2, 4])), "exceed its data"),
    (TWO._replace(offsets=np.array([-1, 2, 3])), "exceed its data"),
    (TWO._replace(offsets=np.array([0, 3, 2])), "must not decrease"),
    (TWO._replace(data=TWO.data.view(np.int8)), "array of uint8"),
    (TWO._replace(data=np.repeat(TWO.data, 2)[::2]), "contiguous"),
    (TWO._replace(validity=TWO.validity.astype(np.int64)), "array of uint8"),
    (TWO._replace(validity_offset=7), "fewer bits"),
    (TWO._replace(validity_offset=-1), "fewer bits"),
]


@pytest.mark.parametrize("field", ["key", "value", "header values"])
@pytest.mark.parametrize(("column", "complaint"), BAD_BYTES_COLUMNS)
def test_inconsistent_bytes_columns_are_rejected(field, column, complaint):
    """Inconsistent offsets, data and bitmaps are rejected in every column of byte strings."""
    headers = HeaderColumns(np.array([0, 1, 2]), TWO, column)
    with pytest.raises(ValueError, match=complaint):
        columns(**{"headers": headers} if field == "header values" else {field: column})


@pytest.mark.parametrize(("column", "complaint"), BAD_BYTES_COLUMNS[2:])
def test_inconsistent_header_keys_are_rejected(column, complaint):
    """Inconsistent columns of header keys are rejected."""
    with pytest.raises(ValueError, match=complaint):
        columns(headers=HeaderColumns(np.array([0, 1, 2]), column, TWO))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"topic_index": np.zeros(3, np.int32)}, "topic_index has 3 entries"),
        ({"topic_index": np.zeros(2, np.int64)}, "array of int32"),
        ({"topic_index": np.array([0, 1], np.int32)}, "outside of topics"),
        ({"topic_index": np.array([0, -2], np.int32)}, "outside of topics"),
        ({"topics": ()}, "outside of topics"),
        ({"partition": np.zeros(1, np.int32)}, "partition has 1 entries"),
        ({"partition": np.zeros(2, np.int64)}, "array of int32"),
        ({"partition": np.zeros((2, 1), np.int32)}, "array of int32"),
        ({"timestamp": np.zeros(1, np.int64)}, "timestamp has 1 entries"),
        ({"timestamp": np.zeros(2, np.uint64)}, "array of int64"),
        ({"headers": HeaderColumns(np.array([0, 1]), TWO, TWO)}, "has 2 entries"),
        ({"headers": HeaderColumns(np.array([0, 1, 3]), TWO, TWO)}, "exceed its data"),
        ({"headers": HeaderColumns(np.array([0, 2, 1]), TWO, TWO)}, "must not decrease"),
        ({"encoded_headers": EncodedHeaders(np.zeros(1, np.int32), TWO)}, "has 1 entries, not 2"),
        ({"encoded_headers": EncodedHeaders(np.zeros(2), TWO)}, "array of int32"),
        ({"encoded_headers": EncodedHeaders(ONE_EACH, TWO._replace(data=TWO.data[1:]))}, "exceed"),
        ({"encoded_headers": EncodedHeaders(ONE_EACH - 2, TWO)}, "must not be negative"),
    ],
)
def test_arrays_of_unexpected_type_or_length_are_rejected(changes, complaint):
    """Arrays of a type or length that the kernels do not expect are rejected."""
    with pytest.raises(ValueError, match=complaint):
        columns(**changes)


@pytest.mark.parametrize(
    "module",
    ["columns", "record_batch", "compression", "decode", "default_record"],
)
def test_only_kernels_import_numba(module):
    """The modules for readers and the embedded broker import neither numba nor pyarrow."""
    code = (
        f"import sys, spark_kafka_sink.record.{module}; "
        "print([name for name in ('numba', 'pyarrow', 'pyspark') if name in sys.modules])"
    )
    output = subprocess.run(  # noqa: S603  our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    assert "[]\n" == output.stdout
