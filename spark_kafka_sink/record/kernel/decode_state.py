"""The state of a decoder, which the compiled loops share with Python, and their statuses."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

#: A buffer for byte strings needs so many bytes beyond its capacity: short strings are copied in
#: blocks of this size.
COPY_SLACK: Final = 32
#: What a header counts beside its key and value. In an output it takes two offsets and a bit, but
#: it becomes three objects of Python, and places in lists and tuples.
BYTES_PER_HEADER: Final = 200


def _bytes_fields(name: str) -> list[tuple[str, type[np.int64]]]:
    """Return the fields of a column of byte strings; its offsets' address is 0 if not wanted."""
    return [
        (f"{name}_{part}", np.int64)
        for part in ("offsets", "data", "validity", "capacity", "used", "needed", "nulls")
    ]


#: All that a decoder knows. Addresses of columns that are not wanted are 0.
DECODER_DTYPE: Final = np.dtype(
    [
        # The answer: `size` counts the bytes of complete batches, `position` those that are done.
        ("data", np.int64),
        ("size", np.int64),
        ("position", np.int64),
        ("start", np.int64),
        ("end", np.int64),
        ("check_crcs", np.int64),
        # The aborted transactions by their first offset, each with an index of its producer.
        ("aborted_offsets", np.int64),
        ("aborted_producers", np.int64),
        ("aborted_count", np.int64),
        ("next_aborted", np.int64),
        # Their producers, sorted, and a byte for each: whether its transaction has begun.
        ("producers", np.int64),
        ("producer_count", np.int64),
        ("is_aborting", np.int64),
        # The batch at `position`.
        ("stage", np.int64),
        ("batch_size", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("attributes", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("record_count", np.int64),
        ("skipped", np.int64),
        ("crc_checked", np.int64),
        ("marked_producer", np.int64),  # index of the one whose marker this batch may be, or -1
        # Memory for the records of small compressed batches.
        ("scratch", np.int64),
        ("scratch_capacity", np.int64),
        # Its records, decompressed; `records` is the address of the next one.
        ("records", np.int64),
        ("records_end", np.int64),
        ("records_done", np.int64),
        ("last_delta", np.int64),
        # The output.
        ("rows", np.int64),
        ("max_rows", np.int64),
        ("bytes", np.int64),
        ("max_bytes", np.int64),
        ("max_header_bytes", np.int64),  # of one record
        ("timestamp_type", np.int64),
        ("separates_types", np.int64),  # whether all rows of an output need one timestamp type
        ("offsets", np.int64),
        ("timestamps", np.int64),
        ("timestamp_factor", np.int64),  # their units in a millisecond: 1, or 1000
        *_bytes_fields("key"),
        *_bytes_fields("value"),
        ("header_offsets", np.int64),
        ("header_validity", np.int64),
        ("headerless", np.int64),
        ("headers_used", np.int64),
        ("headers_capacity", np.int64),
        ("headers_needed", np.int64),
        *_bytes_fields("header_key"),
        *_bytes_fields("header_value"),
    ]
)
#: The places of the fields in the row: all of them are int64.
FIELD: Final = {name: place for place, name in enumerate(DECODER_DTYPE.names or ())}


class Stage(IntEnum):
    """What is done of the batch at the position."""

    NOTHING = 0
    #: Its header is read; Python has to check its checksum or to decompress it.
    HEADER = 1
    #: Its records can be decoded, or skipped.
    PREPARED = 2


class DecodeStatus(IntEnum):
    """The reason why a loop returned; negative for corrupt bytes."""

    DONE = 0
    #: The batch at the position is in the stage HEADER.
    PREPARE = 1
    #: The next row does not belong into this output.
    FULL = 2
    #: The next row needs more room: the fields `..._needed` say how much.
    GROW = 3
    BAD_FORMAT = -1
    BAD_LENGTH = -2
    BAD_COMPRESSION = -3
    BAD_RECORD_COUNT = -4
    BAD_CHECKSUM = -5
    BAD_VARINT = -6
    BAD_RECORD_LENGTH = -7
    BAD_OFFSET_DELTA = -8
    BAD_FIELD_LENGTH = -9
    BAD_HEADER_COUNT = -10
    NULL_HEADER_KEY = -11
    TRAILING_FIELD_BYTES = -12
    TRAILING_BYTES = -13
    BAD_MARKER = -14
    TIMESTAMP_OVERFLOW = -15
    OFFSET_OVERFLOW = -16
    HEADERS_TOO_LARGE = -17
    TOO_MANY_HEADERS = -18


#: The memory for small compressed batches, without the slack of `kernel_unpack`.
SCRATCH_BYTES: Final = 64 * 1024
#: A flag in a batch's attributes.
LOG_APPEND_TIME_FLAG: Final = 0x08
CONTROL_FLAG: Final = 0x20
MAX_INT64: Final = 0x7FFFFFFFFFFFFFFF
