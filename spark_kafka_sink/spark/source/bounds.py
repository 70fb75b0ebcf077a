"""The offsets that `startingOffsets`, `endingOffsets` and their relatives stand for.

Offsets or timestamps of single partitions must name exactly the partitions that are read, as for
Spark's own source. Only `SourceCluster` does IO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    from spark_kafka_sink.spark.source.source_cluster import SourceCluster

_MOST_NAMED: Final = 5


def starting_offsets(
    spec: OffsetSpec,
    option: str,
    partitions: Sequence[TopicPartition],
    cluster: SourceCluster,
    *,
    strategy: str,
    accepted: Accepted,
) -> Start:
    """Return where a read starts; `strategy` is that of timestamps without a match.

    `option` is the one that the start comes from, and `accepted` what startingOffsets accepts, for
    errors.

    Raises ConfigError if the options name other partitions, or if no record matches a timestamp.
    """
    offsets, unmatched, latest = _resolve(spec, option, partitions, cluster, accepted)
    if unmatched and strategy != "latest":
        times = ", ".join(f"{partition} ({time})" for partition, time in _some(unmatched.items()))
        raise ConfigError(
            f"{option}: no record has the timestamp or a later one in {times}. Choose an earlier "
            "timestamp, or set startingOffsetsByTimestampStrategy=latest"
        )
    given: list[TopicPartition] = []
    if isinstance(spec, SpecificOffsets):
        given = [partition for partition, offset in spec.offsets.items() if offset >= 0]
    return Start(offsets, latest, frozenset(given))


def ending_offsets(
    spec: OffsetSpec, option: str, partitions: Sequence[TopicPartition], cluster: SourceCluster
) -> Offsets:
    """Return where a batch ends: for a timestamp without a match, at the latest offset."""
    offsets, _, _ = _resolve(spec, option, partitions, cluster, BATCH_END)
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
    cluster: SourceCluster,
    accepted: Accepted,
) -> tuple[StreamOffsets, Mapping[TopicPartition, int], frozenset[TopicPartition]]:
    """Return the offsets, the timestamps without a match, and which offsets are the latest."""
    unmatched: dict[TopicPartition, int] = {}
    match spec:
        case Earliest():
            positions = dict.fromkeys(partitions, EARLIEST_OFFSET)
        case Latest():
            positions = dict.fromkeys(partitions, LATEST_OFFSET)
        case SpecificOffsets():
            _check_topics(option, spec, partitions)
            positions = spec.of(partitions)
            check_same_partitions(option, positions, partitions, accepted.stand_ins)
        case Timestamps() | GlobalTimestamp():
            if isinstance(spec, Timestamps):
                check_same_partitions(option, spec.timestamps, partitions)
                times = dict(spec.timestamps)
            else:
                times = dict.fromkeys(partitions, spec.timestamp)
            matches = cluster.at_times(times)
            unmatched = {
                partition: times[partition]
                for partition in partitions
                if matches.get(partition) is None
            }
            positions = {
                partition: LATEST_OFFSET if (offset := matches.get(partition)) is None else offset
                for partition in partitions
            }
    latest = [partition for partition in partitions if positions[partition] == LATEST_OFFSET]
    earliest = [partition for partition in partitions if positions[partition] == EARLIEST_OFFSET]
    offsets = cluster.latest(latest)
    offsets = offsets.at({**positions, **offsets, **cluster.earliest(earliest)})
    return offsets, unmatched, frozenset(latest)


def _check_topics(option: str, spec: SpecificOffsets, partitions: Iterable[TopicPartition]) -> None:
    unknown = sorted(spec.topics.keys() - {partition.topic for partition in partitions})
    if unknown:
        raise ConfigError(
            f"{option} must name only topics that are read, but the read does not cover "
            f"{listed(unknown, _MOST_NAMED)}"
        )


def _some(items: Iterable[tuple[TopicPartition, int]]) -> list[tuple[TopicPartition, int]]:
    return sorted(items)[:_MOST_NAMED]
