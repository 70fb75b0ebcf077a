"""The first batch of a query, whose start is not in the checkpoint.

Spark stores where a batch ends, but not where the first one starts: it calls `initialOffset()` for
that, twice for a new query, and again in a new process that replays the first batch. An answer
taken from the latest offsets is newer each time, so a query that failed in its first batch would
lose the rows in between. Two rules prevent that:

- For partitions whose start is "latest", the first batch ends where it starts. That offset is in
  the checkpoint before any row is read, and the next batch begins there. Partitions that start
  elsewhere are read at once. A partition that appears meanwhile waits for the next batch, too.
- While the start comes from `initialOffset()`, it may be beyond the end, or name a partition that
  the end lacks. If the user has given the offset, it is the same each time, and this is a loss, as
  in Spark's own source. Otherwise it is an empty range: the offset may have been looked up again.

Spark 4.1 asks for the latest offset first, so there the start is taken from that answer instead.
A query that continues from its checkpoint is not affected: `initialOffset()` is not called.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.spark.source.offsets_json import Offsets, StreamOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.model import TopicPartition


class Start(NamedTuple):
    """The offsets at which a new query starts, and where they come from."""

    offsets: StreamOffsets
    #: The partitions that start at their latest offset.
    from_latest: frozenset[TopicPartition] = frozenset()
    #: The partitions whose offset is in the options.
    given: frozenset[TopicPartition] = frozenset()


class Phase(Enum):
    """What is known about the first batch."""

    #: Spark has asked nothing yet, so the query may be new or not.
    UNKNOWN = auto()
    #: Spark has asked for the start.
    STARTED = auto()
    #: The end of the batch is known as well.
    PLANNED = auto()
    #: The end of the batch is in the checkpoint, but its start was determined again.
    REPLAYED = auto()
    #: All batches from now on start at an offset of the checkpoint.
    OVER = auto()


class Call(Enum):
    """The methods that Spark calls on a stream's reader."""

    INITIAL_OFFSET = auto()
    LATEST_OFFSET = auto()
    PARTITIONS = auto()


#: What each call changes; a call that is not listed changes nothing. A replayed batch has an end
#: already, so its `PARTITIONS` comes without `LATEST_OFFSET`. At a restart PySpark 4.1 asks for the
#: partitions of an empty range before anything else, also if it replays the first batch.
TRANSITIONS: Final[Mapping[tuple[Phase, Call], Phase]] = {
    (Phase.UNKNOWN, Call.INITIAL_OFFSET): Phase.STARTED,
    (Phase.UNKNOWN, Call.LATEST_OFFSET): Phase.PLANNED,
    (Phase.STARTED, Call.LATEST_OFFSET): Phase.PLANNED,
    (Phase.STARTED, Call.PARTITIONS): Phase.REPLAYED,
    (Phase.PLANNED, Call.LATEST_OFFSET): Phase.OVER,
    (Phase.REPLAYED, Call.LATEST_OFFSET): Phase.OVER,
}


class FirstBatch:
    """The first batch as one process sees it."""

    def __init__(self) -> None:
        self.phase = Phase.UNKNOWN
        #: The start that this process has determined; None until Spark asks for it.
        self.start: Start | None = None
        #: The first latest offsets, if Spark asked for them before the start (PySpark 4.1).
        self._first_latest: StreamOffsets | None = None

    def begin(self, start: Start) -> StreamOffsets:
        """Record the start that `initialOffset()` returns, and return its offsets.

        The first start counts, if Spark asks again. Offsets that were taken from the latest ones
        are those of the first answer, if Spark already has one.
        """
        if self.start is not None:
            return self.start.offsets
        if self._first_latest is not None:
            start = start._replace(offsets=_pinned(start, self._first_latest))
        self.start = start
        self._move(Call.INITIAL_OFFSET)
        return start.offsets

    def pinned(self, start: Offsets) -> Offsets | None:
        """Return the partitions that the batch from `start` must not read, with their offsets.

        None if it may read everything. Otherwise partitions that `start` lacks must wait, too: in a
        replay, their start would be "latest".
        """
        is_first = self.phase is Phase.STARTED and self._is_start(start)
        if not is_first or self.start is None:
            return None
        pinned = {partition: self.start.offsets[partition] for partition in self.start.from_latest}
        # A start without partitions may be at the latest offsets, too.
        return pinned if pinned or not start else None

    def plan(self, latest: StreamOffsets) -> None:
        """Record that Spark has been told the latest offsets."""
        if self.phase is Phase.UNKNOWN:
            self._first_latest = latest
        self._move(Call.LATEST_OFFSET)

    def divide(self, start: Offsets) -> Start | None:
        """Record that Spark reads a batch; return its start if that is not in the checkpoint."""
        self._move(Call.PARTITIONS)
        is_first = self.phase in {Phase.PLANNED, Phase.REPLAYED} and self._is_start(start)
        return self.start if is_first else None

    def _is_start(self, offsets: Offsets) -> bool:
        return self.start is not None and dict(self.start.offsets) == dict(offsets)

    def _move(self, call: Call) -> None:
        self.phase = TRANSITIONS.get((self.phase, call), self.phase)


def _pinned(start: Start, latest: StreamOffsets) -> StreamOffsets:
    """Return the offsets of a start, those from the latest ones as `latest` has them."""
    offsets = start.offsets
    known = [partition for partition in start.from_latest if partition in latest]
    ids, epochs = latest.topic_ids, latest.epochs
    return StreamOffsets(
        {**offsets, **{partition: latest[partition] for partition in known}},
        {
            **offsets.topic_ids,
            **{
                partition.topic: ids[partition.topic]
                for partition in known
                if partition.topic in ids
            },
        },
        {
            **offsets.epochs,
            **{partition: epochs[partition] for partition in known if partition in epochs},
        },
    )
