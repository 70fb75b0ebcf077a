"""Log compaction, which keeps the last record of each key (Kafka's Cleaner).

- The cleaned part of the log ends before the active segment, before the first open transaction, and
  before segments with records younger than `min.compaction.lag.ms`. The remaining records keep
  their offsets, so there are gaps.
- A first pass collects the last offset of each key in the records that are new since the last
  cleaning. A second pass over all segments removes the earlier records of these keys. Small
  segments are merged.
- A tombstone, a record without a value, removes the earlier records of its key, and is itself
  removed `delete.retention.ms` after it was first cleaned (KIP-534: the time is in the header of
  the batch).
- Records of aborted transactions are removed; for markers, see `CleanedTransactions`.
- The last batch of each producer is kept for its sequence number, if necessary without records; the
  last batch of the cleaned part is kept for its offset.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.log.batch_builder import build_batch
from spark_kafka_sink.devbroker.log.indexes import MAX_RELATIVE_OFFSET, AbortedTxn, TransactionIndex
from spark_kafka_sink.devbroker.log.log_directory import CLEANED_SUFFIX
from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from spark_kafka_sink.record.record_batch import ControlRecordType, RecordBatchHeader, decode_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_kafka_sink.devbroker.log.log_segment import LogSegment
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
    from spark_kafka_sink.devbroker.log.producer_state import ProducerStateEntry
    from spark_kafka_sink.record.decode import Record, RecordBatch


_CODEC_MASK = 0x07
_DELETE_HORIZON_FLAG = 0x40


class CleanedTransactions:
    """The transactions that are open at the cleaner's position in the log.

    Kafka's CleanedTransactionMetadata, updated batch by batch. A marker can be removed once no
    record of its transaction is left: until then, consumers need it to know how the transaction
    ended.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """Start with the aborted transactions in the part of the log that is cleaned."""
        self._coming = deque(sorted(aborted, key=lambda txn: txn.first_offset))
        self._committed: set[int] = set()
        #: By producer id, with whether any of its batches were seen.
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}

    def discards(self, header: RecordBatchHeader) -> bool:
        """Return whether the records of a data batch were aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (aborted[0], True)
        return True

    def may_discard_marker(self, batch: RecordBatch, index: TransactionIndex | None) -> bool:
        """Return whether no record is left of the transaction that a marker ends.

        An aborted transaction with records left is added to `index`, that of the cleaned segment.
        """
        header = batch.header
        self._begin_up_to(header.last_offset)
        if not batch.records:
            return True
        control = decode_control_record(batch.records[0])
        if control.type == ControlRecordType.ABORT:
            aborted, seen = self._aborted.pop(header.producer_id, (None, False))
            if aborted is not None and seen and index is not None:
                index.append(aborted)
            return not seen
        if header.producer_id in self._committed:
            self._committed.discard(header.producer_id)
            return False
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted.setdefault(aborted.producer_id, (aborted, False))


class _Round(NamedTuple):
    """The state of one round of cleaning."""

    log: PartitionLog
    #: The last offset of each key that has new records.
    offsets: dict[bytes, int]
    end_offset: int
    transactions: CleanedTransactions
    producers: dict[int, ProducerStateEntry]
    now_ms: int


def cleanable_end(log: PartitionLog, now_ms: int) -> int:
    """Return the offset before which a log can be cleaned (LogCleanerManager.cleanableOffsets)."""
    end = min(log.last_stable_offset, log.segments[-1].base_offset)
    youngest = now_ms - log.config.min_compaction_lag_ms
    if log.config.min_compaction_lag_ms > 0:
        for segment in log.segments:
            if segment.max_timestamp_so_far.timestamp > youngest:
                return min(end, segment.base_offset)
    return end


def needs_cleaning(log: PartitionLog, now_ms: int) -> bool:
    """Return whether more of a log is dirty than `min.cleanable.dirty.ratio`."""
    end = cleanable_end(log, now_ms)
    first_dirty = max(log.first_dirty_offset, log.log_start_offset)
    if first_dirty >= end:
        return False
    clean = dirty = 0
    for segment in log.segments:
        if segment.base_offset >= end:
            break
        if segment.base_offset >= first_dirty:
            dirty += segment.size_in_bytes
        else:
            clean += segment.size_in_bytes
    return dirty > 0 and dirty / (clean + dirty) > log.config.min_cleanable_dirty_ratio


def clean(log: PartitionLog, now_ms: int) -> None:
    """Clean a log. Raises OSError, CorruptRecordError; some segments may then be clean already."""
    end = cleanable_end(log, now_ms)
    segments = [segment for segment in log.segments[:-1] if segment.base_offset < end]
    first_dirty = max(log.first_dirty_offset, log.log_start_offset)
    aborted = log.aborted_transactions(segments[0].base_offset, end) if segments else []
    offsets: dict[bytes, int] = {}
    transactions = CleanedTransactions(aborted)
    for segment in segments:
        for batch in _batches(segment, end):
            if batch.header.is_control:
                transactions.may_discard_marker(batch, None)
            elif not transactions.discards(batch.header):
                for record in batch.records:
                    if record.key is not None and record.offset >= first_dirty:
                        offsets[record.key] = record.offset
    cleaning = _Round(
        log=log,
        offsets=offsets,
        end_offset=end,
        transactions=CleanedTransactions(aborted),
        producers={entry.producer_id: entry for entry in log.producer_state.entries()},
        now_ms=now_ms,
    )
    # Build all groups first: cleaning one removes segments from the log.
    for group in list(_groups(log, segments)):
        _clean_group(cleaning, group)
    log.first_dirty_offset = end


def _batches(segment: LogSegment, end_offset: int | None = None) -> Iterator[RecordBatch]:
    for span in segment.spans():
        if end_offset is not None and span.base_offset >= end_offset:
            return
        batch = segment.batch(span)
        yield decode_record_batch(batch)


def _groups(log: PartitionLog, segments: list[LogSegment]) -> Iterator[list[LogSegment]]:
    """Yield groups of segments to be merged into one each (Cleaner.groupSegmentsBySize)."""
    group: list[LogSegment] = []
    size = entries = 0
    for index, segment in enumerate(segments):
        next_offset = log.segments[index + 1].base_offset
        if group and (
            size + segment.size_in_bytes > log.config.segment_bytes
            or (entries + len(segment.offset_index)) * 8 > log.config.segment_index_bytes
            or next_offset - group[0].base_offset > MAX_RELATIVE_OFFSET
        ):
            yield group
            group, size, entries = [], 0, 0
        group.append(segment)
        size += segment.size_in_bytes
        entries += len(segment.offset_index)
    if group:
        yield group


def _clean_group(cleaning: _Round, group: list[LogSegment]) -> None:
    """Merge the cleaned records of some segments into one, and replace them with it."""
    log = cleaning.log
    base_offset = group[0].base_offset
    cleaned = log.directory.new_segment(base_offset, CLEANED_SUFFIX, now_ms=cleaning.now_ms)
    for segment in group:
        for span in segment.spans():
            batch = segment.batch(span)
            kept: memoryview | None = batch
            # The part that must not be cleaned yet can begin in the middle of a segment.
            if span.last_offset < cleaning.end_offset:
                kept = _filter(cleaning, batch, cleaned)
            if kept is not None:
                timestamp = decode_header(kept).max_timestamp
                cleaned.append(kept, span.last_offset, timestamp, log.config)
        for aborted in segment.transaction_index.entries:
            if aborted.last_offset >= cleaning.end_offset:
                cleaned.transaction_index.append(aborted)
    cleaned.become_inactive()
    log.replace_segments(cleaned, group)


def _filter(cleaning: _Round, original: memoryview, cleaned: LogSegment) -> memoryview | None:
    """Return the cleaned batch: itself, a smaller one, or None (MemoryRecords.filterTo)."""
    batch = decode_record_batch(original)
    header = batch.header
    horizon = header.base_timestamp if header.has_delete_horizon else None
    is_over = horizon is not None and horizon <= cleaning.now_ms
    if header.is_control:
        may_discard = cleaning.transactions.may_discard_marker(batch, cleaned.transaction_index)
        discarded = may_discard and is_over
        begins_horizon = may_discard and horizon is None and bool(batch.records)
    else:
        may_discard = discarded = cleaning.transactions.discards(header)
        begins_horizon = False
    kept: list[Record] = []
    if not discarded:
        kept = [
            record
            for record in batch.records
            if header.is_control or _is_latest(cleaning, record, drop_tombstones=is_over)
        ]
        if not header.is_control and horizon is None:
            begins_horizon = any(record.value is None for record in kept)
    if not kept:
        return _empty(header) if _must_be_retained(cleaning, header) else None
    if begins_horizon:
        horizon = cleaning.now_ms + cleaning.log.config.delete_retention_ms
    elif len(kept) == len(batch.records):
        return original
    return _rebuild(header, kept, horizon)


def _is_latest(cleaning: _Round, record: Record, *, drop_tombstones: bool) -> bool:
    if record.key is None:
        return False
    if record.offset < cleaning.offsets.get(record.key, -1):
        return False
    return record.value is not None or not drop_tombstones


def _must_be_retained(cleaning: _Round, header: RecordBatchHeader) -> bool:
    """Return whether a batch must be kept even without records, for its header."""
    if header.last_offset + 1 == cleaning.end_offset:
        return True
    entry = cleaning.producers.get(header.producer_id)
    if entry is None:
        return False
    if entry.last_offset >= 0:
        return header.last_offset == entry.last_offset
    return header.is_control and header.producer_epoch == entry.producer_epoch


def _empty(header: RecordBatchHeader) -> memoryview:
    """Build a batch without records (DefaultRecordBatch.writeEmptyHeader)."""
    return _rebuild(header, [], None, attributes=header.attributes & ~_CODEC_MASK)


def _rebuild(
    header: RecordBatchHeader,
    records: list[Record],
    delete_horizon: int | None,
    *,
    attributes: int | None = None,
) -> memoryview:
    attributes = header.attributes if attributes is None else attributes
    attributes &= ~_DELETE_HORIZON_FLAG
    base_timestamp = header.base_timestamp
    if delete_horizon is not None:
        attributes |= _DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon
    max_timestamp = header.max_timestamp
    if records and not header.log_append_time:
        max_timestamp = max(record.timestamp for record in records)
    return memoryview(
        build_batch(
            records,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            partition_leader_epoch=header.partition_leader_epoch,
        )
    )
