"""Arrow batches of rows, and the records that a consumer would read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.decode import Header, Record, decode_record_batch
from tests.support.record.kernel_batches import write_records

if TYPE_CHECKING:
    from spark_kafka_sink.record.columns import RecordColumns

#: The supported types of keys and values.
STRINGS_AND_BINARIES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(3),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_binary()),
]
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(HEADER)
#: The time of sending, for rows without a timestamp.
NOW_MS = 1_700_000_000_000
#: Constructors of all list types, by name.
LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def batch_of(**columns) -> pa.RecordBatch:
    """Create a batch of lists or Arrow arrays; `value` is added if left out."""
    rows = len(next(iter(columns.values()))) if columns else 1
    return pa.record_batch({"value": pa.array([b"v"] * rows), **columns})


def read(columns: RecordColumns) -> list[Record]:
    """Return the records that a consumer would read, if the rows were sent at `NOW_MS`."""
    if columns.num_rows == 0:
        return []
    return decode_record_batch(write_records(columns, now_ms=NOW_MS).batch()).records


def read_batch(batch: pa.RecordBatch, **options) -> list[Record]:
    """Return the records that a consumer would read if a batch was written to topic `t`."""
    return read(record_columns(batch, topic="t", **options))


def expected_headers(rows) -> list[tuple[Header, ...]]:
    """Return the headers of rows in the form that records have."""
    return [tuple(Header(h["key"], h["value"]) for h in row or ()) for row in rows]
