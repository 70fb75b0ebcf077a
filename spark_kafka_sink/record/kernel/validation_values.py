"""The values of `validate_kernel`, without what it compiles: they need no numpy."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

#: Maximum number of refused records that are named.
MAX_REFUSED_RECORDS: Final = 100


class Expectation(NamedTuple):
    """What a topic expects of its records; times are in milliseconds."""

    now_ms: int
    before_max_ms: int
    after_max_ms: int
    needs_keys: bool
    #: Whether the broker's time replaces the timestamps.
    sets_timestamps: bool


class RecordProblem(IntEnum):
    """The reason why the records of a batch are invalid."""

    NONE = 0
    #: They end before the last one.
    TOO_FEW = 1
    #: Bytes follow the last one.
    TRAILING_BYTES = 2
    #: A number has too many bytes.
    LONG_NUMBER = 3
    #: The same of a record's length, in a batch that is not compressed.
    LONG_LENGTH = 4
    #: A record does not have its stated length.
    LENGTH = 5
    NEGATIVE_HEADER_COUNT = 6
    NULL_HEADER_KEY = 7


class Refusal(IntEnum):
    """The reason why a record that can be read is refused."""

    NO_KEY = 0
    TIMESTAMP = 1
    TIMESTAMP_TYPE = 2


class RefusedByTopic(NamedTuple):
    """A record that can be read and is refused nevertheless."""

    position: int
    reason: Refusal
    timestamp: int


class Validation(NamedTuple):
    """The result of `validate_records`."""

    problem: RecordProblem
    #: The number of records before the problem.
    records_done: int
    max_timestamp: int
    #: Whether the offsets of the records are 0, 1, 2 and so on.
    ordered: bool
    refused: list[RefusedByTopic]
