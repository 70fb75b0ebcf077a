"""The sizes of records in columns, compared with the records as they are encoded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spark_kafka_sink.record.columns import (
    NULL_SIZE,
    BytesColumn,
    EncodedHeaders,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_column,
    null_partitions,
    null_timestamps,
)
from spark_kafka_sink.record.default_record import encode_record
from spark_kafka_sink.record.record_sizes import record_sizes
from tests.support.record.record_columns import bytes_column


def columns(key, value, headers=None) -> RecordColumns:
    rows = value.offsets.size - 1
    return RecordColumns(
        num_rows=rows,
        key=key,
        value=value,
        topics=("t",),
        topic_index=constant_topic(rows),
        partition=null_partitions(rows),
        timestamp=null_timestamps(rows),
        headers=headers,
    )


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8_191, 8_192, 1_048_575, 1_048_576])
def test_a_record_has_its_encoded_size(size):
    """The lengths of fields take one byte more from certain sizes on."""
    content = b"v" * size
    sizes = record_sizes(columns(bytes_column([b"k", None]), bytes_column([content, content])))
    assert [1, NULL_SIZE] == sizes.key.tolist()
    assert [size, size] == sizes.value.tolist()
    encoded = [encode_record(key, content) for key in (b"k", None)]
    assert list(map(len, encoded)) == sizes.record.tolist()


def test_headers_count():
    """Names, values and null values of all headers are part of a record, also if it has none."""
    names, values = [b"a" * 70, b"b", b"c"], [b"1", None, b"3" * 200]
    headers = HeaderColumns(np.array([0, 2, 2, 3]), bytes_column(names), bytes_column(values))
    value = bytes_column([b"v"] * 3)
    sizes = record_sizes(columns(null_column(3), value, headers))
    pairs = [(name.decode(), content) for name, content in zip(names, values, strict=True)]
    encoded = [encode_record(None, b"v", headers=part) for part in (pairs[:2], [], pairs[2:])]
    assert list(map(len, encoded)) == sizes.record.tolist()


def test_encoded_headers_count():
    """They are added to those of the columns, if there are any."""
    names, values = [b"a" * 70, b"b"], [b"1", None]
    own = HeaderColumns(np.array([0, 2, 2]), bytes_column(names), bytes_column(values))
    blocks = [b"\x02c\x02d", b"\x02c\x02d" * 100]
    encoded = EncodedHeaders(np.array([1, 100], np.int32), bytes_column(blocks))
    value = bytes_column([b"v"] * 2)
    pairs = [("a" * 70, b"1"), ("b", None)]
    more = [("c", b"d")]
    for headers, first in ((own, pairs), (None, [])):
        made = replace(columns(null_column(2), value, headers), encoded_headers=encoded)
        expected = [
            len(encode_record(None, b"v", headers=part)) for part in (first + more, more * 100)
        ]
        assert expected == record_sizes(made).record.tolist()


def test_nulls_are_found_in_a_part_of_a_column():
    """The bits of a slice begin anywhere, and its offsets are not from 0."""
    sliced = BytesColumn(
        np.array([3, 4, 4, 6]), np.zeros(6, np.uint8), np.array([0b1011_1000], np.uint8), 3
    )
    assert [1, 0, 2] == record_sizes(columns(sliced, sliced)).value.tolist()
    last_null = sliced._replace(validity=np.array([0b0001_1000], np.uint8))
    assert [1, 0, NULL_SIZE] == record_sizes(columns(last_null, last_null)).key.tolist()
