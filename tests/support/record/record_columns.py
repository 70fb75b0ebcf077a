"""Columns of Python values, for tests of the producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_kafka_sink.record.columns import (
    NULL_PARTITION,
    BytesColumn,
    RecordColumns,
    constant_topic,
    null_column,
    null_timestamps,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def bytes_column(values: Sequence[bytes | None]) -> BytesColumn:
    """Convert byte strings to Arrow's layout."""
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    validity = np.packbits(
        np.array([value is not None for value in values], np.bool_), bitorder="little"
    )
    return BytesColumn(offsets, data, validity)


def columns(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    partitions: Sequence[int | None] | None = None,
    topic: str = "t",
    topics: Sequence[str | None] | None = None,
) -> RecordColumns:
    """Create the columns of these rows, without timestamps and headers."""
    rows = len(values)
    names = (topic,) if topics is None else tuple(dict.fromkeys(t for t in topics if t is not None))
    index = (
        constant_topic(rows)
        if topics is None
        else np.array([-1 if t is None else names.index(t) for t in topics], np.int32)
    )
    return RecordColumns(
        num_rows=rows,
        key=null_column(rows) if keys is None else bytes_column(keys),
        value=bytes_column(values),
        topics=names,
        topic_index=index,
        partition=np.array(
            [NULL_PARTITION if p is None else p for p in partitions or [None] * rows], np.int32
        ),
        timestamp=null_timestamps(rows),
    )
