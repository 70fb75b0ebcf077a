"""Where a read starts and ends, by its options, with the rules of Spark's own source.

A timestamp for all partitions takes precedence over timestamps by partition, and these over
offsets. An option that gives way is not even parsed, as in Spark.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_kafka_sink.config.source.offset_specs import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    STAND_IN_WORDS,
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    Timestamps,
    accepted_numbers,
    check_same_partitions,
)
from spark_kafka_sink.config.source.partition_json import (
    PartitionJsonError,
    parse_numbers,
    parse_numbers_and_words,
    shown,
)
from spark_kafka_sink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark_kafka_sink.model import TopicPartition

#: The options that set a start or an end; the first that is given takes precedence.
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


class Accepted(NamedTuple):
    """What an option accepts, for errors."""

    #: The values of the option, as the object of "write".
    values: str
    #: The numbers that it accepts instead of an offset.
    stand_ins: tuple[int, ...] = ()

    @property
    def numbers(self) -> str:
        """What the number of one partition may be."""
        return accepted_numbers(self.stand_ins)


STREAM_START: Final = Accepted(
    'earliest, latest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": '
    '"latest"}',
    (EARLIEST_OFFSET, LATEST_OFFSET),
)
BATCH_START: Final = Accepted(
    'earliest (the default) or JSON such as {"topicA": {"0": 23, "1": -2}, "topicB": "earliest"}',
    (EARLIEST_OFFSET,),
)
BATCH_END: Final = Accepted(
    'latest (the default) or JSON such as {"topicA": {"0": 23, "1": -1}, "topicB": "latest"}',
    (LATEST_OFFSET,),
)
_TIMESTAMPS: Final = Accepted('JSON such as {"topicA": {"0": 1700000000000}}')


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
    return _position(values, STARTS, Latest(), STREAM_START)


def batch_range(values: Mapping[str, Any]) -> tuple[Position, Position]:
    """Return where a batch starts and ends: `earliest` and `latest` unless set."""
    start = _position(values, STARTS, Earliest(), BATCH_START)
    end = _position(values, ENDS, Latest(), BATCH_END)
    _check_batch_start(start)
    _check_batch_end(end)
    match start.spec, end.spec:
        case SpecificOffsets() as first, SpecificOffsets() as last:
            # What the partitions of a topic are is not known yet.
            check_same_partitions(
                end.option,
                [one for one in last.offsets if one.topic not in first.topics],
                [one for one in first.offsets if one.topic not in last.topics],
                BATCH_END.stand_ins,
            )
            _check_order(start, first.offsets, end, last.offsets)
        case Timestamps(first), Timestamps(last):
            check_same_partitions(end.option, last, first)
            _check_order(start, first, end, last)
    return start, end


def _position(
    values: Mapping[str, Any], names: tuple[str, ...], default: OffsetSpec, accepted: Accepted
) -> Position:
    given = tuple(name for name in names if values[name] is not None)
    if not given:
        return Position(default, names[-1], ())
    option = given[0]
    value = values[option]
    if option == names[0]:
        spec: OffsetSpec = GlobalTimestamp(value)
    elif option == names[1]:
        with _naming(option, value, _TIMESTAMPS):
            spec = Timestamps(parse_numbers(value, 0, _TIMESTAMPS.numbers))
    else:
        spec = _offsets(option, value, accepted)
    return Position(spec, option, given[1:])


def _offsets(option: str, text: str, accepted: Accepted) -> OffsetSpec:
    match text.lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case _:
            with _naming(option, text, accepted):
                return SpecificOffsets(
                    *parse_numbers_and_words(
                        text, EARLIEST_OFFSET, accepted.numbers, STAND_IN_WORDS
                    )
                )


@contextmanager
def _naming(option: str, text: str, accepted: Accepted) -> Iterator[None]:
    """Raise ConfigError with the name of the option for JSON that is wrong."""
    try:
        yield
    except PartitionJsonError as error:
        raise ConfigError(f"{option} {error}: write {accepted.values}, not {shown(text)}") from None


def _check_batch_start(start: Position) -> None:
    if isinstance(start.spec, Latest):
        raise ConfigError(
            f"{start.option} must not be latest in a batch, which would read nothing: write "
            f"{BATCH_START.values}"
        )
    place = _first_with(start.spec, LATEST_OFFSET)
    if place is not None:
        raise ConfigError(
            f"{start.option} must not be latest (-1) for {place} in a batch, which would read "
            f"nothing: write {BATCH_START.numbers}"
        )


def _check_batch_end(end: Position) -> None:
    if isinstance(end.spec, Earliest):
        raise ConfigError(
            f"{end.option} must not be earliest, since the batch would read nothing: write "
            f"{BATCH_END.values}"
        )
    place = _first_with(end.spec, EARLIEST_OFFSET)
    if place is not None:
        raise ConfigError(
            f"{end.option} must not be earliest (-2) for {place}, since the batch would read "
            f"nothing: write {BATCH_END.numbers}"
        )


def _first_with(spec: OffsetSpec, offset: int) -> TopicPartition | str | None:
    """Return the first partition, or else topic, with an offset that stands for others."""
    if not isinstance(spec, SpecificOffsets):
        return None
    given: list[tuple[TopicPartition | str, int]] = [*spec.offsets.items(), *spec.topics.items()]
    return next((place for place, each in given if each == offset), None)


def _check_order(
    start: Position,
    first: Mapping[TopicPartition, int],
    end: Position,
    last: Mapping[TopicPartition, int],
) -> None:
    for partition, offset in first.items():
        # Negative offsets stand for others, which are not known yet.
        if 0 <= last.get(partition, -1) < offset:
            raise ConfigError(
                f"{end.option} is {last[partition]} for {partition}, before {start.option}, which "
                f"is {offset}"
            )
