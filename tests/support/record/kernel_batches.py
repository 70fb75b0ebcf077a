"""Batches written by the kernels from Python values, complete and ready to be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hypothesis import strategies as st

from spark_kafka_sink.record.columns import (
    NULL_TIMESTAMP,
    HeaderColumns,
    RecordColumns,
    constant_topic,
    null_partitions,
)
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.kernel.kernel import (
    SLOT_DTYPE,
    STICKY_DTYPE,
    AppendStatus,
    append_rows,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, write_header
from tests.support.record.plain_batches import PlainRecord
from tests.support.record.record_columns import bytes_column

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The byte behind every slot's limit, which reveals writes beyond the limit.
GUARD = 0xA5
GUARD_BYTES = 64
#: Records of one batch, at least one; for properties.
RECORDS = st.lists(
    st.builds(
        PlainRecord,
        value=st.none() | st.binary(max_size=300),
        key=st.none() | st.binary(max_size=20),
        timestamp=st.integers(0, 2**45),
        headers=st.lists(
            st.tuples(st.text(max_size=5).map(str.encode), st.none() | st.binary(max_size=5)),
            max_size=2,
        ).map(tuple),
    ),
    min_size=1,
    max_size=80,
)


class Slots:
    """Empty open slots with buffers of `capacity` bytes each, and a guard behind each buffer."""

    def __init__(self, count: int, *, capacity: int = 1 << 16) -> None:
        self.buffers = [np.full(capacity + GUARD_BYTES, GUARD, np.uint8) for _ in range(count)]
        self.table = np.zeros(count, SLOT_DTYPE)
        for slot, buffer in zip(self.table, self.buffers, strict=True):
            slot["address"] = buffer.ctypes.data
            slot["position"] = RECORD_BATCH_OVERHEAD
            slot["limit"] = capacity

    def payload(self, index: int = 0) -> bytes:
        """Return the records in a slot; fail if anything was written beyond its limit."""
        slot, buffer = self.table[index], self.buffers[index]
        assert (buffer[slot["limit"] :] == GUARD).all()
        return bytes(buffer[RECORD_BATCH_OVERHEAD : slot["position"]])


def no_sticky(topics: int = 1) -> np.ndarray:
    """Create a sticky table in which no partition is chosen."""
    sticky = np.zeros(topics, STICKY_DTYPE)
    sticky["slot"] = -1
    return sticky


def header_columns(headers: Sequence[Sequence[tuple[bytes, bytes | None]]]) -> HeaderColumns:
    """Convert each row's headers to Arrow's layout."""
    elements = [header for of_row in headers for header in of_row]
    return HeaderColumns(
        offsets=np.concatenate([[0], np.cumsum([len(of_row) for of_row in headers])]).astype(
            np.int64
        ),
        keys=bytes_column([key for key, _ in elements]),
        values=bytes_column([value for _, value in elements]),
    )


def columns_of(records: Sequence[PlainRecord], *, with_headers: bool = True) -> RecordColumns:
    """Create the columns of records for topic `t`; a timestamp of -1 means the append time."""
    rows = len(records)
    return RecordColumns(
        num_rows=rows,
        key=bytes_column([record.key for record in records]),
        value=bytes_column([record.value for record in records]),
        topics=("t",),
        topic_index=constant_topic(rows),
        partition=null_partitions(rows),
        timestamp=np.array(
            [NULL_TIMESTAMP if r.timestamp == -1 else r.timestamp for r in records], np.int64
        ),
        headers=header_columns([record.headers for record in records]) if with_headers else None,
    )


class Written(NamedTuple):
    """Records as the kernel wrote them, all in one batch."""

    payload: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def batch(
        self,
        compression: CompressionType = CompressionType.NONE,
        level: int | None = None,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        """Compress the records and prepend the header."""
        payload = bytes(Compressor(compression, level).compress(self.payload))
        target = bytearray(RECORD_BATCH_OVERHEAD) + payload
        write_header(
            target,
            payload,
            compression=compression,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
            transactional=transactional,
        )
        return bytes(target)


def write_records(columns: RecordColumns, *, now_ms: int = 0, capacity: int = 1 << 20) -> Written:
    """Write all rows into one batch with the kernel."""
    slots = Slots(1, capacity=capacity)
    result = append_rows(
        columns,
        np.zeros(columns.num_rows, np.int32),
        0,
        slots.table,
        no_sticky(len(columns.topics)),
        now_ms,
        capacity,
    )
    assert (columns.num_rows, AppendStatus.ALL_APPENDED) == (result.next_row, result.status)
    slot = slots.table[0]
    return Written(
        slots.payload(),
        int(slot["record_count"]),
        int(slot["base_timestamp"]),
        int(slot["max_timestamp"]),
    )
