"""The checks that a batch must pass before a partition's log appends it.

They are Kafka's, in its order: ProduceRequest.validateRecords (one batch, magic 2), then
UnifiedLog.analyzeAndValidateRecords (base offset, size, CRC), then LogValidator (counts, no control
batch, sequence, keys, timestamps; LogAppendTime is written into the header).

Kafka decodes every record in the process. Here records are decoded only if the outcome depends on
individual ones (compacted topics, timestamps out of range), or always if the broker is configured
so (`validate_records`). Otherwise a batch with the right checksum but malformed records passes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

from spark_kafka_sink.devbroker.base.refusal import RefusedError, RefusedRecord
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import CompressionType
from spark_kafka_sink.record.crc32c import crc32c
from spark_kafka_sink.record.decode import decode_within
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, decode_header

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.record.decode import DecodeBudget, RecordBatch
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

#: Offset and length, the part in front of a batch that its length does not include.
LOG_OVERHEAD = 12
#: Minimum length of a batch of any magic after that (LegacyRecord.RECORD_OVERHEAD_V0).
_MIN_BATCH_LENGTH = 14
_COMPRESSION_TYPES = frozenset(CompressionType)
_MAGIC_POSITION = 16
_MAGIC_V2 = 2
_NO_TIMESTAMP = -1
#: Maximum number of rejected records that a response lists.
_MAX_REFUSED_RECORDS = 100
#: The first version of Produce in which clients may use zstd (KIP-110).
_FIRST_VERSION_WITH_ZSTD = 7

_BASE_OFFSET = struct.Struct(">q")
_BATCH_LENGTH = struct.Struct(">i")
#: The checksum covers attributes (position 21) and maximum timestamp (position 35).
_CRC = struct.Struct(">I")
_CRC_POSITION = 17
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
#: Producer id, epoch and base sequence.
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_TIMESTAMP_TYPE_MASK = 0x08
_TRANSACTIONAL_MASK = 0x10


def _batch_size(records: memoryview) -> int | None:
    """Return the size of the first batch, None if it is incomplete.

    Raises RefusedError with CORRUPT_MESSAGE (ByteBufferLogInputStream.nextBatchSize).
    """
    if len(records) < LOG_OVERHEAD:
        return None
    (length,) = _BATCH_LENGTH.unpack_from(records, 8)
    if length < _MIN_BATCH_LENGTH:
        raise RefusedError(
            ErrorCode.CORRUPT_MESSAGE, f"a record batch cannot have a length of {length} bytes"
        )
    if len(records) <= _MAGIC_POSITION:
        return None
    if not 0 <= records[_MAGIC_POSITION] <= _MAGIC_V2:
        raise RefusedError(
            ErrorCode.CORRUPT_MESSAGE, f"unknown record format {records[_MAGIC_POSITION]}"
        )
    size: int = length + LOG_OVERHEAD
    return size if size <= len(records) else None


def _codec(batch: memoryview) -> int:
    return batch[_ATTRIBUTES_POSITION + 1] & 0x07


def is_transactional(records: memoryview | None) -> bool:
    """Return whether the first batch claims to belong to a transaction.

    Raises RefusedError with CORRUPT_MESSAGE if the bytes do not start like a batch.
    """
    if records is None:
        return False
    size = _batch_size(records)
    return (
        size is not None
        and size >= RECORD_BATCH_OVERHEAD
        and records[_MAGIC_POSITION] == _MAGIC_V2
        and bool(records[_ATTRIBUTES_POSITION + 1] & _TRANSACTIONAL_MASK)
    )


def producer_of(batch: memoryview) -> tuple[ProducerIdAndEpoch, int]:
    """Read producer and first sequence number of a batch that has not been validated."""
    producer_id, epoch, base_sequence = _PRODUCER.unpack_from(batch, _PRODUCER_POSITION)
    return ProducerIdAndEpoch(producer_id, epoch), base_sequence


def only_batch(records: memoryview | None, *, api_version: int) -> memoryview:
    """Return the one batch that a Produce request may hold for a partition.

    Trailing bytes that are not a whole batch are dropped, as in Kafka. Raises RefusedError with
    INVALID_RECORD, CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE.
    """
    size = None if records is None else _batch_size(records)
    if records is None or size is None:
        raise RefusedError(
            ErrorCode.INVALID_RECORD, "a partition of a Produce request needs a record batch"
        )
    if records[_MAGIC_POSITION] != _MAGIC_V2:
        raise RefusedError(
            ErrorCode.INVALID_RECORD,
            f"Produce version {api_version} accepts only record format 2, "
            f"not {records[_MAGIC_POSITION]}",
        )
    if size < RECORD_BATCH_OVERHEAD:
        raise RefusedError(
            ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a record batch"
        )
    if _codec(records) == CompressionType.ZSTD and api_version < _FIRST_VERSION_WITH_ZSTD:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce version {api_version} does not support zstd",
        )
    if _batch_size(records[size:]) is not None:
        raise RefusedError(
            ErrorCode.INVALID_RECORD,
            f"Produce version {api_version} accepts only one record batch per partition",
        )
    return records[:size]


def validate_batch(
    batch: memoryview,
    config: TopicConfig,
    *,
    now_ms: int,
    validate_records: bool,
    budget: DecodeBudget,
) -> tuple[memoryview, RecordBatchHeader]:
    """Return the batch and header to append, with the broker's timestamp if the topic requires it.

    A batch that must be changed is modified in place, or copied first if it is read-only. Records
    that must be checked are decoded within `budget`, which is the request's. Raises RefusedError
    with INVALID_RECORD, MESSAGE_TOO_LARGE, CORRUPT_MESSAGE, INVALID_TIMESTAMP or
    UNKNOWN_SERVER_ERROR.
    """
    (base_offset,) = _BASE_OFFSET.unpack_from(batch)
    if base_offset != 0:
        raise RefusedError(
            ErrorCode.INVALID_RECORD, f"the base offset of a new batch must be 0, not {base_offset}"
        )
    if len(batch) > config.max_message_bytes:
        raise RefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {len(batch)} bytes; max.message.bytes of the topic is "
            f"{config.max_message_bytes}",
        )
    (crc,) = _CRC.unpack_from(batch, _CRC_POSITION)
    if crc32c(batch[_ATTRIBUTES_POSITION:]) != crc:
        raise RefusedError(
            ErrorCode.CORRUPT_MESSAGE, f"the record batch does not match its checksum, {crc:#010x}"
        )
    if _codec(batch) not in _COMPRESSION_TYPES:
        # Kafka does not handle this case, so clients get the code for unexpected errors.
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression type {_codec(batch)}"
        )
    header = _valid_header(batch)
    max_timestamp = header.max_timestamp
    if config.log_append_time and header.log_append_time:
        _refuse_records(
            ErrorCode.INVALID_TIMESTAMP,
            [
                RefusedRecord(index, "a producer must not set the timestamp type to LogAppendTime")
                # The client supplied the header's count: only decoding verifies it.
                for index in range(len(_decoded(batch, budget).records))
            ],
        )
    latest = now_ms + config.message_timestamp_after_max_ms
    if (
        validate_records
        or config.compact
        or (not config.log_append_time and max_timestamp > latest)
        or config.limits_past_timestamps
    ):
        max_timestamp = _validate_records(_decoded(batch, budget), config, now_ms=now_ms)
    if config.log_append_time:
        max_timestamp = now_ms
    if (max_timestamp, config.log_append_time) != (header.max_timestamp, header.log_append_time):
        batch = _with_timestamps(batch, max_timestamp, log_append_time=config.log_append_time)
        header = decode_header(batch)
    return batch, header


def _valid_header(batch: memoryview) -> RecordBatchHeader:
    """Decode the header and check its claims about the records (LogValidator.validateBatch)."""
    try:
        header = decode_header(batch)
    except CorruptRecordError as error:
        raise RefusedError(ErrorCode.INVALID_RECORD, str(error)) from error
    if header.record_count == 0 or header.last_offset_delta + 1 != header.record_count:
        problem = (
            f"the record count is {header.record_count}, but the last offset delta is "
            f"{header.last_offset_delta}"
        )
    elif header.is_control:
        problem = "clients must not write control batches"
    elif header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        problem = f"sequence {header.base_sequence} of producer {header.producer_id} is negative"
    else:
        return header
    raise RefusedError(ErrorCode.INVALID_RECORD, problem)


def _decoded(batch: memoryview, budget: DecodeBudget) -> RecordBatch:
    try:
        return decode_within(batch, budget)
    except CorruptRecordError as error:
        raise RefusedError(ErrorCode.INVALID_RECORD, str(error)) from error


def _validate_records(decoded: RecordBatch, config: TopicConfig, *, now_ms: int) -> int:
    """Check keys and timestamps (LogValidator.validateRecord); return the largest timestamp."""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    refused: list[RefusedRecord] = []
    error_code = ErrorCode.INVALID_RECORD
    for index, record in enumerate(decoded.records):
        if len(refused) == _MAX_REFUSED_RECORDS:
            break
        if config.compact and record.key is None:
            refused.append(
                RefusedRecord(index, "a compacted topic does not accept a record without a key")
            )
        elif (
            not config.log_append_time
            and record.timestamp != _NO_TIMESTAMP
            and not earliest <= record.timestamp <= latest
        ):
            error_code = ErrorCode.INVALID_TIMESTAMP
            refused.append(
                RefusedRecord(
                    index,
                    f"timestamp {record.timestamp} is not between {earliest} and {latest}",
                )
            )
    if refused:
        _refuse_records(error_code, refused)
    return max(record.timestamp for record in decoded.records)


def _refuse_records(error_code: ErrorCode, refused: list[RefusedRecord]) -> NoReturn:
    """Raise RefusedError for the whole batch (LogValidator.processRecordErrors)."""
    or_more = " or more" if len(refused) == _MAX_REFUSED_RECORDS else ""
    raise RefusedError(
        error_code,
        f"{len(refused)}{or_more} records of the batch are invalid; the first is record "
        f"{refused[0].batch_index}: {refused[0].message}",
        record_errors=refused,
    )


def _with_timestamps(batch: memoryview, max_timestamp: int, *, log_append_time: bool) -> memoryview:
    """Write maximum timestamp and timestamp type (DefaultRecordBatch.setMaxTimestamp)."""
    if batch.readonly:
        batch = memoryview(bytearray(batch))
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_POSITION)
    attributes &= ~_TIMESTAMP_TYPE_MASK
    if log_append_time:
        attributes |= _TIMESTAMP_TYPE_MASK
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_POSITION, attributes)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, max_timestamp)
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(batch[_ATTRIBUTES_POSITION:]))
    return batch
