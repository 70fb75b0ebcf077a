"""The sizes of keys, values and records in columns, without writing them.

A record has the size that it takes as the first one of a batch, before compression. A later one of
the same batch may take a few bytes more, for its offset and its timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spark_kafka_sink.record.columns import NULL_SIZE

if TYPE_CHECKING:
    from spark_kafka_sink.record.columns import (
        BytesColumn,
        Int64Array,
        RecordColumns,
    )

#: The attributes, and the differences in time and offset to the first record of the batch.
_FIXED_BYTES = 3
#: The largest numbers whose varints have one byte, two, three and four.
_VARINT_LIMITS = np.array([(1 << bits) - 1 for bits in (7, 14, 21, 28)], np.int64)


class RecordSizes(NamedTuple):
    """The sizes in bytes of the rows of columns; `NULL_SIZE` for a key or value that is null."""

    key: Int64Array
    value: Int64Array
    record: Int64Array


def record_sizes(columns: RecordColumns) -> RecordSizes:
    """Return the sizes of all rows."""
    key, value = _lengths(columns.key), _lengths(columns.value)
    body = _FIXED_BYTES + _field_bytes(key) + _field_bytes(value) + _headers_bytes(columns)
    return RecordSizes(key, value, _varint_bytes(body) + body)


def _lengths(column: BytesColumn) -> Int64Array:
    lengths = np.diff(column.offsets)
    if not column.validity.size:
        return lengths
    first = column.validity_offset
    bits = np.unpackbits(column.validity, count=first + lengths.size, bitorder="little")
    return np.where(bits[first:], lengths, NULL_SIZE)


def _varint_bytes(lengths: Int64Array) -> Int64Array:
    """Return how many bytes the varints of lengths take; that of null is -1."""
    zigzagged = np.where(lengths < 0, 1, lengths << 1)
    return 1 + np.searchsorted(_VARINT_LIMITS, zigzagged)


def _field_bytes(lengths: Int64Array) -> Int64Array:
    return _varint_bytes(lengths) + np.maximum(lengths, 0)


def _headers_bytes(columns: RecordColumns) -> Int64Array:
    headers, encoded = columns.headers, columns.encoded_headers
    counts, sizes = (np.zeros(columns.num_rows, np.int64) for _ in range(2))
    if headers is not None:
        each = _field_bytes(_lengths(headers.keys)) + _field_bytes(_lengths(headers.values))
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])[headers.offsets]
        counts, sizes = np.diff(headers.offsets), np.diff(total)
    if encoded is not None:
        counts, sizes = counts + encoded.counts, sizes + _lengths(encoded.headers)
    return _varint_bytes(counts) + sizes
