"""How much a trigger reads: `minOffsetsPerTrigger` with `maxTriggerDelay`.

A trigger with fewer new offsets than the minimum reads nothing, until the delay since the last one
that read has passed. The first trigger after a start never waits, as with Spark's own source
(`KafkaMicroBatchStream.delayBatch`). Times are seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_kafka_sink.spark.source.offsets_json import Offsets


class MinimumOffsets:
    """The minimum of one stream, and when it last read."""

    def __init__(self, minimum: int, max_delay: float) -> None:
        """Store the minimum and the longest delay in seconds."""
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
    return sum(max(end - start.get(one, 0), 0) for one, end in latest.items())
