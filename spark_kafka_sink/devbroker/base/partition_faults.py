"""Injected faults that affect single partitions of a response; the others are served as usual.

Handlers find them in the context of a request: they are decided before it is handled, because the
error of a partition ends the wait of a Fetch. `net.faults` has those of whole responses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode


def check_error_code(error_code: object) -> None:
    """Raise ConfigError unless an action got a member of `ErrorCode`."""
    if not isinstance(error_code, ErrorCode):
        raise ConfigError(
            f"error_code must be a member of ErrorCode, such as ErrorCode.NOT_LEADER_OR_FOLLOWER, "
            f"not {error_code!r}"
        )


def check_function(alter: object) -> None:
    """Raise ConfigError unless an action got a function."""
    if not callable(alter):
        raise ConfigError(f"alter must be a function, not {alter!r}")


def _check_partitions(partitions: object) -> None:
    if partitions is None or (
        isinstance(partitions, Collection)
        and not isinstance(partitions, str)
        and all(isinstance(pair, tuple) and len(pair) == 2 for pair in partitions)  # noqa: PLR2004
    ):
        return
    raise ConfigError(
        f'partitions must be pairs such as [("orders", 0)], or None for all, not {partitions!r}'
    )


@dataclass(frozen=True, slots=True)
class PartitionError:
    """Respond to Fetch, ListOffsets or OffsetForLeaderEpoch with an error code for partitions.

    `error_code` is one of `ErrorCode`. `partitions` are pairs of topic and partition; None stands
    for all. The other partitions are served as usual. Raises ConfigError for any other values.

    >>> fault = PartitionError(ErrorCode.KAFKA_STORAGE_ERROR, [("orders", 1)])
    >>> with DevBroker(topics={"orders": 2}) as broker:
    ...     broker.on(ApiKey.FETCH, fault, times=1).fired
    0
    """

    error_code: ErrorCode
    partitions: Collection[tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        check_error_code(self.error_code)
        _check_partitions(self.partitions)


@dataclass(frozen=True, slots=True)
class OmitPartitions:
    """Respond to Fetch, ListOffsets or OffsetForLeaderEpoch without some partitions.

    `partitions` are pairs of topic and partition; None stands for all. Raises ConfigError for any
    other value.

    >>> with DevBroker(topics={"orders": 2}) as broker:
    ...     broker.on(ApiKey.LIST_OFFSETS, OmitPartitions([("orders", 1)])).fired
    0
    """

    partitions: Collection[tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        _check_partitions(self.partitions)


def flip_bit(records: bytes) -> bytes:
    """Return record batches with a wrong last byte, so that the last batch's checksum is wrong."""
    return records[:-1] + bytes(byte ^ 1 for byte in records[-1:])


@dataclass(frozen=True, slots=True)
class AlterRecords:
    """Respond to Fetch with other records than those in the log, by default with a flipped bit.

    The log does not change. `partitions` are pairs of topic and partition; None stands for all.
    Raises ConfigError for any other value, and if `alter` is not a function.

    >>> without_the_end = AlterRecords(lambda records: records[:-10])
    >>> with DevBroker(topics={"orders": 1}) as broker:
    ...     broker.on(ApiKey.FETCH, without_the_end, times=1).fired
    0
    """

    #: Receives the batches of one partition, possibly none, and returns what to send instead.
    alter: Callable[[bytes], bytes] = flip_bit
    partitions: Collection[tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        check_function(self.alter)
        _check_partitions(self.partitions)


PartitionFault: TypeAlias = PartitionError | OmitPartitions | AlterRecords
