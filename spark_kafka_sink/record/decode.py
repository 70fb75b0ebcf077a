"""Decoding of record batches, for consumers, the embedded broker and tests.

Malformed bytes raise nothing but CorruptRecordError, and memory is bounded by the size of the
input, `max_uncompressed_bytes`, and Python's objects for the records. The checks cover the
checksum, every length (each record has exactly its stated length, and the last record ends with the
batch), the number of records, and that offsets increase within the batch. Offsets may have gaps,
which compaction leaves.

To check a batch without decoding its records, use `record_batch.validate_record_batch`.
"""

from __future__ import annotations

import codecs
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES
from spark_kafka_sink.record.compression import CompressionType, decompress
from spark_kafka_sink.record.default_record import read_varint, read_varlong
from spark_kafka_sink.record.record_batch import (
    RECORD_BATCH_OVERHEAD,
    RecordBatchHeader,
    split_record_batches,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

#: Length, attributes, timestamp, offset, key, value and number of headers, one byte each.
_MIN_RECORD_BYTES: Final = 7
#: version and type, the first fields in the key of a control record (ControlRecordType).
_CONTROL_KEY: Final = struct.Struct(">hh")
#: version and coordinatorEpoch, the first fields in the value of a transaction marker.
_END_TRANSACTION_MARKER: Final = struct.Struct(">hi")

#: In an encoded surrogate, the first byte, and the least value of the second.
_FIRST_OF_SURROGATE: Final = 0xED
_SECOND_OF_SURROGATE: Final = 0xA0
_CONTINUATION: Final = range(0x80, 0xC0)
_REPLACEMENT: Final = "\ufffd"
_ERRORS: Final = "spark_kafka_sink.java"


class Header(NamedTuple):
    """A header of a record; invalid UTF-8 in the key is replaced, as in Java.

    `value` is None for a header without a value.

    >>> Header("source", b"web").key
    'source'
    """

    key: str
    value: bytes | None


class Record(NamedTuple):
    """A record; `timestamp` is in milliseconds since 1970, or -1 if there is none.

    `key` and `value` are bytes or None; `offset` is the record's position in the partition;
    `headers` are in the order in which they were sent.

    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    ...         future = producer.send("orders", b"a book", key=b"alice")
    ...     [record] = broker.records("orders")[0]
    >>> record.key, record.value
    (b'alice', b'a book')
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The header and the records of a batch; the records of a control batch are markers."""

    header: RecordBatchHeader
    records: list[Record]


@dataclass(slots=True)
class DecodeBudget:
    """The remaining resources for decoding all batches of one request."""

    #: Bytes of decompressed payload.
    uncompressed_bytes: int
    #: The number of records and headers.
    elements: int

    def spend_elements(self, count: int) -> None:
        """Subtract a number of records or headers; raise CorruptRecordError if fewer are left."""
        if count > self.elements:
            raise CorruptRecordError(
                f"{count} more records or headers are too many to decode for one request"
            )
        self.elements -= count

    def decompress(self, compression: CompressionType, payload: memoryview) -> bytes:
        """Return the decompressed payload; raise CorruptRecordError if it is invalid or too large.

        A failure uses up all remaining bytes, since the size of the output before it is unknown.
        """
        limit, self.uncompressed_bytes = self.uncompressed_bytes, 0
        decompressed = bytes(decompress(compression, payload, limit))
        self.uncompressed_bytes = limit - len(decompressed)
        return decompressed


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded record of a control batch: how a producer's transaction ended."""

    #: One of `ControlRecordType`, or a number that clients must ignore.
    type: int
    coordinator_epoch: int


def decode_record_batch(
    buffer: Buffer, *, max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
) -> RecordBatch:
    """Decode a buffer that holds exactly one batch.

    Raises CorruptRecordError.
    """
    return decode_within(buffer, DecodeBudget(max_uncompressed_bytes, sys.maxsize))


def decode_within(buffer: Buffer, budget: DecodeBudget) -> RecordBatch:
    """Decode a buffer that holds exactly one batch, and charge the cost to the budget.

    Raises CorruptRecordError, also if the budget is too small.
    """
    view = memoryview(buffer).cast("B")
    header = validate_record_batch(view)
    return RecordBatch(header, decode_payload(header, view, budget))


def decode_payload(
    header: RecordBatchHeader, batch: memoryview, budget: DecodeBudget
) -> list[Record]:
    """Decode the records of a complete batch, whose header and checksum have been checked.

    Raises CorruptRecordError, also if the budget is too small.
    """
    data = budget.decompress(header.compression, batch[RECORD_BATCH_OVERHEAD:])
    # If the count is larger than the data can hold, decoding fails at the first missing record.
    budget.spend_elements(min(header.record_count, len(data) // _MIN_RECORD_BYTES + 1))
    records: list[Record] = []
    position = 0
    last_delta = -1
    for _ in range(header.record_count):
        length, position = read_varint(data, position, len(data))
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptRecordError(f"a record of {length} bytes does not fit into its batch")
        # Skip the attributes, one byte without used bits.
        timestamp_delta, position = read_varlong(data, position + 1, end)
        delta, position = read_varint(data, position, end)
        if not last_delta < delta <= header.last_offset_delta:
            raise CorruptRecordError(
                f"offset delta {delta} after {last_delta}, in a batch that ends with"
                f" {header.last_offset_delta}"
            )
        last_delta = delta
        key, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        headers, position = _read_headers(data, position, end, budget)
        if position != end:
            raise CorruptRecordError(f"a record is {end - position} bytes longer than its fields")
        timestamp = (
            header.max_timestamp
            if header.log_append_time
            else header.base_timestamp + timestamp_delta
        )
        records.append(Record(header.base_offset + delta, timestamp, key, value, headers))
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes after the last record")
    return records


def decode_records(
    buffer: Buffer, *, max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES
) -> Iterator[Record]:
    """Yield the records of all complete batches in a buffer, except control batches.

    Raises CorruptRecordError when it reaches a corrupt batch.
    """
    for batch in split_record_batches(buffer):
        decoded = decode_record_batch(batch, max_uncompressed_bytes=max_uncompressed_bytes)
        if not decoded.header.is_control:
            yield from decoded.records


def decode_control_record(record: Record) -> ControlRecord:
    """Decode a record of a control batch (KIP-98).

    Raises CorruptRecordError if it is too short for a transaction marker. Later versions of a
    marker may have more fields, which are ignored, as Kafka's schemas require.
    """
    try:
        _, marker_type = _CONTROL_KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _END_TRANSACTION_MARKER.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptRecordError(
            f"the record at offset {record.offset} is not a transaction marker"
        ) from error
    return ControlRecord(marker_type, coordinator_epoch)


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length < 0:
        # As in Java, any negative length means null.
        return None, position
    stop = position + length
    if stop > end:
        raise CorruptRecordError(f"a field of {length} bytes does not fit into its record")
    return data[position:stop], stop


def _read_headers(
    data: bytes, position: int, end: int, budget: DecodeBudget
) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position, end)
    if count == 0:
        return (), position
    if not 0 <= count <= end - position:
        raise CorruptRecordError(f"{count} headers do not fit into a record")
    budget.spend_elements(count)
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise CorruptRecordError("the key of a header is null")
        value, position = _read_bytes(data, position, end)
        headers.append(Header(decode_utf8(key), value))
    return tuple(headers), position


# --- UTF-8, as in Java


def decode_utf8(encoded: bytes) -> str:
    r"""Decode a string as `new String(bytes, UTF_8)` does in Java: invalid bytes are replaced.

    This is for header keys, in code that is not compiled. Java replaces the bytes of an encoded
    surrogate together, and Python each of them.

    >>> decode_utf8(b"\xed\xa0\x80"), b"\xed\xa0\x80".decode(errors="replace")
    ('\ufffd', '\ufffd\ufffd\ufffd')
    """
    return encoded.decode("utf-8", _ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    end = error.end
    first, *rest = error.object[error.start : error.start + 3]
    if first == _FIRST_OF_SURROGATE and rest and _SECOND_OF_SURROGATE <= rest[0] in _CONTINUATION:
        end = error.start + (3 if rest[1:] and rest[1] in _CONTINUATION else 2)
    return _REPLACEMENT, end


codecs.register_error(_ERRORS, _replace)
