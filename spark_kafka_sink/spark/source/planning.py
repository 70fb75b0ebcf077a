"""What a micro-batch reads, and how it is divided into tasks, decided as Spark's own source does.

Nothing here does IO: the offsets that the cluster has are arguments. The rules are those of
`KafkaMicroBatchStream` (`rateLimit`, `delayBatch`), `KafkaOffsetRangeCalculator`, and
`KafkaOffsetReaderAdmin.getOffsetRangesFromResolvedOffsets`. Shares are computed in doubles, as
there.

- A partition that the start lacks is new, and read from its earliest offset. If that is not 0,
  rows of it are lost already.
- A partition that the end lacks is gone, and an end before the start means that the log was cut:
  rows are lost. In the first batch this is only true of offsets that the user has given: see
  `first_batch`.
- A log that was cut below the start, by a leader that was not in sync when it was elected, has
  other records from there on. Rows are lost, even if it is longer by now; it is read from there.
- A topic that was deleted and created again is another topic: offsets that were found in the old
  one belong to no record of it.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark_kafka_sink.spark.source.first_batch import Start
    from spark_kafka_sink.spark.source.offsets_json import Offsets


_NONE: Final[Offsets] = MappingProxyType({})


class OffsetRange(NamedTuple):
    """The offsets of a partition from `start` up to, but not including, `end`."""

    topic_partition: TopicPartition
    start: int
    end: int
    #: The epoch of a leader whose log had all records before the start; -1 if it is not known.
    start_epoch: int = NO_LEADER_EPOCH

    @property
    def size(self) -> int:
        """The number of offsets; there are fewer records if the log has gaps."""
        return self.end - self.start


class LostOffsets(NamedTuple):
    """Offsets of a partition that cannot be read any more; `reason` ends the sentence about it."""

    topic_partition: TopicPartition
    wanted: int
    #: None if the partition is gone.
    available: int | None
    reason: str
    #: How many offsets are lost; 0 if that cannot be known.
    lost: int = 0

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.reason}"


class PlannedRanges(NamedTuple):
    """The ranges of a batch, one for each partition, and what cannot be read."""

    ranges: tuple[OffsetRange, ...]
    losses: tuple[LostOffsets, ...]


def new_partitions(start: Offsets, end: Offsets) -> tuple[TopicPartition, ...]:
    """Return the partitions that the end has and the start lacks, in order."""
    return tuple(sorted(set(end) - set(start)))


def plan_ranges(
    start: Offsets,
    end: Offsets,
    earliest: Offsets,
    *,
    first: Start | None = None,
    cut: Offsets = _NONE,
    epochs: Mapping[TopicPartition, int] = _NONE,
    is_committed: bool = False,
) -> PlannedRanges:
    """Return the ranges between two offsets, in order, and the losses.

    `earliest` has the earliest offsets of the new partitions, without those that are gone again.
    `first` is the start of the query, if this is its first batch. `cut` has the ends of the logs
    that were cut below the start, and `epochs` the leader epochs of the start. With `is_committed`
    the latest offsets were the last stable ones.
    """
    certain: Collection[TopicPartition] = start.keys() if first is None else first.given
    ranges = []
    losses = []
    for topic_partition in sorted(set(start) - set(end)):
        if topic_partition in certain:
            offset = start[topic_partition]
            reason = (
                "the partition is gone, or no longer subscribed to, and its records from offset "
                f"{offset} on with it"
            )
            losses.append(LostOffsets(topic_partition, offset, None, reason))
    for topic_partition in sorted(end):
        begin, last = start.get(topic_partition), end[topic_partition]
        if begin is None:
            begin = earliest.get(topic_partition)
            if begin is None:
                reason = "the partition is new and already gone again"
                losses.append(LostOffsets(topic_partition, 0, None, reason))
                continue
            if begin:
                reason = f"the partition is new, but its log starts at offset {begin}, not at 0"
                losses.append(LostOffsets(topic_partition, 0, begin, reason, begin))
        elif topic_partition in cut:
            kept = cut[topic_partition]
            reason = (
                f"the log was cut at offset {kept}, before offset {begin}, which was to be read "
                "next, since a leader that was not in sync was elected: later records are others"
            )
            losses.append(LostOffsets(topic_partition, begin, kept, reason))
            begin = kept
        elif last < begin and topic_partition in certain:
            reason = _before_start(begin, last, is_first=first is not None, is_stable=is_committed)
            losses.append(LostOffsets(topic_partition, begin, last, reason, begin - last))
        if begin < last:
            epoch = epochs.get(topic_partition, NO_LEADER_EPOCH)
            ranges.append(OffsetRange(topic_partition, begin, last, epoch))
    return PlannedRanges(tuple(ranges), tuple(losses))


def _before_start(begin: int, last: int, *, is_first: bool, is_stable: bool) -> str:
    """Return how an end is before the start."""
    held_back = ": an open transaction may hold back the records after it" if is_stable else ""
    if is_first:
        end = f"last stable offset was {last}" if is_stable else f"log ended at offset {last}"
        return f"the query starts at offset {begin}, but the {end}{held_back}"
    end = f"last stable offset is {last}" if is_stable else f"log ends at offset {last}"
    return f"the {end}, before offset {begin}, which was to be read next{held_back}"


def lost_with_topics(topics: Collection[str], start: Offsets) -> tuple[LostOffsets, ...]:
    """Return the losses of the partitions whose topics were replaced."""
    return tuple(
        LostOffsets(
            topic_partition,
            offset,
            None,
            "the topic was deleted and created again, so the records of the old topic from offset "
            f"{offset} on are gone; those of the new one begin at offset 0",
        )
        for topic_partition, offset in sorted(start.items())
        if topic_partition.topic in topics
    )


def within_logs(
    start: Offsets, end: Offsets, earliest: Offsets, latest: Offsets | None
) -> PlannedRanges:
    """Return the ranges of a batch whose offsets the user has chosen, and what is not in the logs.

    `latest` is None if the ends of the logs do not matter. Ranges are cut to what there is.
    """
    ranges = []
    losses = []
    for topic_partition in sorted(end):
        first, last = start[topic_partition], end[topic_partition]
        oldest = earliest.get(topic_partition, first)
        newest = max(first, last) if latest is None else latest[topic_partition]
        if first < oldest:
            reason = f"the read starts at offset {first}, but the log starts at offset {oldest}"
            losses.append(LostOffsets(topic_partition, first, oldest, reason, oldest - first))
        elif last < oldest:
            reason = f"the read ends at offset {last}, but the log starts at offset {oldest}"
            losses.append(LostOffsets(topic_partition, last, oldest, reason))
        for offset, what in ((first, "starts"), (last, "ends")):
            if offset > newest:
                reason = f"the read {what} at offset {offset}, but the log ends at offset {newest}"
                losses.append(LostOffsets(topic_partition, offset, newest, reason, offset - newest))
        if max(first, oldest) < min(last, newest):
            ranges.append(OffsetRange(topic_partition, max(first, oldest), min(last, newest)))
    return PlannedRanges(tuple(ranges), tuple(losses))


def limit_offsets(
    limit: int, start: Offsets, latest: Offsets, earliest: Offsets
) -> dict[TopicPartition, int]:
    """Return the end of a batch with about `limit` offsets, divided in proportion.

    `earliest` has the earliest offsets of the partitions that `start` lacks. Small partitions get
    at least one offset each, so the sum may exceed the limit.
    """
    begins = {**earliest, **start}
    sizes = {
        topic_partition: end - begins[topic_partition]
        for topic_partition, end in latest.items()
        if end > begins.get(topic_partition, end)
    }
    total = float(sum(sizes.values()))
    ends = dict(latest)
    for topic_partition, size in sizes.items():
        share = limit * (size / total)
        part = math.ceil(share) if share < 1 else math.floor(share)
        ends[topic_partition] = min(latest[topic_partition], begins[topic_partition] + part)
    return ends


class MinimumOffsets:
    """The minimum of one stream (`minOffsetsPerTrigger`, `maxTriggerDelay`), and when it last read.

    A trigger with fewer new offsets reads nothing, until the delay since the last one that read has
    passed. The first trigger after a start never waits. Times are seconds of any clock.
    """

    def __init__(self, minimum: int, max_delay: float) -> None:
        self._minimum = minimum
        self._max_delay = max_delay
        self._last_read: float | None = None

    def must_wait(self, start: Offsets, latest: Offsets, now: float) -> bool:
        """Return whether to read nothing now; otherwise record that the stream reads."""
        is_due = self._last_read is None or now - self._last_read >= self._max_delay
        if not is_due and new_offsets(start, latest) < self._minimum:
            return True
        self._last_read = now
        return False


def new_offsets(start: Offsets, latest: Offsets) -> int:
    """Return how many offsets there are beyond the start; of a new partition all count."""
    return sum(
        max(end - start.get(topic_partition, 0), 0) for topic_partition, end in latest.items()
    )


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Divide ranges among tasks; empty ranges are dropped.

    Ranges are first cut into parts of at most `max_records_per_partition` offsets. If there are
    still fewer than `min_partitions`, the larger ones are cut in proportion to their sizes, so that
    there are about as many.
    """
    parts = [offset_range for offset_range in ranges if offset_range.size > 0]
    if max_records_per_partition is not None:
        parts = [
            part
            for offset_range in parts
            for part in _cut(offset_range, -(-offset_range.size // max_records_per_partition))
        ]
    if min_partitions is None or len(parts) >= min_partitions:
        return parts
    total = sum(offset_range.size for offset_range in parts)
    # Ranges that stay whole are left out of the proportions of the others.
    whole = [
        offset_range
        for offset_range in parts
        if _part_count(offset_range.size, total, min_partitions) == 1
    ]
    partitions_of_whole = {offset_range.topic_partition for offset_range in whole}
    rest = total - sum(offset_range.size for offset_range in whole)
    parts_left = max(min_partitions - len(whole), 1)
    return [
        part
        for offset_range in parts
        for part in (
            [offset_range]
            if offset_range.topic_partition in partitions_of_whole
            else _cut(offset_range, _part_count(offset_range.size, rest, parts_left))
        )
    ]


def _part_count(size: int, total: int, parts: int) -> int:
    # Java rounds a half up, where Python's round goes to the even number.
    return max(math.floor(size / total * parts + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Divide a range into `parts` of nearly equal sizes, the last ones being the larger."""
    ranges = []
    start = whole.start
    for left in range(parts, 0, -1):
        end = start + (whole.end - start) // left
        if start < end:
            # The records just before the other parts may be of later epochs.
            epoch = whole.start_epoch if start == whole.start else NO_LEADER_EPOCH
            ranges.append(OffsetRange(whole.topic_partition, start, end, epoch))
        start = end
    return ranges
