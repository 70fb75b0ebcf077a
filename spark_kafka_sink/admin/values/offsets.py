"""Offsets in partitions, and which ones to look up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class OffsetSpec(IntEnum):
    """Which offset to look up, in place of a timestamp.

    LATEST is the end of the partition, or its last stable offset with read_committed. EARLIEST is
    its first offset. MAX_TIMESTAMP is the record with the highest timestamp (brokers since 3.0).
    EARLIEST_LOCAL and LATEST_TIERED are where tiered storage ends (brokers since 3.6 and 3.8).

    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.list_offsets({place: OffsetSpec.LATEST})[place].offset
    0
    """

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset that was looked up.

    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     found = admin.list_offsets({place: OffsetSpec.EARLIEST})[place]
    >>> found.offset, found.timestamp
    (0, -1)
    """

    #: -1 if no record has a timestamp that is as late.
    offset: int
    #: That of the record, in milliseconds since 1970; -1 for the start or end of a partition.
    timestamp: int
    #: The leader epoch of the record; None if it is not known.
    leader_epoch: int | None
