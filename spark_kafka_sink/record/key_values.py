"""Read the keys and values of a long log quickly: for logs that are indexes, such as a ledger.

`decode` makes objects of everything in a batch, which takes half a minute for a log of a million
batches. Here a batch becomes its keys and values, or the end of a transaction, and nothing else:

- A batch outside any transaction is counted by its header and not decoded: it may inflate to a
  hundred times its size, and an index that is written in transactions ignores it.
- A transactional batch of one record in a form that the sink knows is read by one regular
  expression. That is how nearly all of a large ledger looks.
- A transactional batch without compression, headers, null keys, and large records is read in place.
- Any other batch goes to `decode`, which has the last word on whether it is well-formed.

Checksums are checked either way. A batch with the right checksum whose records cannot be decoded
was written like that: the sink is told about it, and the batches behind it are still read.
"""

from __future__ import annotations

import re
import struct
from typing import Final, Protocol, TypeAlias

from crc32c import crc32c

from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.record.decode import (
    DEFAULT_MAX_UNCOMPRESSED_BYTES,
    ControlRecordType,
    decode_control_record,
    decode_record_batch,
)
from spark_kafka_sink.record.record_batch import (
    MAGIC,
    RECORD_BATCH_OVERHEAD,
    validate_record_batch,
)
from spark_kafka_sink.record.varint import read_varint

#: The key and the value of a record.
KeyValuePair: TypeAlias = tuple[bytes | None, bytes | None]


#: Key, value and the offset of the batch; and what a sink knows of the value.
PendingRecord: TypeAlias = tuple[bytes, bytes | None, int, bytes | None]


class LogSink(Protocol):
    """What a log is read into, in the order of its offsets."""

    #: Patterns of the key and of the value that most batches have, each as their only record; the
    #: latter has one group, which is in every match. None where there is no such form.
    known_record: tuple[bytes, bytes] | None
    #: The records of open transactions, by producer id. The reader itself adds those of the known
    #: form, each as its key, its value, its offset, and what the group of the value has matched.
    pending: dict[int, list[PendingRecord]]

    def take_records(self, offset: int, producer_id: int, records: list[KeyValuePair]) -> None:
        """Take the records of the batch at `offset`, which is part of a producer's transaction."""

    def take_plain(self, offset: int, count: int) -> None:
        """Take note of `count` records from `offset` on that belong to no transaction."""

    def take_end(self, producer_id: int, *, committed: bool) -> None:
        """Take the end of a producer's transaction."""

    def take_undecodable(self, offset: int, reason: str) -> None:
        """Take note of a batch that nobody can decode."""


#: The size of a field below a mebibyte.
_SIZE: Final = rb"([\x80-\xff]{0,2}+[\x00-\x7f])"


def _known_payload(key: bytes, value: bytes) -> re.Pattern[bytes]:
    """Compile what the payload of a batch with one record of a known form looks like."""
    # The record's attributes and both of its deltas are 0, and it has no headers.
    return re.compile(
        _SIZE + rb"\0\0\0" + _SIZE + b"(" + key + b")" + _SIZE + b"(" + value + rb")\0", re.DOTALL
    )


class _Sizes(dict[bytes, int]):
    """The numbers that variable-length numbers stand for, each decoded once."""

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
#: Every byte of a varint but the last has this bit.
_MORE: Final = 0x80
#: How the record of a marker begins (length, attributes, deltas, key), and whether it commits.
_MARKERS: Final = {b"\x20\0\0\0\x08\0\0\0\0": False, b"\x20\0\0\0\x08\0\0\0\1": True}
_MARKER_START: Final = 9


# A ledger has more than a million batches: what is not called for each of them makes this fast.
def read_key_values(  # noqa: C901, PLR0912
    data: bytes,
    sink: LogSink,
    *,
    offset: int,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
) -> int:
    """Read the batches of a Fetch answer from `offset` on; return the offset behind the last.

    A last batch that is cut off is left out. Raises CorruptRecordError.
    """
    view = memoryview(data)
    size = len(data)
    begin = end = 0
    next_offset = offset
    known = sink.known_record and _known_payload(*sink.known_record).fullmatch
    sizes = _Sizes()
    pending, take_end = sink.pending, sink.take_end
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
                _read_slowly(view[begin:end], sink, offset, max_uncompressed_bytes)
            else:
                take_end(producer_id, committed=committed)
        elif not attributes & _TRANSACTIONAL:
            plain_from = max(first, offset)
            sink.take_plain(plain_from, max(0, min(count, first + last_delta + 1 - plain_from)))
        elif (
            known
            and count == 1
            and attributes & _COMPRESSION == 0
            and first >= offset
            and (match := known(data, payload, end))
        ):
            record_size, key_size, key, value_size, value, found = match.groups()
            if (
                sizes[key_size] == len(key)
                and sizes[value_size] == len(value)
                and sizes[record_size] + len(record_size) == end - payload
            ):
                if producer_id in pending:
                    pending[producer_id].append((key, value, first, found))
                else:
                    pending[producer_id] = [(key, value, first, found)]
            else:
                _read_slowly(view[begin:end], sink, offset, max_uncompressed_bytes)
        else:
            records = None
            if not attributes & _COMPRESSION and first >= offset:
                records = _read_in_place(data, payload, end, count)
            if records is None:
                _read_slowly(view[begin:end], sink, offset, max_uncompressed_bytes)
            else:
                sink.take_records(first, producer_id, records)
        next_offset = first + last_delta + 1
        begin = end
    return max(next_offset, offset)


# One pass without calls: that is what makes it fast.
def _read_in_place(  # noqa: C901, PLR0911, PLR0912
    data: bytes, position: int, end: int, count: int
) -> list[KeyValuePair] | None:
    """Read records; None where they are not as simple as they mostly are."""
    records: list[KeyValuePair] = []
    try:
        for _ in range(count):
            length = data[position]
            position += 1
            if length >= _MORE:
                more = data[position]
                position += 1
                length += (more - 1) << 7
                if more >= _MORE:
                    more = data[position]
                    position += 1
                    length += (more - 1) << 14
                    if more >= _MORE:
                        return None
            begin, size = position, length
            # Attributes, and the deltas of timestamp and offset.
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
                more = data[position]
                position += 1
                length += (more - 1) << 7
                if more >= _MORE:
                    return None
            if length & 1:
                return None
            key = data[position : (position := position + (length >> 1))]
            length = data[position]
            position += 1
            if length >= _MORE:
                more = data[position]
                position += 1
                length += (more - 1) << 7
                if more >= _MORE:
                    more = data[position]
                    position += 1
                    length += (more - 1) << 14
                    if more >= _MORE:
                        return None
            # As in Java, any negative length means null.
            value = None
            if not length & 1:
                value = data[position : (position := position + (length >> 1))]
            # There are no headers, and the record ends here.
            if data[position]:
                return None
            position += 1
            if size != (position - begin) << 1:
                return None
            records.append((key, value))
    except IndexError:
        return None
    return records if position == end else None


def _read_slowly(batch: memoryview, sink: LogSink, offset: int, limit: int) -> None:
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
        # Others, such as those of KRaft, concern no reader.
        if marker.type in {ControlRecordType.ABORT, ControlRecordType.COMMIT}:
            sink.take_end(header.producer_id, committed=marker.type == ControlRecordType.COMMIT)
