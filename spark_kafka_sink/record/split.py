"""Splitting a batch into smaller batches (Kafka's `ProducerBatch.split`).

This is needed when a batch turns out to be larger than the broker accepts, or much larger than
batch.size. Offsets and timestamps of records are relative to their batch, so both are rewritten;
the rest of each record is copied. Splits are rare, so this is plain Python: some microseconds per
record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.varint import encode_varint, read_varint, read_varlong

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


class PayloadPart(NamedTuple):
    """The uncompressed records of one of the smaller batches, and values for its header."""

    payload: bytes
    record_count: int
    base_timestamp: int
    max_timestamp: int


class _SplitRecord(NamedTuple):
    timestamp: int
    #: Key, value and headers, as encoded in the batch.
    content: bytes


def split_payload(
    payload: Buffer, *, record_count: int, base_timestamp: int, max_bytes: int
) -> list[PayloadPart]:
    """Split `payload`, the uncompressed records of a batch, into parts of at most `max_bytes`.

    A record larger than that gets its own part; every record is in exactly one part, in order.
    Raises CorruptRecordError if the payload is malformed or has another number of records.
    """
    parts: list[PayloadPart] = []
    part = _OpenPart()
    for record in _records(bytes(payload), record_count, base_timestamp):
        if not part.try_append(record, max_bytes):
            parts.append(part.finish())
            part = _OpenPart()
            part.try_append(record, max_bytes)
    if part.record_count:
        parts.append(part.finish())
    return parts


class _OpenPart:
    def __init__(self) -> None:
        self._payload = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = 0
        self.record_count = 0

    def try_append(self, record: _SplitRecord, max_bytes: int) -> bool:
        """Append a record and return True, if there is room or if it is the first record."""
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = record.timestamp
        deltas = encode_varint(record.timestamp - self._base_timestamp) + encode_varint(
            self.record_count
        )
        length = encode_varint(1 + len(deltas) + len(record.content))
        size = len(length) + 1 + len(deltas) + len(record.content)
        if self.record_count and len(self._payload) + size > max_bytes:
            return False
        self._payload += length + b"\0" + deltas + record.content
        self._max_timestamp = max(self._max_timestamp, record.timestamp)
        self.record_count += 1
        return True

    def finish(self) -> PayloadPart:
        return PayloadPart(
            bytes(self._payload), self.record_count, self._base_timestamp, self._max_timestamp
        )


def _records(data: bytes, record_count: int, base_timestamp: int) -> Iterator[_SplitRecord]:
    position = 0
    for _ in range(record_count):
        length, position = read_varint(data, position, len(data))
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptRecordError(f"a record of {length} bytes does not fit into its batch")
        timestamp_delta, position = read_varlong(data, position + 1, end)
        _, position = read_varint(data, position, end)
        yield _SplitRecord(base_timestamp + timestamp_delta, data[position:end])
        position = end
    if position != len(data):
        raise CorruptRecordError(f"{len(data) - position} bytes after the last record")
