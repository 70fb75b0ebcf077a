"""Where a read starts and ends, by its options, with the rules of Spark's own source.

A timestamp for all partitions takes precedence over timestamps by partition, and these over
offsets. An option that gives way is not even parsed, as in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.source.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    Timestamps,
    check_same_partitions,
)
from spark_kafka_sink.config.source.partition_json import PartitionJsonError, parse_numbers, shown
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import TopicPartition

#: The options that set a start or an end; the first that is given takes precedence.
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_OFFSETS_EXAMPLE: Final = '{"topicA": {"0": 23, "1": -2}}'
_TIMESTAMPS_EXAMPLE: Final = '{"topicA": {"0": 1700000000000}}'


class Position(NamedTuple):
    """A start or an end."""

    spec: OffsetSpec
    #: The option that it comes from.
    option: str
    #: The options that were given as well, and have no effect.
    overridden: tuple[str, ...]


def stream_start(values: Mapping[str, Any]) -> Position:
    """Return where a stream starts without a checkpoint, which is `latest` unless set."""
    for name in ENDS:
        if values[name] is not None:
            raise ConfigError(f"{name} is for batches: a stream has no end; remove it")
    return _position(values, STARTS, Latest())


def batch_range(values: Mapping[str, Any]) -> tuple[Position, Position]:
    """Return where a batch starts and ends: `earliest` and `latest` unless set."""
    start = _position(values, STARTS, Earliest())
    end = _position(values, ENDS, Latest())
    _check_batch_start(start)
    _check_batch_end(end)
    match start.spec, end.spec:
        case (SpecificOffsets(first), SpecificOffsets(last)) | (
            Timestamps(first),
            Timestamps(last),
        ):
            check_same_partitions(end.option, last, first)
            _check_order(start, first, end, last)
    return start, end


def _position(values: Mapping[str, Any], names: tuple[str, ...], default: OffsetSpec) -> Position:
    given = tuple(name for name in names if values[name] is not None)
    if not given:
        return Position(default, names[-1], ())
    option = given[0]
    value = values[option]
    if option == names[0]:
        spec: OffsetSpec = GlobalTimestamp(value)
    elif option == names[1]:
        spec = Timestamps(_numbers(option, value, 0, f"JSON such as {_TIMESTAMPS_EXAMPLE}"))
    else:
        spec = _offsets(option, value)
    return Position(spec, option, given[1:])


def _offsets(option: str, text: str) -> OffsetSpec:
    match text.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case _:
            wanted = f"earliest, latest or JSON such as {_OFFSETS_EXAMPLE}"
            return SpecificOffsets(_numbers(option, text, EARLIEST_OFFSET, wanted))


def _numbers(option: str, text: str, lowest: int, wanted: str) -> dict[TopicPartition, int]:
    try:
        return parse_numbers(text, lowest)
    except PartitionJsonError as error:
        raise ConfigError(f"{option} {error}: write {wanted}, not {shown(text)}") from None


def _check_batch_start(start: Position) -> None:
    if isinstance(start.spec, Latest):
        raise ConfigError(
            f"{start.option} must not be latest in a batch: it would read nothing; a batch starts "
            "at earliest unless set"
        )
    partition = _first_with(start.spec, LATEST_OFFSET)
    if partition is not None:
        raise ConfigError(
            f"{start.option} must not be latest (-1) for {partition} in a batch: it would read "
            "nothing"
        )


def _check_batch_end(end: Position) -> None:
    if isinstance(end.spec, Earliest):
        raise ConfigError(
            f"{end.option} must not be earliest: the batch would read nothing; a batch ends at "
            "latest unless set"
        )
    partition = _first_with(end.spec, EARLIEST_OFFSET)
    if partition is not None:
        raise ConfigError(
            f"{end.option} must not be earliest (-2) for {partition}: the batch would read nothing"
        )


def _first_with(spec: OffsetSpec, offset: int) -> TopicPartition | None:
    if not isinstance(spec, SpecificOffsets):
        return None
    return next((partition for partition, each in spec.offsets.items() if each == offset), None)


def _check_order(
    start: Position,
    first: Mapping[TopicPartition, int],
    end: Position,
    last: Mapping[TopicPartition, int],
) -> None:
    for partition, offset in first.items():
        # Negative offsets stand for others, which are not known yet.
        if 0 <= last[partition] < offset:
            raise ConfigError(
                f"{end.option} is {last[partition]} for {partition}, before {start.option}, which "
                f"is {offset}"
            )
