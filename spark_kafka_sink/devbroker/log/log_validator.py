"""The checks that a batch must pass before a partition's log appends it.

They are Kafka's, in its order: ProduceRequest.validateRecords (one batch, magic 2), then
UnifiedLog.analyzeAndValidateRecords (base offset, size, CRC), then LogValidator (counts, no control
batch, sequence, the structure of every record, keys, timestamps; the largest timestamp, or
LogAppendTime, is written into the header). `record.kernel.validate_kernel` reads the records.

Like Kafka, the broker stores some batches that clients cannot read: wrong offsets in uncompressed
records, and lengths of compressed ones that their fields do not have, are not checked. Unlike
Kafka, it limits the size to which the batches of a request decompress
(`request_max_validated_bytes`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from spark_kafka_sink.devbroker.base.refusal import RefusedError, RefusedRecord
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.record.compression import (
    CompressionType,
    DecompressedTooLargeError,
    decompressed_chunks,
)
from spark_kafka_sink.record.kernel.validation_values import (
    MAX_REFUSED_RECORDS,
    Expectation,
    RecordProblem,
    Refusal,
    RefusedByTopic,
    Validation,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, crc32c, decode_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

#: Offset and length, the part in front of a batch that its length does not include.
LOG_OVERHEAD = 12
#: Minimum length of a batch of any magic after that (LegacyRecord.RECORD_OVERHEAD_V0).
_MIN_BATCH_LENGTH = 14
_COMPRESSION_TYPES = frozenset(CompressionType)
_MAGIC_POSITION = 16
_MAGIC_V2 = 2
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
#: The largest number whose varint is a single byte.
_MAX_BYTE_VARINT = 0x7F
_MAX_INT64 = 2**63 - 1


#: The problems of records, in words; those that Kafka does not handle get the code for unexpected
#: errors.
_PROBLEMS = {
    RecordProblem.TOO_FEW: "the records end before it does",
    RecordProblem.TRAILING_BYTES: "bytes follow the last record",
    RecordProblem.LONG_NUMBER: "it has a number of too many bytes",
    RecordProblem.LONG_LENGTH: "its length has too many bytes",
    RecordProblem.LENGTH: "its fields do not have its length",
    RecordProblem.NEGATIVE_HEADER_COUNT: "its number of headers is negative",
    RecordProblem.NULL_HEADER_KEY: "it has a header without a key",
}
_UNEXPECTED_PROBLEMS = frozenset({RecordProblem.LONG_LENGTH})


@dataclass(slots=True)
class ValidationBudget:
    """The number of bytes to which the batches of one request may still decompress."""

    rest: int

    def decompressed(
        self, compression: CompressionType, payload: memoryview
    ) -> Iterator[bytes | memoryview]:
        """Yield the decompressed payload in chunks, and charge them.

        Raises CorruptRecordError if the payload is corrupt, or the budget is too small.
        """
        for chunk in decompressed_chunks(compression, payload, self.rest):
            self.rest -= len(chunk)
            yield chunk


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
    budget: ValidationBudget,
) -> tuple[memoryview, RecordBatchHeader]:
    """Return the batch and header to append, with the timestamp that they have in the log.

    A batch that must be changed is modified in place, or copied first if it is read-only. The
    budget is the request's. Raises RefusedError with INVALID_RECORD, MESSAGE_TOO_LARGE,
    CORRUPT_MESSAGE, INVALID_TIMESTAMP or UNKNOWN_SERVER_ERROR.
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
    max_timestamp = _validate_records(batch, header, config, now_ms=now_ms, budget=budget)
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


def plain_record_timestamp(
    header: RecordBatchHeader, payload: memoryview, expected: Expectation
) -> int | None:
    """Return the timestamp of a valid batch with a single record of the usual form, else None.

    The usual form is uncompressed, without headers, below 1 MiB. None says nothing about validity:
    `validate_records` decides, which takes ten times as long for so small a batch, to prepare its
    compiled loop.
    """
    if header.record_count != 1 or header.compression is not CompressionType.NONE:
        return None
    try:
        length, begin = _short_number(payload, 0)
        # The attributes, then both deltas.
        time_delta, offset_delta = payload[begin + 1], payload[begin + 2]
        key_bytes, position = _short_number(payload, begin + 3)
        value_bytes, position = _short_number(payload, position + max(key_bytes, 0))
        position += max(value_bytes, 0)
        header_count = payload[position]
    except (IndexError, _LongNumberError):
        return None
    if position + 1 != len(payload) or begin + length != len(payload):
        return None
    if time_delta > _MAX_BYTE_VARINT or offset_delta or header_count or header.log_append_time:
        return None
    timestamp = header.base_timestamp + ((time_delta >> 1) ^ -(time_delta & 1))
    age = expected.now_ms - timestamp
    if not 0 <= timestamp <= _MAX_INT64 or (expected.needs_keys and key_bytes < 0):
        return None
    is_in_time = -expected.after_max_ms <= age <= expected.before_max_ms
    return timestamp if is_in_time or expected.sets_timestamps else None


class _LongNumberError(Exception):
    """A number has more than three bytes."""


def _short_number(payload: memoryview, position: int) -> tuple[int, int]:
    """Return a varint of up to three bytes, and the position after it."""
    folded = 0
    for shift in (0, 7, 14):
        byte = payload[position]
        position += 1
        folded |= (byte & _MAX_BYTE_VARINT) << shift
        if byte <= _MAX_BYTE_VARINT:
            return (folded >> 1) ^ -(folded & 1), position
    raise _LongNumberError


def _validate_records(
    batch: memoryview,
    header: RecordBatchHeader,
    config: TopicConfig,
    *,
    now_ms: int,
    budget: ValidationBudget,
) -> int:
    """Check all records (LogValidator.validateRecord); return the largest timestamp."""
    payload = batch[RECORD_BATCH_OVERHEAD:]
    expected = Expectation(
        now_ms=now_ms,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
        needs_keys=config.compact,
        sets_timestamps=config.log_append_time,
    )
    timestamp = plain_record_timestamp(header, payload, expected)
    if timestamp is not None:
        return timestamp
    # A broker that starts is not to wait for numpy.
    from spark_kafka_sink.record.kernel.validate_kernel import validate_records  # noqa: PLC0415

    is_stream = header.compression is not CompressionType.NONE
    chunks = budget.decompressed(header.compression, payload) if is_stream else (payload,)
    try:
        validation = validate_records(header, chunks, expected, is_stream=is_stream)
    except DecompressedTooLargeError as error:
        raise RefusedError(ErrorCode.INVALID_RECORD, str(error)) from error
    except CorruptRecordError as error:
        # The streams of the codecs raise IOException, which Kafka does not handle either.
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    if validation.problem is not RecordProblem.NONE:
        _refuse_problem(validation, header)
    if validation.refused:
        _refuse_records(validation.refused, config, now_ms=now_ms)
    if is_stream and not validation.ordered:
        # Kafka fails to write the batch again with other offsets.
        raise RefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the offset deltas of the {header.record_count} records are not 0, 1, 2 and so on",
        )
    return validation.max_timestamp


def _refuse_problem(validation: Validation, header: RecordBatchHeader) -> NoReturn:
    raise RefusedError(
        ErrorCode.UNKNOWN_SERVER_ERROR
        if validation.problem in _UNEXPECTED_PROBLEMS
        else ErrorCode.INVALID_RECORD,
        f"record {validation.records_done} of the {header.record_count} of the batch is malformed: "
        f"{_PROBLEMS[validation.problem]}"
        if validation.problem is not RecordProblem.TRAILING_BYTES
        else f"{_PROBLEMS[validation.problem]}, according to the batch's number of records, "
        f"{header.record_count}",
    )


def _refuse_records(refused: list[RefusedByTopic], config: TopicConfig, *, now_ms: int) -> NoReturn:
    """Raise RefusedError for the whole batch (LogValidator.processRecordErrors)."""
    messages = {
        Refusal.NO_KEY: "a compacted topic does not accept a record without a key",
        Refusal.TIMESTAMP: (
            f"is not between {now_ms - config.message_timestamp_before_max_ms} and "
            f"{now_ms + config.message_timestamp_after_max_ms}"
        ),
        Refusal.TIMESTAMP_TYPE: "a producer must not set the timestamp type to LogAppendTime",
    }
    errors = [
        RefusedRecord(
            record.position,
            f"timestamp {record.timestamp} {messages[record.reason]}"
            if record.reason is Refusal.TIMESTAMP
            else messages[record.reason],
        )
        for record in refused
    ]
    or_more = " or more" if len(refused) == MAX_REFUSED_RECORDS else ""
    raise RefusedError(
        ErrorCode.INVALID_RECORD
        if all(record.reason is Refusal.NO_KEY for record in refused)
        else ErrorCode.INVALID_TIMESTAMP,
        f"{len(errors)}{or_more} records of the batch are invalid; the first is record "
        f"{errors[0].batch_index}: {errors[0].message}",
        record_errors=errors,
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
