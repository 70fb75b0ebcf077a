"""The compiled loop that validates the records of a batch as Kafka's brokers do.

A broker reads uncompressed records as a whole (`DefaultRecord.readFrom`) and compressed ones as a
stream (`DefaultRecord.readPartiallyFrom`), with different checks: the length of a record counts
only in the first case, its offset only in the second. (`LogValidator` would write a batch again
whose offsets are not 0, 1, 2 and so on, which it cannot after `readPartiallyFrom`.)

A stream is validated in chunks, within which a record may end anywhere, so that no memory is needed
for a batch that decompresses to far more than its size. The loop reads one number after another:
the state between two of them is in a row of `VALIDATION_DTYPE`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from spark_kafka_sink.record.kernel.kernel_support import Items, kernel, kernel_part, load_byte
from spark_kafka_sink.record.kernel.validation_values import (
    MAX_REFUSED_RECORDS,
    RecordProblem,
    Refusal,
    RefusedByTopic,
    Validation,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from spark_kafka_sink.record.kernel.validation_values import Expectation
    from spark_kafka_sink.record.record_batch import RecordBatchHeader

VALIDATION_DTYPE: Final = np.dtype(
    [
        # What to expect.
        ("record_count", np.int64),
        ("is_stream", np.int64),
        ("base_timestamp", np.int64),
        ("has_one_timestamp", np.int64),  # whether all records have that of the batch
        ("batch_timestamp", np.int64),
        ("now_ms", np.int64),
        ("before_max_ms", np.int64),  # how old a record may be
        ("after_max_ms", np.int64),  # and how far in the future
        ("needs_keys", np.int64),
        ("sets_timestamps", np.int64),  # whether the broker's time replaces those of the records
        # What was found.
        ("records_done", np.int64),
        ("max_timestamp", np.int64),
        ("unordered", np.int64),  # the number of records whose offset is not the next one
        ("refused_count", np.int64),
        # The record that is being read.
        ("field", np.int64),
        ("skipped", np.int64),  # how many bytes lie before the next number
        ("length", np.int64),  # how many of its bytes are left
        ("timestamp", np.int64),
        ("has_key", np.int64),
        ("headers_left", np.int64),
    ]
)
#: All fields of a row, which are written at once: numpy takes as long for each as for all of them.
_TABLE: Final = Struct(f"={VALIDATION_DTYPE.itemsize // 8}q")
#: The fields about the record that is being read, before the first one.
_NOTHING_READ: Final = (0,) * 6
_NO_TIMESTAMP: Final = -1


class _Progress(NamedTuple):
    """The result of `_validate_chunk`."""

    #: A `RecordProblem`, or `_MORE_TO_READ`.
    status: int
    #: The number of bytes after the last number that was read.
    left: int
    records_done: int
    max_timestamp: int
    unordered: int
    refused: int


# The numbers of a record in their order; the first is preceded by nothing, the second by a byte
# with attributes, which a stream may lack like any other byte.
_LENGTH: Final = 0
_TIMESTAMP: Final = 1
_DELTA: Final = 2
_KEY: Final = 3
_VALUE: Final = 4
_HEADERS: Final = 5
_HEADER_KEY: Final = 6
_HEADER_VALUE: Final = 7
_END: Final = 8

_MORE_TO_READ: Final = -1
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_MAX_INT64: Final = 0x7FFFFFFFFFFFFFFF

# As plain integers, which compile to constants.
_NONE: Final = int(RecordProblem.NONE)
_LONG_NUMBER: Final = int(RecordProblem.LONG_NUMBER)
_LONG_LENGTH: Final = int(RecordProblem.LONG_LENGTH)
_WRONG_LENGTH: Final = int(RecordProblem.LENGTH)
_NEGATIVE_HEADER_COUNT: Final = int(RecordProblem.NEGATIVE_HEADER_COUNT)
_NULL_HEADER_KEY: Final = int(RecordProblem.NULL_HEADER_KEY)
_NO_KEY: Final = int(Refusal.NO_KEY)
_BAD_TIMESTAMP: Final = int(Refusal.TIMESTAMP)
_BAD_TIMESTAMP_TYPE: Final = int(Refusal.TIMESTAMP_TYPE)
#: The most bytes of a record in a compressed batch: max.decompressed.message.bytes (Kafka 4.4).
_MOST_BODY: Final = 2**31 - 9


@kernel_part
def _read_long_number(position: int, end: int, most_bytes: int) -> tuple[int, int]:
    """Read a varint like ByteUtils, which ignores bits beyond those of an int or a long.

    Returns the number and its end, which is 0 if it is not complete, and -1 if it is too long.
    """
    folded, shift = 0, 0
    while position < end:
        byte = load_byte(position)
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            if most_bytes == _INT_BYTES:
                folded &= 0xFFFFFFFF
            return ((folded >> 1) & _MAX_INT64) ^ -(folded & 1), position
        shift += 7
        if shift == 7 * most_bytes:
            return 0, -1
    return 0, 0


@kernel_part
def _read_number(position: int, end: int, most_bytes: int) -> tuple[int, int]:
    """Read a varint as `_read_long_number` does, but most have one or two bytes."""
    if position < end:
        byte = load_byte(position)
        if byte < 0x80:  # noqa: PLR2004
            return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long_number(position, end, most_bytes)


@kernel_part
def _skip(position: int, end: int, count: int) -> tuple[int, int]:
    """Skip bytes of the chunk; return the new position, and how many are left to skip."""
    step = min(count, end - position)
    return position + step, count - step


@kernel(6, Items(VALIDATION_DTYPE), Items(np.dtype(np.int64)), int, int)
def _validate_chunk(  # noqa: C901, PLR0912, PLR0915  one loop, where each call costs
    table: npt.NDArray[np.void], refused: npt.NDArray[np.int64], data: int, size: int
) -> tuple[int, int, int, int, int, int]:
    """Continue with a chunk; return the fields of `_Progress`."""
    task = table[0]
    position, end = data, data + size
    needs_keys, sets_timestamps = task.needs_keys, task.sets_timestamps
    base_timestamp, batch_timestamp = task.base_timestamp, task.batch_timestamp
    has_one_timestamp, now_ms = task.has_one_timestamp, task.now_ms
    before_max_ms, after_max_ms = task.before_max_ms, task.after_max_ms
    unordered, refused_count = task.unordered, task.refused_count
    is_stream, record_count = task.is_stream, task.record_count
    field, skipped, length = task.field, task.skipped, task.length
    done, headers_left = task.records_done, task.headers_left
    timestamp, max_timestamp, has_key = task.timestamp, task.max_timestamp, task.has_key
    status, number_end = _MORE_TO_READ, 0
    # The fields of a record in their order. A turn reads all of them, unless the chunk ends within
    # the record; after `break`, the next chunk has the rest of a number.
    while done < record_count:
        if field == _LENGTH:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            position = number_end
            if not (0 <= number <= _MOST_BODY if is_stream else 0 < number <= end - position):
                status = _WRONG_LENGTH
                break
            # The attributes follow.
            length, skipped, field = number - 1, 1, _TIMESTAMP
        position, skipped = _skip(position, end, skipped)
        if field == _TIMESTAMP:
            number, number_end = _read_number(position, end, _LONG_BYTES)
            if number_end <= 0:
                break
            length -= number_end - position
            position, field = number_end, _DELTA
            timestamp = batch_timestamp if has_one_timestamp else base_timestamp + number
        if field == _DELTA:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            length -= number_end - position
            position, field = number_end, _KEY
            unordered += number != done
        if field == _KEY:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            has_key, skipped = int(number >= 0), max(number, 0)
            length -= number_end - position + skipped
            position, field = number_end, _VALUE
        position, skipped = _skip(position, end, skipped)
        if field == _VALUE:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            skipped = max(number, 0)
            length -= number_end - position + skipped
            position, field = number_end, _HEADERS
        position, skipped = _skip(position, end, skipped)
        if field == _HEADERS:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            if number < 0:
                status = _NEGATIVE_HEADER_COUNT
                break
            length -= number_end - position
            position, headers_left = number_end, number
            field = _HEADER_KEY if number else _END
        while field != _END:
            number, number_end = _read_number(position, end, _INT_BYTES)
            if number_end <= 0:
                break
            if number < 0 and field == _HEADER_KEY:
                status = _NULL_HEADER_KEY
                break
            skipped = max(number, 0)
            length -= number_end - position + skipped
            position, skipped = _skip(number_end, end, skipped)
            if field == _HEADER_KEY:
                field = _HEADER_VALUE
            else:
                headers_left -= 1
                field = _HEADER_KEY if headers_left else _END
        if field != _END or skipped > 0:
            break
        if length != 0 and not is_stream:
            status = _WRONG_LENGTH
            break

        reason = -1
        if needs_keys and not has_key:
            reason = _NO_KEY
        elif timestamp != _NO_TIMESTAMP and not sets_timestamps:
            age = now_ms - timestamp
            if age > before_max_ms or -age > after_max_ms:
                reason = _BAD_TIMESTAMP
        elif has_one_timestamp:
            reason = _BAD_TIMESTAMP_TYPE
        if reason >= 0:
            if refused_count < MAX_REFUSED_RECORDS:
                place = 3 * refused_count
                refused[place] = done
                refused[place + 1] = reason
                refused[place + 2] = timestamp
            refused_count += 1
        max_timestamp = max(max_timestamp, timestamp)
        done += 1
        field = _LENGTH
    if number_end < 0:
        status = _LONG_LENGTH if field == _LENGTH and not is_stream else _LONG_NUMBER
    elif done == record_count:
        status = _NONE
    task.field, task.skipped, task.length = field, skipped, length
    task.records_done, task.headers_left = done, headers_left
    task.timestamp, task.max_timestamp, task.has_key = timestamp, max_timestamp, has_key
    task.unordered, task.refused_count = unordered, refused_count
    return status, end - position, done, max_timestamp, unordered, refused_count


def validate_records(
    header: RecordBatchHeader,
    chunks: Iterable[bytes | memoryview],
    expectation: Expectation,
    *,
    is_stream: bool,
) -> Validation:
    """Validate the records of a batch, whose decompressed bytes are in the chunks.

    Only a stream may have several. The last one is read unless there is a problem before.
    """
    # A bytearray, since the compiled kernels take writable arrays.
    table = np.frombuffer(
        bytearray(
            _TABLE.pack(
                header.record_count,
                is_stream,
                header.base_timestamp,
                header.log_append_time,
                header.max_timestamp,
                *expectation,
                *(0, _NO_TIMESTAMP, 0, 0),
                *_NOTHING_READ,
            )
        ),
        VALIDATION_DTYPE,
    )
    refused = np.empty(3 * MAX_REFUSED_RECORDS, np.int64)
    progress = _Progress(_MORE_TO_READ, 0, 0, _NO_TIMESTAMP, 0, 0)
    rest = b""
    for chunk in chunks:
        data = np.frombuffer(rest + chunk if rest else chunk, np.uint8)
        left = data.size
        if progress.status == _MORE_TO_READ:
            progress = _Progress(
                *_validate_chunk(table, refused, data.__array_interface__["data"][0], data.size)
            )
            left = progress.left
        if progress.status == _MORE_TO_READ:
            rest = bytes(data[data.size - left :])
        elif progress.status != _NONE:
            break
        elif left:
            progress = progress._replace(status=RecordProblem.TRAILING_BYTES)
            break
    named = refused[: 3 * min(progress.refused, MAX_REFUSED_RECORDS)]
    return Validation(
        RecordProblem.TOO_FEW
        if progress.status == _MORE_TO_READ
        else RecordProblem(progress.status),
        progress.records_done,
        progress.max_timestamp,
        progress.unordered == 0,
        [
            RefusedByTopic(position, Refusal(reason), timestamp)
            for position, reason, timestamp in (
                named.reshape(-1, 3).tolist() if progress.refused else ()
            )
        ],
    )
