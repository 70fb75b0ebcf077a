"""One partition's log: the record batches that clients sent, in segments.

The counterpart of Kafka's UnifiedLog and LocalLog, in memory by default, on disk with a directory.
Rules:

- The log takes whole batches that `log_validator` has accepted, and owns their bytes from then on.
  It writes offset and leader epoch into the first 16 bytes of the batch in place: the checksum does
  not cover them. Records are neither copied nor decoded.
- Offsets are dense: each batch begins where the last one ended. (Compaction leaves gaps later.)
- Without other replicas appended records are committed, and the high watermark is the log end.
  With others (`begin_replication`) the leader or the fetcher moves the high watermark. The last
  stable offset is where the oldest transaction begins whose end is not committed, or else the high
  watermark.
- Markers end a producer's transaction; those that abort one are listed in the transaction index,
  from which readers learn what to skip.
- Batches are appended to the active segment. A segment that is rolled is flushed, and the producer
  state is stored as a snapshot. Otherwise flushing is left to the operating system unless
  `flush.messages` or `flush.ms` require it: written data survives the end of the process.
- Writing comes first: the log changes in memory once it has succeeded. An append is one write, of
  the batch; all other files can be rebuilt from the batches and are written with the next flush,
  and only then does the recovery point move. A full disk rejects batches but damages none.
- Reads return whole batches of one segment. Only look-ups by timestamp decode, one batch at a time.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
from spark_kafka_sink.devbroker.log.log_directory import LogDirectory
from spark_kafka_sink.devbroker.log.log_loader import (
    EndedTxn,
    LoadedLog,
    end_transaction,
    replay_batch,
    replay_truncated,
)
from spark_kafka_sink.devbroker.log.log_segment import BatchSpan, FetchedRecords, LogSegment
from spark_kafka_sink.devbroker.log.producer_state import (
    ProducerBatchInfo,
    ProducerStateManager,
    TransactionMarker,
    encode_snapshot,
)
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_LEADER_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.decode import (
    DecodeBudget,
    decode_control_record,
    decode_record_batch,
    decode_within,
)
from spark_kafka_sink.record.record_batch import (
    ControlRecordType,
    split_record_batches,
    transaction_marker,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.log.indexes import AbortedTxn
    from spark_kafka_sink.devbroker.log.leader_epoch_cache import EpochEnd
    from spark_kafka_sink.record.decode import Record
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

_BASE_OFFSET = struct.Struct(">q")
_PARTITION_LEADER_EPOCH = struct.Struct(">i")
_PARTITION_LEADER_EPOCH_POSITION = 12
_READ_BYTES = 8 * 1024 * 1024


class AppendResult(NamedTuple):
    """The outcome of an append (LogAppendInfo)."""

    first_offset: int
    last_offset: int
    #: Whether the batch had been appended before; the offsets are then those of the first time.
    duplicate: bool
    #: Largest timestamp of the batch as it was first appended, in milliseconds.
    timestamp: int


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp (FileRecords.TimestampAndOffset)."""

    timestamp: int
    offset: int


class PartitionLog:
    """The batches of one partition, with their offsets and producer state."""

    def __init__(
        self,
        *,
        leader_epoch: int = 0,
        config: TopicConfig | None = None,
        directory: LogDirectory | None = None,
        loaded: LoadedLog | None = None,
        now_ms: int = 0,
    ) -> None:
        """Continue a log that was loaded from `directory`, or start an empty one at offset 0.

        Without a directory the log is in memory. `config` holds the topic's settings. A loaded log
        continues with its last leader epoch, unless `leader_epoch` is a later one.
        """
        #: Where the log is stored.
        self.directory = directory or LogDirectory()
        #: The topic's settings; assign new ones here.
        self.config = config or TopicConfig()
        if loaded is None:
            loaded = LoadedLog(segments=[self.directory.new_segment(0, now_ms=now_ms)])
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        #: All records before this offset have been flushed.
        self.recovery_point = loaded.recovery_point
        #: All records before this offset have been cleaned, if the topic is compacted.
        self.first_dirty_offset = 0
        self.producer_state = loaded.producer_state
        self._segments = loaded.segments
        self._base_offsets = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        #: Where each leader epoch began.
        self.leader_epochs = loaded.leader_epochs
        #: Written into every appended batch.
        self.leader_epoch = leader_epoch
        self.begin_leader_epoch(max(leader_epoch, loaded.leader_epochs.latest or 0))
        self._last_flushed_ms = now_ms
        #: The high watermark; None without other replicas, where it is the log end.
        self._high_watermark: int | None = None
        #: Transactions that have ended at or above the high watermark, the oldest first.
        self._unreplicated: list[EndedTxn] = []

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch, which is written into all batches appended from now on."""
        self.leader_epoch = leader_epoch
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)
        self.leader_epochs.try_flush(self.directory)

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed."""
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset that a transaction hides from read_committed consumers.

        It does so until it has ended, and its marker is below the high watermark.
        """
        undecided = self.producer_state.first_undecided_offset
        if self._high_watermark is not None:
            return self._replicated_stable_offset(self._high_watermark, undecided)
        return self.log_end_offset if undecided is None else max(undecided, self.log_start_offset)

    def _replicated_stable_offset(self, high_watermark: int, undecided: int | None) -> int:
        stable = min([high_watermark, *(txn.first_offset for txn in self._unreplicated)])
        return max(stable if undecided is None else min(stable, undecided), self.log_start_offset)

    def begin_replication(self, high_watermark: int) -> None:
        """Continue as one of several replicas, with the high watermark of the last checkpoint."""
        self._high_watermark = self._within_log(high_watermark)

    def update_high_watermark(self, offset: int) -> bool:
        """Move the high watermark, within the log; return whether it has changed.

        The counterpart of UnifiedLog.maybeUpdateHighWatermark.
        """
        previous, self._high_watermark = self._high_watermark, self._within_log(offset)
        self._unreplicated = [txn for txn in self._unreplicated if txn.last_offset >= offset]
        return self._high_watermark != previous

    def _within_log(self, offset: int) -> int:
        return min(max(offset, self.log_start_offset), self.log_end_offset)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record, -1 if there are no records."""
        if self.log_end_offset == self.log_start_offset:
            return NO_LEADER_EPOCH
        epoch = self.leader_epochs.epoch_at(self.log_end_offset - 1)
        return NO_LEADER_EPOCH if epoch is None else epoch

    @property
    def size_in_bytes(self) -> int:
        """The bytes of all batches, headers included."""
        return sum(segment.size_in_bytes for segment in self._segments)

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """All segments, the active one last."""
        return tuple(self._segments)

    def batches(self) -> Iterator[memoryview]:
        """Yield the batches in order, each one whole."""
        for segment in self._segments:
            for span in segment.spans():
                yield segment.batch(span)

    def append(
        self,
        batch: memoryview,
        header: RecordBatchHeader,
        *,
        now_ms: int = 0,
        from_coordinator: bool = False,
    ) -> AppendResult:
        """Append a validated batch and return its offsets (UnifiedLog.append).

        `batch` is one whole record batch; its memory now belongs to the log. A coordinator writes
        for producers without sequence numbers (AppendOrigin.COORDINATOR). Raises RefusedError
        if the batch violates the sequence rules of its producer, and with KAFKA_STORAGE_ERROR if it
        cannot be written; then nothing has changed.
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
            if not from_coordinator:
                duplicate = self.producer_state.find_duplicate(producer_batch)
                if duplicate is not None:
                    return AppendResult(
                        duplicate.first_offset, duplicate.last_offset, True, duplicate.timestamp
                    )
                self.producer_state.validate(producer_batch)
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        result = self._append(batch, header.last_offset_delta, header.max_timestamp, now_ms)
        if producer_batch is not None:
            self.producer_state.update(
                producer_batch, first_offset=result.first_offset, timestamp=header.max_timestamp
            )
        return result

    def append_marker(self, marker: TransactionMarker) -> int:
        """Append the marker that ends a producer's transaction, and return its offset.

        The producer need not have a transaction open here. Raises RefusedError as
        `ProducerStateManager.validate_marker`; then nothing has changed.
        """
        self.producer_state.validate_marker(marker)
        batch = transaction_marker(
            ControlRecordType.COMMIT if marker.committed else ControlRecordType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=marker.timestamp,
        )
        offset = self._append(memoryview(batch), 0, marker.timestamp, marker.timestamp).first_offset
        ended = end_transaction(self.producer_state, marker, offset)
        if ended is not None:
            self._add_ended(ended)
        return offset

    def _add_ended(self, ended: EndedTxn) -> None:
        if self._high_watermark is not None:
            self._unreplicated.append(ended)
        if ended.aborted is not None:
            self._active.transaction_index.append(ended.aborted)

    def append_as_follower(self, records: memoryview, *, now_ms: int = 0) -> int:
        """Append copies of the leader's batches, with their offsets; return the log end.

        The counterpart of UnifiedLog.appendAsFollower. `records` may end with an incomplete batch,
        which is ignored. Raises CorruptRecordError for a batch that does not follow the log end,
        and RefusedError with KAFKA_STORAGE_ERROR if one cannot be written; the batches before it
        are appended.
        """
        for piece in split_record_batches(records):
            batch = memoryview(bytearray(piece))
            header = validate_record_batch(batch)
            first_offset = header.base_offset
            if first_offset < self.log_end_offset:
                raise CorruptRecordError(
                    f"the leader has sent a batch with offset {first_offset}, but the log ends at "
                    f"{self.log_end_offset}"
                )
            self._write(batch, header.last_offset, header.max_timestamp, now_ms)
            epoch = header.partition_leader_epoch
            latest = self.leader_epochs.latest
            if epoch > (NO_LEADER_EPOCH if latest is None else latest):
                self.leader_epochs.assign(epoch, first_offset)
            ended = replay_batch(batch, header, self.producer_state)
            if ended is not None:
                self._add_ended(ended)
        return self.log_end_offset

    def _append(
        self, batch: memoryview, last_offset_delta: int, max_timestamp: int, now_ms: int
    ) -> AppendResult:
        size = len(batch)
        if size > self.config.segment_bytes:
            raise RefusedError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batches have {size} bytes; segment.bytes of the topic is "
                f"{self.config.segment_bytes}",
            )
        first_offset = self.log_end_offset
        last_offset = first_offset + last_offset_delta
        _BASE_OFFSET.pack_into(batch, 0, first_offset)
        _PARTITION_LEADER_EPOCH.pack_into(
            batch, _PARTITION_LEADER_EPOCH_POSITION, self.leader_epoch
        )
        self._write(batch, last_offset, max_timestamp, now_ms)
        return AppendResult(first_offset, last_offset, False, max_timestamp)

    def _write(self, batch: memoryview, last_offset: int, max_timestamp: int, now_ms: int) -> None:
        config = self.config
        must_flush = last_offset >= self.recovery_point + config.flush_messages - 1
        with refused_if_disk_fails("the batch cannot be written"):
            if self._active.should_roll(config, len(batch), last_offset, max_timestamp, now_ms):
                self.roll(now_ms)
            if must_flush:
                self._flush_older_segments(now_ms)
            self._active.append(batch, last_offset, max_timestamp, config, flush=must_flush)
        self.log_end_offset = last_offset + 1
        if must_flush:
            self.recovery_point = self.log_end_offset
            self._last_flushed_ms = now_ms

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end (LocalLog.roll), unless the active one is empty.

        Raises OSError; then the log has not changed, and a file that was created is used later or
        removed by the next start.
        """
        if self._active.base_offset == self.log_end_offset:
            return
        self._active.become_inactive()
        self.flush(now_ms)
        base_offset = self.log_end_offset
        self.take_snapshot()
        segment = self.directory.new_segment(base_offset, now_ms=now_ms)
        self.directory.flush()
        self._segments.append(segment)
        self._base_offsets.append(base_offset)
        self._active = segment

    def take_snapshot(self) -> None:
        """Store the producer state as of the log end. Raises OSError."""
        self.directory.write_snapshot(
            self.log_end_offset, encode_snapshot(self.producer_state.entries())
        )

    def flush(self, now_ms: int) -> None:
        """Flush up to the log end, so that all of it survives a machine crash. Raises OSError."""
        if (
            self.recovery_point < self.log_end_offset
            or self._active.is_dirty
            or self.leader_epochs.is_dirty
        ):
            for segment in self._segments[self._segment_index(self.recovery_point) :]:
                segment.flush()
            self.leader_epochs.flush(self.directory)
            if self.recovery_point <= self._active.base_offset:
                self.directory.flush()
            self.recovery_point = self.log_end_offset
        self._last_flushed_ms = now_ms

    def _flush_older_segments(self, now_ms: int) -> None:
        """Flush what must be on disk before a flushed append to the active segment."""
        if self.recovery_point < self._active.base_offset:
            self.flush(now_ms)
        elif self.recovery_point == self._active.base_offset:
            self.directory.flush()

    def maybe_flush(self, now_ms: int) -> None:
        """Flush if `flush.ms` have passed since the last flush (LogManager.flushDirtyLogs).

        Leader epochs that could not be written when they began are written now. Raises OSError.
        """
        self.leader_epochs.flush(self.directory)
        if now_ms - self._last_flushed_ms >= self.config.flush_ms:
            self.flush(now_ms)

    def close(self, now_ms: int) -> None:
        """Flush and close the files; the log cannot be used any more. Raises OSError."""
        self._active.become_inactive()
        try:
            self.flush(now_ms)
            self.take_snapshot()
        finally:
            self.directory.close()

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTxn]:
        """Return the aborted transactions with records from `fetch_offset` to below `upper_bound`.

        The counterpart of LocalLog.collectAbortedTransactions.
        """
        transactions: list[AbortedTxn] = []
        for segment in self._segments[self._segment_index(fetch_offset) :]:
            aborted, complete = segment.transaction_index.collect(fetch_offset, upper_bound)
            transactions += aborted
            if complete:
                break
        return transactions

    def delete_records(self, offset: int) -> None:
        """Move the log start to `offset`, if that is later, and remove the segments before it.

        The counterpart of UnifiedLog.maybeIncrementLogStartOffset. The offset must not be above the
        high watermark. Raises OSError.
        """
        self.delete_segments_before(offset)
        if offset > self.log_start_offset:
            self._start_at(offset)

    def delete_segments_before(self, offset: int) -> None:
        """Remove the segments before the one that holds `offset`. Raises OSError."""
        self._delete_segments(self._segment_index(offset))

    def delete_old_segments(self, now_ms: int) -> int:
        """Remove the segments that `retention.ms` or `retention.bytes` expire; return how many.

        Removal begins with the first segment and ends before the first one to retain
        (UnifiedLog.deleteOldSegments). A segment without record timestamps ages from its creation.
        Raises OSError.
        """
        retention_ms, retention_bytes = self.config.retention_ms, self.config.retention_bytes
        too_much = self.size_in_bytes - retention_bytes if retention_bytes >= 0 else -1
        count = 0
        for segment in self._segments:
            too_much -= segment.size_in_bytes
            too_old = 0 <= retention_ms < now_ms - segment.latest_ms
            if segment.size_in_bytes == 0 or not (too_old or too_much >= 0):
                break
            count += 1
        if count < len(self._segments):
            self._delete_segments(count)
        else:
            # Only the new segment needs disk space, which removing the others has freed by then.
            self._delete_segments(count - 1)
            self.roll(now_ms)
            self._delete_segments(1)
        return count

    def _delete_segments(self, count: int) -> None:
        """Remove the first segments, except the active one. Raises OSError.

        The log start moves past a segment before its files are removed, so that no read finds it
        half removed.
        """
        for _ in range(min(count, len(self._segments) - 1)):
            self._start_at(max(self.log_start_offset, self._base_offsets[1]))
            self.directory.delete_segment(self._segments[0])
            del self._segments[0], self._base_offsets[0]

    def _start_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self._clip_high_watermark()

    def _clip_high_watermark(self) -> None:
        if self._high_watermark is not None:
            self._high_watermark = self._within_log(self._high_watermark)

    def truncate_to(self, offset: int) -> None:
        """Remove the batch that holds `offset`, and all later ones (UnifiedLog.truncateTo).

        The log then ends where that batch began. The state of the producers is read again from the
        remaining batches. Raises RefusedError with OFFSET_OUT_OF_RANGE for an offset that is not
        between log start and log end, and OSError.
        """
        self._check_in_range(offset, self.log_end_offset)
        if offset == self.log_end_offset:
            return
        kept = self._segment_index(offset) + 1
        for segment in reversed(self._segments[kept:]):
            self.directory.delete_segment(segment)
        del self._segments[kept:], self._base_offsets[kept:]
        self._active = self._segments[-1]
        first = self._active.translate_offset(offset)
        if first is not None:
            # Without one, compaction has removed the records from there on.
            offset = min(offset, first.base_offset)
            self._active.records.truncate(first.position)
        self.directory.delete_snapshots(keep=set(self._base_offsets))
        self.producer_state = replay_truncated(self._segments, self.config)
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        self._unreplicated = [txn for txn in self._unreplicated if txn.last_offset < offset]
        self._clip_high_watermark()

    def truncate_as_follower(self, offset: int, now_ms: int) -> None:
        """Remove what may differ from the leader's log: from `offset` on, see `truncate_to`.

        That includes the epochs in which this replica has written nothing: as a leader it began
        them at the log end. Raises OSError.
        """
        if offset < self.log_start_offset:
            self.restart_at(offset, now_ms)
            return
        self.truncate_to(offset)
        self.leader_epochs.remove_from(self.log_end_offset)
        self.leader_epochs.try_flush(self.directory)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Remove everything, and begin again at `offset` (UnifiedLog.truncateFullyAndStartAt).

        For a follower whose log ends before that of the leader begins. Raises OSError.
        """
        for segment in reversed(self._segments):
            self.directory.delete_segment(segment)
        self.directory.delete_snapshots(keep=set())
        self._active = self.directory.new_segment(offset, now_ms=now_ms)
        self._segments = [self._active]
        self._base_offsets = [offset]
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.first_dirty_offset = offset
        self.producer_state = ProducerStateManager()
        self.leader_epochs.remove_from(0)
        self.leader_epochs.try_flush(self.directory)
        self._unreplicated = []
        self._clip_high_watermark()

    def replace_segments(self, cleaned: LogSegment, replaced: list[LogSegment]) -> None:
        """Replace segments by a cleaned one (LocalLog.replaceSegments).

        Raises OSError; then nothing has changed.
        """
        first = self._segments.index(replaced[0])
        self.directory.replace_segments(cleaned, replaced)
        self._segments[first : first + len(replaced)] = [cleaned]
        self._base_offsets[first : first + len(replaced)] = [cleaned.base_offset]

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one_batch: bool,
        committed: bool = False,
        end_offset: int | None = None,
    ) -> FetchedRecords:
        """Return up to `max_bytes` of batches, starting with the one that holds `offset`.

        With `min_one_batch` the first batch is returned whatever its size; with `committed` none at
        or after the last stable offset is. The log ends at `end_offset` for the reader, by default
        at the log end. Raises RefusedError with OFFSET_OUT_OF_RANGE for an offset that is not
        between log start and that end.
        """
        end_offset = self.log_end_offset if end_offset is None else end_offset
        self._check_in_range(offset, end_offset)
        stop = min(self.last_stable_offset, end_offset) if committed else end_offset
        if offset >= stop:
            return FetchedRecords([], 0, 0, offset, offset)
        for index in range(self._segment_index(offset), len(self._segments)):
            segment = self._segments[index]
            if segment.base_offset >= stop:
                break
            next_offset = self._next_offset(index)
            max_position = segment.size_in_bytes
            if stop < next_offset:
                # Transactions begin and end at batch boundaries.
                span = segment.translate_offset(stop)
                max_position = max_position if span is None else span.position
            fetched = segment.read(
                offset,
                max_bytes=max_bytes,
                max_position=max_position,
                next_offset=next_offset,
                min_one_batch=min_one_batch,
            )
            if fetched is not None:
                return fetched
        return FetchedRecords([], 0, 0, offset, offset)

    def _check_in_range(self, offset: int, end_offset: int) -> None:
        if not self.log_start_offset <= offset <= end_offset:
            raise RefusedError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between {self.log_start_offset} and {end_offset}",
            )

    def is_in_older_segment(self, offset: int, end_offset: int) -> bool:
        """Return whether an offset lies in a segment before that of a later offset."""
        return self._segment_index(offset) < self._segment_index(end_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd | None:
        """Return where a leader epoch ended, if known; see `LeaderEpochCache.end_of`."""
        return self.leader_epochs.end_of(leader_epoch, self.log_end_offset)

    def offset_for_timestamp(
        self, timestamp: int, budget: DecodeBudget
    ) -> TimestampAndOffset | None:
        """Return the first record at or after `timestamp` (milliseconds), None if there is none.

        Raises CorruptRecordError for a batch that cannot be decoded within the budget.
        """
        for segment in self._segments[self._segment_index(self.log_start_offset) :]:
            if segment.max_timestamp_so_far.timestamp < timestamp:
                continue
            begin = segment.time_index.lookup(timestamp).offset
            # The matching records of a batch may all lie before the log start, or its header may
            # claim a later timestamp than any of its records has.
            for span in segment.spans(max(begin, self.log_start_offset)):
                if span.max_timestamp >= timestamp:
                    found = self._first_record(segment, span, timestamp, budget)
                    if found is not None:
                        return found
        return None

    def offset_of_max_timestamp(self, budget: DecodeBudget) -> TimestampAndOffset | None:
        """Return the first record with the largest timestamp in the log (KIP-734).

        Raises CorruptRecordError as `offset_for_timestamp`.
        """
        filled = [segment for segment in self._segments if segment.size_in_bytes]
        if not filled:
            return None
        segment = max(filled, key=lambda segment: segment.max_timestamp_so_far.timestamp)
        latest = segment.max_timestamp_so_far
        span = segment.translate_offset(latest.offset)
        if span is None:
            return None
        return self._first_record(segment, span, latest.timestamp, budget)

    def _first_record(
        self, segment: LogSegment, span: BatchSpan, timestamp: int, budget: DecodeBudget
    ) -> TimestampAndOffset | None:
        for record in decode_within(segment.batch(span), budget).records:
            if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                return TimestampAndOffset(record.timestamp, record.offset)
        # The batch's header claims a later timestamp than its records have.
        return None

    def _segment_index(self, offset: int) -> int:
        """Return the index of the segment that holds an offset, or would hold it."""
        return max(bisect_right(self._base_offsets, offset) - 1, 0)

    def _next_offset(self, index: int) -> int:
        """Return the offset after a segment."""
        if index + 1 < len(self._base_offsets):
            return self._base_offsets[index + 1]
        return self.log_end_offset


def committed_records(log: PartitionLog) -> Iterator[Record]:
    """Yield the records as a consumer with isolation.level=read_committed would read them.

    As in Java's CompletedFetch: up to the last stable offset, without the records of aborted
    transactions and without markers. Raises CorruptRecordError.
    """
    offset = log.log_start_offset
    aborting: set[int] = set()
    while True:
        read = log.read(offset, max_bytes=_READ_BYTES, min_one_batch=True, committed=True)
        if not read.batches:
            return
        aborted = sorted(
            log.aborted_transactions(offset, read.end_offset), key=lambda txn: txn.first_offset
        )
        for data in (batch for piece in read.batches for batch in split_record_batches(piece)):
            batch = decode_record_batch(data)
            header = batch.header
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborting.add(aborted.pop(0).producer_id)
            if header.is_control:
                # A removed marker leaves an empty batch, and no transaction to end.
                if batch.records and (
                    decode_control_record(batch.records[0]).type == ControlRecordType.ABORT
                ):
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                yield from (record for record in batch.records if record.offset >= offset)
        offset = read.end_offset
