"""One partition's log, kept in memory as the record batches that clients sent.

Rules:

- The log takes whole batches that `log_validator` has passed, and owns their bytes from then on. It
  writes offset and leader epoch into the first 16 bytes of the batch where it lies: the checksum
  does not cover them. Records are neither copied nor decoded.
- Offsets are dense: the next batch begins where the last one ended.
- There is one replica: what is appended is committed, the high watermark is the log end. There are
  no transactions: the last stable offset is the high watermark.
- Reads give whole batches, uncopied. Only look-ups by time decode, and then one batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.producer_state import ProducerBatchInfo, ProducerStateManager
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.model import NO_PRODUCER_ID
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import decode_record_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.record.record_batch import RecordBatchHeader

_BASE_OFFSET = struct.Struct(">q")
_PARTITION_LEADER_EPOCH = struct.Struct(">i")
_PARTITION_LEADER_EPOCH_POSITION = 12


class AppendResult(NamedTuple):
    """Where a batch lies (LogAppendInfo)."""

    first_offset: int
    last_offset: int
    #: The batch had been appended before; the offsets are those of the first time.
    duplicate: bool
    #: Largest timestamp of the batch as it was first appended, in milliseconds.
    timestamp: int


class FetchedRecords(NamedTuple):
    """Whole batches from the log."""

    batches: list[memoryview]
    size_in_bytes: int
    #: What Kafka would have given, which cuts the last batch off where the limit lies.
    readable_bytes: int


class TimestampAndOffset(NamedTuple):
    """A record found by its time (FileRecords.TimestampAndOffset)."""

    timestamp: int
    offset: int


class PartitionLog:
    """The batches of one partition, the offsets around them, and the producers who wrote them."""

    def __init__(self, *, leader_epoch: int = 0) -> None:
        """Begin empty, at offset 0."""
        self.leader_epoch = leader_epoch
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.producer_state = ProducerStateManager()
        self._batches: list[memoryview] = []
        self._base_offsets: list[int] = []
        self._max_timestamps: list[int] = []
        #: Largest timestamp up to and including each batch: what makes time searchable.
        self._max_timestamps_so_far: list[int] = []
        #: Bytes of the log before each batch.
        self._positions: list[int] = []
        self._size_in_bytes = 0

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset that an open transaction hides from read_committed readers."""
        return self.high_watermark

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches, headers included."""
        return self._size_in_bytes

    def batches(self) -> Iterator[memoryview]:
        """Give the batches in order, each one whole."""
        return iter(self._batches)

    def append(self, batch: memoryview, header: RecordBatchHeader) -> AppendResult:
        """Append a validated batch and tell its offsets (UnifiedLog.append).

        `batch` is one whole record batch; its memory now belongs to the log. Raises RefusedError
        for what its producer's sequence rules forbid; the log is then as it was before.
        """
        producer_batch: ProducerBatchInfo | None = None
        if header.producer_id != NO_PRODUCER_ID:
            producer_batch = ProducerBatchInfo(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
            )
            duplicate = self.producer_state.find_duplicate(producer_batch)
            if duplicate is not None:
                return AppendResult(
                    duplicate.first_offset, duplicate.last_offset, True, duplicate.timestamp
                )
            self.producer_state.validate(producer_batch)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        first_offset = self.log_end_offset
        last_offset = first_offset + header.last_offset_delta
        _BASE_OFFSET.pack_into(batch, 0, first_offset)
        _PARTITION_LEADER_EPOCH.pack_into(
            batch, _PARTITION_LEADER_EPOCH_POSITION, self.leader_epoch
        )
        max_timestamp = header.max_timestamp
        so_far = self._max_timestamps_so_far
        so_far.append(max(max_timestamp, so_far[-1]) if so_far else max_timestamp)
        self._max_timestamps.append(max_timestamp)
        self._batches.append(batch)
        self._base_offsets.append(first_offset)
        self._positions.append(self._size_in_bytes)
        self._size_in_bytes += len(batch)
        self.log_end_offset = last_offset + 1
        if producer_batch is not None:
            self.producer_state.update(
                producer_batch, first_offset=first_offset, timestamp=max_timestamp
            )
        return AppendResult(first_offset, last_offset, False, max_timestamp)

    def read(self, offset: int, *, max_bytes: int, min_one_batch: bool) -> FetchedRecords:
        """Return batches from the one that holds `offset` on, up to `max_bytes`.

        With `min_one_batch` the first batch comes whatever its size. Raises RefusedError with
        OFFSET_OUT_OF_RANGE outside of log start to log end.
        """
        first = self._index(offset)
        start = self._position(first)
        end = bisect_right(self._positions, start + max_bytes, lo=first)
        # `end` is past the last batch that *begins* within max_bytes: drop it unless it ends there.
        while end > first and self._position(end) - start > max_bytes:
            end -= 1
        if end == first:
            if not min_one_batch or first == len(self._batches):
                return FetchedRecords([], 0, 0)
            end = first + 1
        size = self._position(end) - start
        return FetchedRecords(
            self._batches[first:end], size, max(size, min(max_bytes, self._size_in_bytes - start))
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """Return the offset after the last one that was written in a leader epoch, if known.

        The log has known one leader epoch only.
        """
        return self.log_end_offset if leader_epoch == self.leader_epoch else None

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Return the first record in the log that is as late as `timestamp` (milliseconds)."""
        index = bisect_left(self._max_timestamps_so_far, timestamp)
        if index == len(self._batches):
            return None
        return self._first_record(index, timestamp)

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """Return the first record that has the largest timestamp in the log (KIP-734)."""
        if not self._batches:
            return None
        latest = self._max_timestamps_so_far[-1]
        return self._first_record(self._max_timestamps.index(latest), latest)

    def _first_record(self, index: int, timestamp: int) -> TimestampAndOffset | None:
        for record in decode_record_batch(self._batches[index]).records:
            if record.timestamp >= timestamp:
                return TimestampAndOffset(record.timestamp, record.offset)
        # The batch's header promised a later record than it holds.
        return None

    def _index(self, offset: int) -> int:
        """Return the place of the batch that holds `offset`; at the log end, the one to come."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset == self.log_end_offset:
            return len(self._batches)
        return bisect_right(self._base_offsets, offset) - 1

    def _position(self, index: int) -> int:
        """Return the bytes of the log before a batch, or of the whole log past the last one."""
        return self._positions[index] if index < len(self._positions) else self._size_in_bytes
