"""The offsets that `startingOffsets`, `endingOffsets` and their relatives stand for.

Offsets or timestamps of single partitions must name exactly the partitions that are read, as for
Spark's own source. The cluster is behind a protocol: nothing here does IO itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.config.offset_specs import (
    BATCH_END,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Earliest,
    GlobalTimestamp,
    Latest,
    SpecificOffsets,
    Timestamps,
    check_same_partitions,
    listed,
)
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.spark.source.first_batch import Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.config.offset_specs import Accepted, OffsetSpec
    from spark_kafka_sink.model import TopicPartition
    from spark_kafka_sink.spark.source.offsets_json import Offsets, StreamOffsets

_MOST_NAMED: Final = 5


class Lookup(Protocol):
    """The lookups that `SourceCluster` offers."""

    def earliest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the earliest offsets of some partitions."""

    def latest(self, partitions: Sequence[TopicPartition]) -> StreamOffsets:
        """Return the latest offsets of some partitions, with the epochs of their leaders."""

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after the times, None where there is none."""


def starting_offsets(
    spec: OffsetSpec,
    option: str,
    partitions: Sequence[TopicPartition],
    lookup: Lookup,
    *,
    strategy: str,
    accepted: Accepted,
) -> Start:
    """Return where a read starts; `strategy` is that of timestamps without a match.

    `option` is the one that the start comes from, and `accepted` what startingOffsets accepts, for
    errors.

    Raises ConfigError if the options name other partitions, or if no record matches a timestamp.
    """
    offsets, unmatched, latest = _resolve(spec, option, partitions, lookup, accepted)
    if unmatched and strategy != "latest":
        times = ", ".join(f"{one} ({time})" for one, time in _some(unmatched.items()))
        raise ConfigError(
            f"{option}: no record has the timestamp or a later one in {times}. Choose an earlier "
            "timestamp, or set startingOffsetsByTimestampStrategy=latest"
        )
    given: list[TopicPartition] = []
    if isinstance(spec, SpecificOffsets):
        given = [one for one, offset in spec.offsets.items() if offset >= 0]
    return Start(offsets, latest, frozenset(given))


def ending_offsets(
    spec: OffsetSpec, option: str, partitions: Sequence[TopicPartition], lookup: Lookup
) -> Offsets:
    """Return where a batch ends: for a timestamp without a match, at the latest offset."""
    offsets, _, _ = _resolve(spec, option, partitions, lookup, BATCH_END)
    return offsets


def end_before_start(
    partition: TopicPartition, start_option: str, start: int, end_option: str, end: int
) -> ConfigError:
    """Return the error for a batch that would end before it starts."""
    return ConfigError(
        f"{partition}: the read starts at offset {start} ({start_option}), after its end, offset "
        f"{end} ({end_option}): choose an end that is not before the start"
    )


def _resolve(
    spec: OffsetSpec,
    option: str,
    partitions: Sequence[TopicPartition],
    lookup: Lookup,
    accepted: Accepted,
) -> tuple[StreamOffsets, Mapping[TopicPartition, int], frozenset[TopicPartition]]:
    """Return the offsets, the timestamps without a match, and which offsets are the latest."""
    unmatched: dict[TopicPartition, int] = {}
    match spec:
        case Earliest():
            wanted = dict.fromkeys(partitions, EARLIEST_OFFSET)
        case Latest():
            wanted = dict.fromkeys(partitions, LATEST_OFFSET)
        case SpecificOffsets():
            _check_topics(option, spec, partitions)
            wanted = spec.of(partitions)
            check_same_partitions(option, wanted, partitions, accepted.stand_ins)
        case Timestamps() | GlobalTimestamp():
            if isinstance(spec, Timestamps):
                check_same_partitions(option, spec.timestamps, partitions)
                times = dict(spec.timestamps)
            else:
                times = dict.fromkeys(partitions, spec.timestamp)
            found = lookup.at_times(times)
            unmatched = {one: times[one] for one in partitions if found.get(one) is None}
            wanted = {
                one: LATEST_OFFSET if (offset := found.get(one)) is None else offset
                for one in partitions
            }
    latest = [one for one in partitions if wanted[one] == LATEST_OFFSET]
    earliest = [one for one in partitions if wanted[one] == EARLIEST_OFFSET]
    offsets = lookup.latest(latest)
    offsets = offsets.at({**wanted, **offsets, **lookup.earliest(earliest)})
    return offsets, unmatched, frozenset(latest)


def _check_topics(option: str, spec: SpecificOffsets, partitions: Iterable[TopicPartition]) -> None:
    unknown = sorted(spec.topics.keys() - {one.topic for one in partitions})
    if unknown:
        raise ConfigError(
            f"{option} must name only topics that are read, but the read does not cover "
            f"{listed(unknown, _MOST_NAMED)}"
        )


def _some(items: Iterable[tuple[TopicPartition, int]]) -> list[tuple[TopicPartition, int]]:
    return sorted(items)[:_MOST_NAMED]
