"""The loading and recovery of a log on disk (Kafka's LogLoader and LogSegment.recover).

- An interrupted cleaning is undone, or completed if its `.swap` files exist.
- After a clean shutdown the files are trusted: only the consistency of the indexes is checked, and
  a broken index is rebuilt.
- After any other shutdown, each segment from the recovery point on (everything before it was
  flushed) is read batch by batch and its indexes are rebuilt. At the first batch with a wrong
  checksum or offset the log ends: the rest of the segment is truncated, and later segments are
  removed.
- The state of the producers is loaded from the latest snapshot that is not beyond the end of the
  log, without expired producers, and updated from the batches after it. Snapshots beyond the log,
  and broken ones, are removed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.log import disk
from spark_kafka_sink.devbroker.log.indexes import AbortedTxn
from spark_kafka_sink.devbroker.log.leader_epoch_cache import LeaderEpochCache, decode_leader_epochs
from spark_kafka_sink.devbroker.log.log_directory import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    FileLogDirectory,
)
from spark_kafka_sink.devbroker.log.producer_state import (
    ProducerBatchInfo,
    ProducerStateManager,
    TransactionMarker,
    decode_snapshot,
)
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_PRODUCER_ID
from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from spark_kafka_sink.record.record_batch import (
    ControlRecordType,
    decode_header,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.log.log_segment import LogSegment
    from spark_kafka_sink.devbroker.log.producer_state import ProducerStateEntry
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """A log as it was loaded, or a new one."""

    segments: list[LogSegment]
    log_start_offset: int = 0
    log_end_offset: int = 0
    #: Offset up to which everything has been flushed.
    recovery_point: int = 0
    producer_state: ProducerStateManager = field(default_factory=ProducerStateManager)
    leader_epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    #: Bytes that were truncated because they were not complete, valid batches.
    truncated_bytes: int = 0
    #: The file and the position of the truncated bytes.
    truncated_at: str = ""


class EndedTxn(NamedTuple):
    """A transaction that a marker in the log has ended (CompletedTxn)."""

    first_offset: int
    #: The offset of the marker.
    last_offset: int
    #: What the transaction index lists, if it was aborted.
    aborted: AbortedTxn | None


def end_transaction(
    state: ProducerStateManager, marker: TransactionMarker, offset: int
) -> EndedTxn | None:
    """End a producer's transaction by a marker at an offset; None if the producer has none open."""
    first_offset = state.end_transaction(marker)
    if first_offset is None:
        return None
    aborted = None
    if not marker.committed:
        undecided = state.first_undecided_offset
        stable = offset + 1 if undecided is None else undecided
        aborted = AbortedTxn(marker.producer_id, first_offset, offset, stable)
    return EndedTxn(first_offset, offset, aborted)


def replay_batch(
    batch: memoryview, header: RecordBatchHeader, state: ProducerStateManager
) -> EndedTxn | None:
    """Update the state of the producers from a batch in the log (UnifiedLog.updateProducers).

    Returns the transaction that the batch has ended, if any. Raises CorruptRecordError.
    """
    if header.producer_id == NO_PRODUCER_ID:
        return None
    if not header.is_control:
        state.update(
            ProducerBatchInfo(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                # Count by offsets: records that compaction removed had sequence numbers too.
                header.last_offset_delta + 1,
                header.is_transactional,
            ),
            first_offset=header.base_offset,
            timestamp=header.max_timestamp,
        )
        return None
    records = decode_record_batch(batch).records
    if not records:
        return None  # The cleaner removed the marker, and kept the batch for its producer epoch.
    control = decode_control_record(records[0])
    marker = TransactionMarker(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        committed=control.type == ControlRecordType.COMMIT,
        coordinator_epoch=control.coordinator_epoch,
        transaction_version=0,
        timestamp=header.max_timestamp,
    )
    return end_transaction(state, marker, header.base_offset)


def load_log(
    directory: FileLogDirectory,
    config: TopicConfig,
    *,
    log_start_offset: int,
    recovery_point: int,
    clean: bool,
    now_ms: int,
    producer_id_expiration_ms: int,
) -> LoadedLog:
    """Load the log of a directory; a log without segments begins at the log start offset.

    `clean` says whether the broker has closed it, `recovery_point` up to which offset it was
    flushed. Raises OSError, and CorruptRecordError for a cleanly closed log that was changed since.
    """
    _finish_cleaning(directory)
    segments, first_broken = _open_segments(directory, now_ms)
    if not segments:
        segments = [directory.new_segment(log_start_offset, now_ms=now_ms)]
    first = len(segments) if first_broken is None else first_broken
    if not clean:
        ends = [segment.base_offset for segment in segments[1:]]
        first = min(first, sum(end <= recovery_point for end in ends))
    kept, to_recover = segments[:first], segments[first:]
    loaded = LoadedLog(
        segments=kept,
        log_start_offset=max(log_start_offset, segments[0].base_offset),
        log_end_offset=kept[-1].read_next_offset() if kept else segments[0].base_offset,
        leader_epochs=_read_leader_epochs(directory),
    )
    replay_from = _load_producers(
        directory,
        loaded,
        limit=to_recover[0].base_offset if to_recover else loaded.log_end_offset,
        is_expired=lambda entry: entry.is_expired(now_ms, producer_id_expiration_ms),
    )
    for segment in kept:
        _replay(loaded.producer_state, segment, replay_from)
    for segment in to_recover:
        if loaded.truncated_bytes:
            logger.warning(
                "removing %s, which follows the truncated segment", segment.records.location
            )
            directory.delete_segment(segment)
        else:
            loaded.segments.append(segment)
            _recover(loaded, segment, config)
            if segment is not segments[-1] and (clean or loaded.log_end_offset <= recovery_point):
                # Flush the new indexes: the next start does not recover older flushed segments.
                segment.flush()
    if loaded.log_end_offset < loaded.log_start_offset:
        _restart_empty(directory, loaded, now_ms)
    loaded.recovery_point = (
        loaded.log_end_offset if clean else min(recovery_point, loaded.log_end_offset)
    )
    snapshots = directory.offsets(SNAPSHOT_SUFFIX)
    directory.delete_snapshots(
        keep={*snapshots[-1:], *(segment.base_offset for segment in loaded.segments)}
    )
    loaded.leader_epochs.truncate_from_end(loaded.log_end_offset)
    loaded.leader_epochs.truncate_from_start(loaded.log_start_offset)
    return loaded


def _restart_empty(directory: FileLogDirectory, loaded: LoadedLog, now_ms: int) -> None:
    """Restart a log at its log start offset, because it has lost everything from there on."""
    for segment in loaded.segments:
        directory.delete_segment(segment)
    start = loaded.log_start_offset
    loaded.segments = [directory.new_segment(start, now_ms=now_ms)]
    loaded.log_end_offset = start


def _finish_cleaning(directory: FileLogDirectory) -> None:
    """Complete an interrupted cleaning, or undo it (LogLoader.load)."""
    for path in list(directory.path.glob(f"*{CLEANED_SUFFIX}")):
        disk.remove(path)
    swaps = directory.offsets(LOG_SUFFIX, SWAP_SUFFIX)
    for base_offset in swaps:
        swapped = directory.new_segment(base_offset, SWAP_SUFFIX, now_ms=0)
        next_offset = swapped.read_next_offset()
        for replaced in directory.offsets(LOG_SUFFIX):
            if base_offset < replaced < next_offset:
                disk.remove(directory.file_path(replaced, SNAPSHOT_SUFFIX))
                directory.delete_files(replaced)
        directory.finish_swap(base_offset)
    # `.swap` files without a `.log` are left of a segment that had not taken effect.
    for path in list(directory.path.glob(f"*{SWAP_SUFFIX}")):
        disk.remove(path)


def _open_segments(directory: FileLogDirectory, now_ms: int) -> tuple[list[LogSegment], int | None]:
    """Open all segments; return them, and the first one whose indexes must be rebuilt."""
    segments: list[LogSegment] = []
    first_broken: int | None = None
    for base_offset in _segment_offsets(directory):
        missing = not directory.file_path(base_offset, INDEX_SUFFIX).exists()
        try:
            segment = directory.new_segment(base_offset, now_ms=now_ms)
            segment.offset_index.check(segment.size_in_bytes)
            segment.time_index.check()
            segment.transaction_index.check(base_offset)
        except CorruptRecordError as error:
            logger.warning("%s; rebuilding the indexes", error)
            directory.delete_indexes(base_offset)
            segment = directory.new_segment(base_offset, now_ms=now_ms)
            missing = True
        if missing and first_broken is None:
            first_broken = len(segments)
        segments.append(segment)
    return segments, first_broken


def _segment_offsets(directory: FileLogDirectory) -> list[int]:
    """Return the base offsets of the segments; remove empty ones unless there is no other.

    A failed roll leaves an empty segment, and the log may have grown past its base offset in the
    segment before it.
    """
    offsets = directory.offsets(LOG_SUFFIX)
    filled = [
        offset for offset in offsets if directory.file_path(offset, LOG_SUFFIX).stat().st_size > 0
    ]
    kept = filled or offsets[-1:]
    for offset in offsets:
        if offset not in kept:
            directory.delete_files(offset)
    return kept


def _read_leader_epochs(directory: FileLogDirectory) -> LeaderEpochCache:
    content = directory.read_leader_epochs()
    if content is None:
        return LeaderEpochCache()
    try:
        return decode_leader_epochs(content)
    except CorruptRecordError as error:
        # The epochs that are still needed are also in the batches.
        logger.warning("%s: %s", directory.path, error)
        return LeaderEpochCache()


def _load_producers(
    directory: FileLogDirectory,
    loaded: LoadedLog,
    *,
    limit: int,
    is_expired: Callable[[ProducerStateEntry], bool],
) -> int:
    """Load the producers from the latest valid snapshot up to `limit`; return its offset.

    Without one, return the log start offset. Later and broken snapshots are removed.
    """
    for offset in reversed(directory.offsets(SNAPSHOT_SUFFIX)):
        if offset <= limit:
            try:
                entries = decode_snapshot(directory.read_snapshot(offset))
            except CorruptRecordError as error:
                logger.warning("%s, snapshot at offset %d: %s", directory.path, offset, error)
            else:
                loaded.producer_state.load([entry for entry in entries if not is_expired(entry)])
                return offset
        disk.remove(directory.file_path(offset, SNAPSHOT_SUFFIX))
    return loaded.log_start_offset


def _replay(state: ProducerStateManager, segment: LogSegment, from_offset: int) -> None:
    """Update the state of the producers from a segment's batches from an offset on."""
    for span in segment.spans(from_offset):
        batch = segment.batch(span)
        try:
            replay_batch(batch, decode_header(batch), state)
        except CorruptRecordError as error:
            location = f"{segment.records.location}, byte {span.position}"
            raise CorruptRecordError(f"{location}: {error}") from error


def replay_truncated(segments: Sequence[LogSegment], config: TopicConfig) -> ProducerStateManager:
    """Return the state of the producers of a log whose last segment has just been truncated.

    Rebuilds the indexes of that segment. Raises CorruptRecordError.
    """
    state = ProducerStateManager()
    *complete, last = segments
    for segment in complete:
        _replay(state, segment, segment.base_offset)
    last.reset_indexes()
    for span in last.spans():
        batch = last.batch(span)
        ended = replay_batch(batch, decode_header(batch), state)
        if ended is not None and ended.aborted is not None:
            last.transaction_index.append(ended.aborted)
        last.recover_batch(span, config)
    return state


def _recover(loaded: LoadedLog, segment: LogSegment, config: TopicConfig) -> None:
    """Validate a segment's batches, rebuild its indexes, and truncate it at the first bad batch."""
    segment.reset_indexes()
    valid_bytes = 0
    next_offset = segment.base_offset
    try:
        for span in segment.spans():
            batch = segment.batch(span)
            header = validate_record_batch(batch)
            if header.base_offset < next_offset:
                location = segment.records.location
                logger.warning(
                    "%s: offset %d follows %d", location, header.base_offset, next_offset - 1
                )
                break
            if header.partition_leader_epoch >= 0:
                loaded.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
            ended = replay_batch(batch, header, loaded.producer_state)
            if ended is not None and ended.aborted is not None:
                segment.transaction_index.append(ended.aborted)
            segment.recover_batch(span, config)
            valid_bytes = span.position + span.size_in_bytes
            next_offset = header.last_offset + 1
    except CorruptRecordError as error:
        logger.warning("%s, byte %d: %s", segment.records.location, valid_bytes, error)
    loaded.truncated_bytes = segment.size_in_bytes - valid_bytes
    loaded.truncated_at = f"{segment.records.location}, byte {valid_bytes}"
    segment.records.truncate(valid_bytes)
    segment.become_inactive()
    loaded.log_end_offset = next_offset
