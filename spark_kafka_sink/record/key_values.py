"""A fast reader of the keys and values in a long log, such as a ledger, that serves as an index.

`decode` creates objects for everything in a batch, which takes half a minute for a log of a million
batches. Here a batch yields only its keys and values, or the end of a transaction:

- The records of a batch outside any transaction are counted by its header and not decoded: it may
  decompress to a hundred times its size, and an index that is written in transactions ignores it.
- A transaction with one record of a form that the sink knows, directly followed by its COMMIT
  marker, is matched as a whole by one regular expression. Nearly all of a large ledger looks so.
- A transactional batch without compression, headers, null keys and large records is read in place.
- Any other batch goes to `decode`, which decides whether it is well-formed.

Checksums are always checked. A batch with the right checksum whose records cannot be decoded was
written that way: it is reported to the sink, and the batches after it are still read.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from crc32c import crc32c

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import DEFAULT_MAX_UNCOMPRESSED_BYTES
from spark_kafka_sink.record.decode import decode_control_record, decode_record_batch
from spark_kafka_sink.record.default_record import read_varint
from spark_kafka_sink.record.record_batch import (
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    ControlRecordType,
    validate_record_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

#: The key and the value of a record.
KeyValuePair: TypeAlias = tuple[bytes | None, bytes | None]


#: A function that takes consecutive committed transactions of a producer id: their keys, their
#: values, and the match of the value pattern's group in each. The sink may already have taken
#: records of the first of these transactions.
TakeKnown: TypeAlias = "Callable[[int, list[bytes], list[bytes], list[bytes]], None]"


class LogSink(Protocol):
    """The receiver of a log's content, in the order of its offsets."""

    @property
    def known_records(self) -> tuple[bytes, bytes, TakeKnown] | None:
        """The form of the single record that most transactions consist of, or None.

        It consists of a pattern for the key, one for the value with a single group that is part of
        every match, and the function that takes such transactions.
        """

    def take_records(self, offset: int, producer_id: int, records: list[KeyValuePair]) -> None:
        """Handle the records of the batch at `offset`, part of a producer's transaction."""

    def take_plain(self, offset: int, count: int) -> None:
        """Handle `count` records from `offset` on that belong to no transaction."""

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Handle the end of a producer's transaction."""

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Handle a batch that cannot be decoded."""


#: A pattern for the size of a field smaller than 1 MiB.
_SIZE: Final = rb"([\x80-\xff]{0,2}+[\x00-\x7f])"


class _Sizes(dict[bytes, int]):
    """A cache of decoded variable-length numbers."""

    def __missing__(self, varint: bytes) -> int:
        self[varint], _ = read_varint(varint, 0, len(varint))
        return self[varint]


#: baseOffset, batchLength, magic, crc, attributes, lastOffsetDelta, producerId, recordsCount.
_HEADER: Final = struct.Struct(">qi4xbIhi16xq6xi")
_LENGTH_COVERS_FROM: Final = 12
_CRC_COVERS_FROM: Final = 21
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_COMPRESSION: Final = 0x07
#: This bit is set in every byte of a varint but the last.
_MORE: Final = 0x80
_COMMIT: Final = b"\x20\0\0\0\x08\0\0\0\1"
#: The first bytes of a marker's record (length, attributes, deltas, key), and whether it commits.
_MARKERS: Final = {b"\x20\0\0\0\x08\0\0\0\0": False, _COMMIT: True}
_MARKER_START: Final = 9
#: baseOffset and lastOffsetDelta of a batch.
_OFFSETS: Final = struct.Struct(">q15xi")
#: The size of a marker's batch, and its batchLength.
_MARKER_BYTES: Final = 78
_MARKER_LENGTH: Final = struct.pack(">i", _MARKER_BYTES - _LENGTH_COVERS_FROM)


class _KnownTransactions:
    """A matcher for transactions with one record of a known form whose marker is the next batch."""

    def __init__(self, key: bytes, value: bytes, take: TakeKnown) -> None:
        """Compile the pattern of two such batches."""
        # The record's attributes and both of its deltas are 0, and it has no headers. The batches
        # are uncompressed, and may have either timestamp type and a delete horizon.
        self.match = re.compile(
            _header(b"(.{4})", rb"\0[\x10\x18\x50\x58]", b"(.{8})")
            + (_SIZE + rb"\0\0\0" + _SIZE + b"(" + key + b")" + _SIZE + b"(" + value + rb")\0")
            + _header(re.escape(_MARKER_LENGTH), rb"\0[\x30\x38\x70\x78]", rb"\4")
            + (re.escape(_COMMIT) + b".{8}"),
            re.DOTALL,
        ).match
        self._take = take
        self._sizes = _Sizes()

    def take(self, match: re.Match[bytes], view: memoryview, producer_id: int) -> int:
        """Pass the well-formed transactions from a match on to the sink; return where they end."""
        sizes, data = self._sizes, match.string
        keys: list[bytes] = []
        values: list[bytes] = []
        groups: list[bytes] = []
        producer = producer_id.to_bytes(8, "big", signed=True)
        following: re.Match[bytes] | None = match
        end = match.start()
        last_offset = b""
        while following:
            (
                offset, length, crc, owner,
                record_size, key_size, key, value_size, value, group,
                marker_offset, marker_crc,
            ) = following.groups()  # fmt: skip
            begin, behind = following.span()
            marker = behind - _MARKER_BYTES
            if not (
                # As long as offsets rise, none is below the offset to read from.
                last_offset < offset < marker_offset
                and owner == producer
                and sizes[key_size] == len(key)
                and sizes[value_size] == len(value)
                and sizes[record_size] + len(record_size) == marker - begin - RECORD_BATCH_OVERHEAD
                and length == (marker - begin - _LENGTH_COVERS_FROM).to_bytes(4, "big")
                and crc == crc32c(view[begin + _CRC_COVERS_FROM : marker]).to_bytes(4, "big")
                and marker_crc
                == crc32c(view[marker + _CRC_COVERS_FROM : behind]).to_bytes(4, "big")
            ):
                break
            keys.append(key)
            values.append(value)
            groups.append(group)
            end = behind
            last_offset = marker_offset
            following = self.match(data, end)
        if keys:
            self._take(producer_id, keys, values, groups)
        return end


def _header(length: bytes, attributes: bytes, producer_id: bytes) -> bytes:
    """Return the pattern for a batch of one record, with groups for its offset and checksum."""
    return (
        rb"([\0-\x7f].{7})" + length + b".{4}" + re.escape(bytes([MAGIC])) + b"(.{4})" + attributes
        + b".{20}" + producer_id + b".{6}" + re.escape(struct.pack(">i", 1))
    )  # fmt: skip


# A ledger may have more than a million batches: avoiding calls for each of them makes this fast.
def read_key_values(  # noqa: C901, PLR0912
    data: bytes,
    sink: LogSink,
    *,
    offset: int,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> int:
    """Read the batches of a Fetch response from `offset` on; return the offset after the last.

    A truncated last batch is left out. Raises CorruptRecordError.
    """
    view = memoryview(data)
    size = len(data)
    begin = end = 0
    next_offset = offset
    known = sink.known_records and _KnownTransactions(*sink.known_records)
    while size - begin >= RECORD_BATCH_OVERHEAD:
        first, length, magic, crc, attributes, last_delta, producer_id, count = _HEADER.unpack_from(
            data, begin
        )
        payload = begin + RECORD_BATCH_OVERHEAD
        end = begin + _LENGTH_COVERS_FROM + length
        if magic != MAGIC or end < payload:
            raise CorruptRecordError(f"no record batch of format {MAGIC} at offset {first}")
        if end > size:
            break
        if crc32c(view[begin + _CRC_COVERS_FROM : end]) != crc:
            raise CorruptRecordError(f"wrong checksum of the record batch at offset {first}")
        if attributes & _CONTROL:
            committed = _MARKERS.get(data[payload : payload + _MARKER_START])
            if committed is None or first < offset:
                _read_decoded(view[begin:end], sink, offset, max_uncompressed_bytes)
            else:
                sink.take_end(producer_id, committed=committed)
        elif not attributes & _TRANSACTIONAL:
            plain_from = max(first, offset)
            sink.take_plain(plain_from, max(0, min(count, first + last_delta + 1 - plain_from)))
        elif (
            known
            and count == 1
            and first >= offset
            and (match := known.match(data, begin))
            and (behind := known.take(match, view, producer_id)) > begin
        ):
            end = behind
            first, last_delta = _OFFSETS.unpack_from(data, end - _MARKER_BYTES)
        else:
            records = None
            if not attributes & _COMPRESSION and first >= offset:
                records = _read_in_place(data, payload, end, count)
            if records is None:
                _read_decoded(view[begin:end], sink, offset, max_uncompressed_bytes)
            else:
                sink.take_records(first, producer_id, records)
        next_offset = first + last_delta + 1
        begin = end
    return max(next_offset, offset)


# A single pass without calls, for speed.
def _read_in_place(  # noqa: C901, PLR0911, PLR0912
    data: bytes, position: int, end: int, count: int
) -> list[KeyValuePair] | None:
    """Return the records, or None if they are not of the simple kind that most records are."""
    records: list[KeyValuePair] = []
    try:
        for _ in range(count):
            length = data[position]
            position += 1
            if length >= _MORE:
                byte = data[position]
                position += 1
                length += (byte - 1) << 7
                if byte >= _MORE:
                    byte = data[position]
                    position += 1
                    length += (byte - 1) << 14
                    if byte >= _MORE:
                        return None
            begin, size = position, length
            # Skip the attributes, and the deltas of timestamp and offset.
            position += 1
            while data[position] >= _MORE:
                position += 1
            position += 1
            while data[position] >= _MORE:
                position += 1
            position += 1
            length = data[position]
            position += 1
            if length >= _MORE:
                byte = data[position]
                position += 1
                length += (byte - 1) << 7
                if byte >= _MORE:
                    return None
            if length & 1:
                return None
            key = data[position : (position := position + (length >> 1))]
            length = data[position]
            position += 1
            if length >= _MORE:
                byte = data[position]
                position += 1
                length += (byte - 1) << 7
                if byte >= _MORE:
                    byte = data[position]
                    position += 1
                    length += (byte - 1) << 14
                    if byte >= _MORE:
                        return None
            # As in Java, any negative length means null.
            value = None
            if not length & 1:
                value = data[position : (position := position + (length >> 1))]
            # There must be no headers, and the record must end here.
            if data[position]:
                return None
            position += 1
            if size != (position - begin) << 1:
                return None
            records.append((key, value))
    except IndexError:
        return None
    return records if position == end else None


def _read_decoded(batch: memoryview, sink: LogSink, offset: int, limit: int) -> None:
    header = validate_record_batch(batch)
    try:
        decoded = decode_record_batch(batch, max_uncompressed_bytes=limit)
    except CorruptRecordError as error:
        sink.take_undecodable(header.base_offset, str(error))
        return
    records = [record for record in decoded.records if record.offset >= offset]
    if not header.is_control:
        sink.take_records(
            header.base_offset,
            header.producer_id,
            [(record.key, record.value) for record in records],
        )
        return
    for record in records:
        marker = decode_control_record(record)
        # Readers ignore other control records, such as those of KRaft.
        if marker.type in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
            sink.take_end(header.producer_id, committed=marker.type == ControlRecordType.COMMIT)
