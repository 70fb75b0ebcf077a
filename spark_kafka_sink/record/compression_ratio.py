"""Estimates of how well each topic's records compress (Kafka's `CompressionRatioEstimator`).

A ratio is the compressed size divided by the uncompressed size, without batch headers. The first
batch of a topic sets its estimate, with a margin. Later the estimate falls slowly when batches
compress better than expected, and rises at once, and by the margin, when a batch compresses worse:
a batch that is too large costs a split, one that is too small costs almost nothing.

In Java the first batch, too, lowers the estimate by one step only, and a task of Spark's ended
before its batches were full: with lz4 they reached half of batch.size on average. Here a batch that
exceeds it is split before it is sent.

Each producer has its own estimator, while Java has one per process. It is thread-safe.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_kafka_sink.record.compression import CompressionType

#: The most that the estimate falls each time a batch compresses better.
COMPRESSION_RATIO_IMPROVING_STEP: Final = 0.005
#: The least that the estimate rises each time a batch compresses worse.
COMPRESSION_RATIO_DETERIORATE_STEP: Final = 0.05
#: The estimate before the first batch.
INITIAL_RATIO: Final = 1.0


class CompressionRatioEstimator:
    """The estimates of one producer, per topic and codec."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, CompressionType], float] = {}
        self._lock = threading.Lock()

    def estimation(self, topic: str, compression: CompressionType) -> float:
        """Return the current estimate."""
        return self._ratios.get((topic, compression), INITIAL_RATIO)

    def update_estimation(
        self, topic: str, compression: CompressionType, observed_ratio: float
    ) -> float:
        """Update the estimate with the ratio of a batch, and return it."""
        with self._lock:
            ratio = self._ratios.get((topic, compression))
            if ratio is None:
                ratio = observed_ratio + COMPRESSION_RATIO_DETERIORATE_STEP
            elif observed_ratio > ratio:
                ratio = max(ratio + COMPRESSION_RATIO_DETERIORATE_STEP, observed_ratio)
            elif observed_ratio < ratio:
                ratio = max(ratio - COMPRESSION_RATIO_IMPROVING_STEP, observed_ratio)
            self._ratios[topic, compression] = ratio
            return ratio

    def set_estimation(self, topic: str, compression: CompressionType, ratio: float) -> None:
        """Set the estimate, as after splitting a batch that was too large."""
        with self._lock:
            self._ratios[topic, compression] = ratio

    def reset_estimation(self, topic: str) -> None:
        """Remove all estimates of a topic."""
        with self._lock:
            for key in [key for key in self._ratios if key[0] == topic]:
                del self._ratios[key]
