"""The compiled parts that read the headers of record batches, and follow aborted transactions.

Rules:
- Batches without rows to return (before the start, aborted) are skipped: only their headers and
  checksums are checked. No batch at or past the end is looked at.
- An aborted transaction begins when the last offset of a batch reaches its first offset, and ends
  with its producer's abort marker, as in Kafka's `CompletedFetch`.
"""

from __future__ import annotations

from typing import Any, Final

from spark_kafka_sink.record.kernel.decode_state import CONTROL_FLAG, MAX_INT64, DecodeStatus, Stage
from spark_kafka_sink.record.kernel.kernel_crc32c import SMALL_BYTES, small_crc32c
from spark_kafka_sink.record.kernel.kernel_support import (
    kernel_part,
    load_big_int16,
    load_big_int32,
    load_big_int64,
    load_big_uint32,
    load_byte,
    load_int64,
    store_uint8,
)
from spark_kafka_sink.record.kernel.kernel_unpack import unpack_lz4, unpack_snappy

LOG_OVERHEAD: Final = 12
LENGTH_OFFSET: Final = 8
LEADER_EPOCH_OFFSET: Final = 12
MAGIC_OFFSET: Final = 16
_CRC_OFFSET: Final = 17
_ATTRIBUTES_OFFSET: Final = 21
LAST_OFFSET_DELTA_OFFSET: Final = 23
_BASE_TIMESTAMP_OFFSET: Final = 27
_MAX_TIMESTAMP_OFFSET: Final = 35
_PRODUCER_ID_OFFSET: Final = 43
_RECORD_COUNT_OFFSET: Final = 57
_OVERHEAD: Final = 61
_MAGIC: Final = 2
_CODEC_MASK: Final = 0x07
_SNAPPY: Final = 2
_LZ4: Final = 3
_LAST_CODEC: Final = 4
#: A larger payload is left to the library, which is faster, but costs a call.
_MOST_UNPACKED_BYTES: Final = 8 * 1024
_TRANSACTIONAL_FLAG: Final = 0x10
#: A control record's key has a version and a type.
_CONTROL_KEY_BYTES: Final = 4
_ABORT: Final = 0

# The statuses as plain integers, which compile to constants.
_HEADER: Final = int(Stage.HEADER)
_PREPARED: Final = int(Stage.PREPARED)
_DONE: Final = int(DecodeStatus.DONE)
_BAD_FORMAT: Final = int(DecodeStatus.BAD_FORMAT)
_BAD_LENGTH: Final = int(DecodeStatus.BAD_LENGTH)
_BAD_COMPRESSION: Final = int(DecodeStatus.BAD_COMPRESSION)
_BAD_RECORD_COUNT: Final = int(DecodeStatus.BAD_RECORD_COUNT)
_BAD_CHECKSUM: Final = int(DecodeStatus.BAD_CHECKSUM)
_BAD_MARKER: Final = int(DecodeStatus.BAD_MARKER)
_OFFSET_OVERFLOW: Final = int(DecodeStatus.OFFSET_OVERFLOW)


@kernel_part
def check_header(batch: int, rest: int) -> int:  # noqa: PLR0911  one return per check
    """Check a header within the `rest` bytes, which may end before the batch; return a status."""
    if load_byte(batch + MAGIC_OFFSET) != _MAGIC:
        return _BAD_FORMAT
    size = load_big_int32(batch + LENGTH_OFFSET) + LOG_OVERHEAD
    if size < _OVERHEAD:
        return _BAD_LENGTH
    if size > rest:
        return _DONE
    if load_big_int16(batch + _ATTRIBUTES_OFFSET) & _CODEC_MASK > _LAST_CODEC:
        return _BAD_COMPRESSION
    last_delta = load_big_int32(batch + LAST_OFFSET_DELTA_OFFSET)
    count = load_big_int32(batch + _RECORD_COUNT_OFFSET)
    if not 0 <= count <= last_delta + 1:
        return _BAD_RECORD_COUNT
    if load_big_int64(batch) > MAX_INT64 - 1 - max(last_delta, 0):
        return _OFFSET_OVERFLOW
    return _DONE


@kernel_part
def _find_producer(task: Any, producer_id: int) -> int:
    """Return the index of a producer, -1 if it has no aborted transaction."""
    first, last = 0, task.producer_count
    while first < last:
        middle = (first + last) >> 1
        if load_int64(task.producers + 8 * middle) < producer_id:
            first = middle + 1
        else:
            last = middle
    if first < task.producer_count and load_int64(task.producers + 8 * first) == producer_id:
        return first
    return -1


@kernel_part
def _follow_transactions(task: Any, batch: int) -> None:
    """Begin the aborted transactions up to this batch; decide whether it belongs to one."""
    producer_id = load_big_int64(batch + _PRODUCER_ID_OFFSET)
    if producer_id < 0 or task.aborted_count == 0:
        return
    last_offset = task.base_offset + task.last_offset_delta
    while (
        task.next_aborted < task.aborted_count
        and load_int64(task.aborted_offsets + 8 * task.next_aborted) <= last_offset
    ):
        index = load_int64(task.aborted_producers + 8 * task.next_aborted)
        store_uint8(task.is_aborting + index, 1)
        task.next_aborted += 1
    producer = _find_producer(task, producer_id)
    if producer >= 0 and load_byte(task.is_aborting + producer):
        if task.attributes & CONTROL_FLAG:
            # It may be the marker that ends the transaction, wherever the range starts.
            task.marked_producer = producer
            task.skipped = 0
        elif task.attributes & _TRANSACTIONAL_FLAG:
            task.skipped = 1


@kernel_part
def _unpack(task: Any) -> bool:
    """Return whether the records can be decoded; if they are few, decompress them for that."""
    codec = task.attributes & _CODEC_MASK
    if codec == 0:
        return True
    source, source_end, target = task.records, task.records_end, task.scratch
    if source_end - source > _MOST_UNPACKED_BYTES:
        return False
    unpacked_end = 0
    if codec == _LZ4:
        unpacked_end = unpack_lz4(source, source_end, target, target + task.scratch_capacity)
    elif codec == _SNAPPY:
        unpacked_end = unpack_snappy(source, source_end, target, target + task.scratch_capacity)
    if unpacked_end:
        task.records, task.records_end = target, unpacked_end
    return unpacked_end != 0


@kernel_part
def open_batch(task: Any) -> int:
    """Read the header of the batch at the position; return a status."""
    batch, rest = task.data + task.position, task.size - task.position
    if rest < _OVERHEAD:
        return _BAD_LENGTH
    task.base_offset = load_big_int64(batch)
    task.last_delta = -1
    status = check_header(batch, rest)
    if status != _DONE:
        return status
    if task.base_offset >= task.end:
        task.position = task.size
        return _DONE
    size = load_big_int32(batch + LENGTH_OFFSET) + LOG_OVERHEAD
    if size > rest:
        return _BAD_LENGTH
    task.batch_size = size
    task.last_offset_delta = load_big_int32(batch + LAST_OFFSET_DELTA_OFFSET)
    task.attributes = load_big_int16(batch + _ATTRIBUTES_OFFSET)
    task.base_timestamp = load_big_int64(batch + _BASE_TIMESTAMP_OFFSET)
    task.max_timestamp = load_big_int64(batch + _MAX_TIMESTAMP_OFFSET)
    task.record_count = load_big_int32(batch + _RECORD_COUNT_OFFSET)
    task.records = batch + _OVERHEAD
    task.records_end = batch + size
    task.records_done = 0
    task.skipped = task.base_offset + task.last_offset_delta < task.start
    task.marked_producer = -1
    _follow_transactions(task, batch)
    task.crc_checked = 1 - task.check_crcs
    if task.check_crcs and size < SMALL_BYTES:
        computed = small_crc32c(batch + _ATTRIBUTES_OFFSET, size - _ATTRIBUTES_OFFSET)
        if computed != load_big_uint32(batch + _CRC_OFFSET):
            return _BAD_CHECKSUM
        task.crc_checked = 1
    is_prepared = task.crc_checked and (task.skipped or _unpack(task))
    task.stage = _PREPARED if is_prepared else _HEADER
    return _DONE


@kernel_part
def end_transaction(task: Any, key: int, key_length: int) -> int:
    """Read a control record; an abort marker ends its producer's transaction."""
    if key_length < _CONTROL_KEY_BYTES:
        return _BAD_MARKER
    if load_big_int16(key + 2) == _ABORT:
        store_uint8(task.is_aborting + task.marked_producer, 0)
    return _DONE
