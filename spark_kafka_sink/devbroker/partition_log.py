"""One partition's log, kept in memory as the record batches that clients sent.

Rules:

- The log takes whole batches that `log_validator` has passed, and owns their bytes from then on. It
  writes offset and leader epoch into the first 16 bytes of the batch where it lies: the checksum
  does not cover them. Records are neither copied nor decoded.
- Offsets are dense: the next batch begins where the last one ended.
- There is one replica: what is appended is committed, the high watermark is the log end. The last
  stable offset is where the oldest open transaction begins, or else the high watermark.
- Markers end a producer's transaction; those that abort one are kept in the transaction index, from
  which readers learn what to leave out.
- Reads give whole batches, uncopied. Only look-ups by time decode, and then one batch.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.leader_epoch_cache import LeaderEpochCache
from spark_kafka_sink.devbroker.producer_state import (
    ProducerBatchInfo,
    ProducerStateManager,
    TransactionMarker,
)
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.model import NO_PRODUCER_ID
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.control_batch import transaction_marker
from spark_kafka_sink.record.decode import ControlRecordType, decode_record_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.leader_epoch_cache import EpochEnd
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
    #: First offset behind the batches.
    end_offset: int


class AbortedTxn(NamedTuple):
    """A transaction that was aborted (an entry of the transaction index)."""

    producer_id: int
    first_offset: int
    #: Offset of the marker.
    last_offset: int
    #: What was stable once this transaction had ended.
    last_stable_offset: int


class TimestampAndOffset(NamedTuple):
    """A record found by its time (FileRecords.TimestampAndOffset)."""

    timestamp: int
    offset: int


class PartitionLog:
    """The batches of one partition, the offsets around them, and the producers who wrote them."""

    def __init__(self, *, leader_epoch: int = 0) -> None:
        """Begin empty, at offset 0."""
        self.log_start_offset = 0
        self.log_end_offset = 0
        #: What is appended is stamped with it.
        self.leader_epoch = leader_epoch
        self.leader_epochs = LeaderEpochCache()
        self.leader_epochs.assign(leader_epoch, 0)
        self.producer_state = ProducerStateManager()
        self._batches: list[memoryview] = []
        self._base_offsets: list[int] = []
        self._max_timestamps: list[int] = []
        #: Largest timestamp up to and including each batch: what makes time searchable.
        self._max_timestamps_so_far: list[int] = []
        #: Bytes that were ever written before each batch, and in all.
        self._positions: list[int] = []
        self._size_in_bytes = 0
        #: In the order of their markers.
        self._aborted: list[AbortedTxn] = []

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """Stamp what is appended from now on with another leader epoch."""
        self.leader_epoch = leader_epoch
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset that an open transaction hides from read_committed readers."""
        undecided = self.producer_state.first_undecided_offset
        return self.high_watermark if undecided is None else max(undecided, self.log_start_offset)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all batches, headers included."""
        return self._size_in_bytes - self._position(0)

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
                header.is_transactional,
            )
            duplicate = self.producer_state.find_duplicate(producer_batch)
            if duplicate is not None:
                return AppendResult(
                    duplicate.first_offset, duplicate.last_offset, True, duplicate.timestamp
                )
            self.producer_state.validate(producer_batch)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        result = self._append(batch, header.last_offset_delta, header.max_timestamp)
        if producer_batch is not None:
            self.producer_state.update(
                producer_batch, first_offset=result.first_offset, timestamp=header.max_timestamp
            )
        return result

    def append_marker(self, marker: TransactionMarker) -> int:
        """Append the marker that ends a producer's transaction, and tell its offset.

        Also where the producer has none open here. Raises RefusedError as
        `ProducerStateManager.validate_marker`; the log is then as it was before.
        """
        self.producer_state.validate_marker(marker)
        batch = transaction_marker(
            ControlRecordType.COMMIT if marker.committed else ControlRecordType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=marker.timestamp,
        )
        offset = self._append(memoryview(batch), 0, marker.timestamp).first_offset
        began_at = self.producer_state.end_transaction(marker)
        if began_at is not None and not marker.committed:
            self._aborted.append(
                AbortedTxn(marker.producer_id, began_at, offset, self.last_stable_offset)
            )
        return offset

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTxn]:
        """List the aborted transactions with records from `fetch_offset` to below `upper_bound`.

        TransactionIndex.collectAbortedTxns.
        """
        # Markers lie in the order of their offsets.
        first = bisect_left(self._aborted, fetch_offset, key=lambda txn: txn.last_offset)
        found = []
        for txn in itertools.islice(self._aborted, first, None):
            if txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                break
        return found

    def delete_records(self, offset: int) -> None:
        """Start at `offset`, if that is later than now; batches that lie before it go.

        UnifiedLog.maybeIncrementLogStartOffset. The offset must not be above the high watermark.
        """
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        first = self._index(offset)
        del self._batches[:first]
        del self._base_offsets[:first]
        del self._positions[:first]
        del self._max_timestamps[:first]
        self._max_timestamps_so_far = list(itertools.accumulate(self._max_timestamps, max))
        self._aborted = [txn for txn in self._aborted if txn.last_offset >= offset]

    def _append(
        self, batch: memoryview, last_offset_delta: int, max_timestamp: int
    ) -> AppendResult:
        first_offset = self.log_end_offset
        last_offset = first_offset + last_offset_delta
        _BASE_OFFSET.pack_into(batch, 0, first_offset)
        _PARTITION_LEADER_EPOCH.pack_into(
            batch, _PARTITION_LEADER_EPOCH_POSITION, self.leader_epoch
        )
        so_far = self._max_timestamps_so_far
        so_far.append(max(max_timestamp, so_far[-1]) if so_far else max_timestamp)
        self._max_timestamps.append(max_timestamp)
        self._batches.append(batch)
        self._base_offsets.append(first_offset)
        self._positions.append(self._size_in_bytes)
        self._size_in_bytes += len(batch)
        self.log_end_offset = last_offset + 1
        return AppendResult(first_offset, last_offset, False, max_timestamp)

    def read(
        self, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool = False
    ) -> FetchedRecords:
        """Return batches from the one that holds `offset` on, up to `max_bytes`.

        With `min_one_batch` the first batch comes whatever its size, with `committed` none from the
        last stable offset on. Raises RefusedError with OFFSET_OUT_OF_RANGE outside of log start to
        log end.
        """
        first = self._index(offset)
        # Transactions begin and end with whole batches.
        stop = self._index(self.last_stable_offset) if committed else len(self._batches)
        start, limit = self._position(first), self._position(stop)
        end = bisect_right(self._positions, start + max_bytes, lo=first)
        # `end` is past the last batch that *begins* within max_bytes: drop it unless it ends there.
        while end > first and self._position(end) - start > max_bytes:
            end -= 1
        end = min(end, stop)
        if end <= first:
            if not min_one_batch or first >= stop:
                return FetchedRecords([], 0, 0, offset)
            end = first + 1
        size = self._position(end) - start
        return FetchedRecords(
            self._batches[first:end],
            size,
            max(size, min(max_bytes, limit - start)),
            self._base_offsets[end] if end < len(self._batches) else self.log_end_offset,
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """Return where a leader epoch ended, if that is known; see `LeaderEpochCache.end_of`."""
        return self.leader_epochs.end_of(leader_epoch, self.log_end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Return the first record in the log that is as late as `timestamp` (milliseconds)."""
        first = bisect_left(self._max_timestamps_so_far, timestamp)
        # A batch may have what is looked for before the log's start, or promise more than it holds.
        for index in range(first, len(self._batches)):
            if self._max_timestamps[index] >= timestamp:
                found = self._first_record(index, timestamp)
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self) -> TimestampAndOffset | None:
        """Return the first record that has the largest timestamp in the log (KIP-734)."""
        if not self._batches:
            return None
        latest = self._max_timestamps_so_far[-1]
        return self._first_record(self._max_timestamps.index(latest), latest)

    def _first_record(self, index: int, timestamp: int) -> TimestampAndOffset | None:
        for record in decode_record_batch(self._batches[index]).records:
            if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
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
