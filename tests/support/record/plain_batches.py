"""A simple, slow encoder of record batches, in which any field may be wrong.

It is independent of the package's kernel, so that brokers are tested with other input too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

from spark_kafka_sink.record.compression import CompressionType, Compressor


class PlainRecord(NamedTuple):
    """One record; the timestamp is in milliseconds since 1970."""

    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def varint(number: int) -> bytes:
    """Encode a signed number as Kafka's varint or varlong."""
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def encode_record(record: PlainRecord, *, offset_delta: int, base_timestamp: int) -> bytes:
    """Encode one record, preceded by its length."""
    body = (
        b"\0"
        + varint(record.timestamp - base_timestamp)
        + varint(offset_delta)
        + _sized(record.key)
        + _sized(record.value)
        + varint(len(record.headers))
        + b"".join(_sized(key) + _sized(value) for key, value in record.headers)
    )
    return varint(len(body)) + body


def plain_batch(
    records: list[PlainRecord] | int = 1,
    *,
    base_offset: int = 0,
    magic: int = 2,
    compression: CompressionType = CompressionType.NONE,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset_delta: int | None = None,
    record_count: int | None = None,
    max_timestamp: int | None = None,
    payload: bytes | None = None,
    crc: int | None = None,
    batch_length: int | None = None,
) -> bytes:
    """Encode a batch; a number of records stands for that many records with one byte.

    All other arguments are written unchanged, whether or not they fit the records.
    """
    if isinstance(records, int):
        records = [PlainRecord()] * records
    base_timestamp = records[0].timestamp if records else 0
    if payload is None:
        payload = b"".join(
            encode_record(record, offset_delta=delta, base_timestamp=base_timestamp)
            for delta, record in enumerate(records)
        )
        if compression is not CompressionType.NONE:
            payload = Compressor(compression).compress(payload)
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=-1)
    covered = (
        struct.pack(
            ">hiqqqhii",
            attributes | compression,
            len(records) - 1 if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records) if record_count is None else record_count,
        )
        + payload
    )
    if crc is None:
        crc = crc32c.crc32c(covered)
    length = 9 + len(covered) if batch_length is None else batch_length
    return struct.pack(">qiibI", base_offset, length, -1, magic, crc) + covered
