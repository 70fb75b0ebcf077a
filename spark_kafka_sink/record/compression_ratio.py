"""How well each topic's records compress, as batches go by (Kafka's `CompressionRatioEstimator`).

A ratio is compressed size by uncompressed size, without batch headers. The estimate falls slowly
when batches turn out better than expected, and rises at once, and by a margin, when one turns out
worse: a batch that is too large costs a split, one that is too small costs next to nothing.

One per producer, where Java has one for the whole process. Any thread may use it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_kafka_sink.record.compression import CompressionType

#: How far the estimate falls at most, each time that a batch compresses better.
COMPRESSION_RATIO_IMPROVING_STEP: Final = 0.005
#: How far it rises at least, each time that a batch compresses worse.
COMPRESSION_RATIO_DETERIORATE_STEP: Final = 0.05
#: What is taken for true before any batch was seen.
INITIAL_RATIO: Final = 1.0


class CompressionRatioEstimator:
    """The estimates of one producer, per topic and codec."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, CompressionType], float] = {}
        self._lock = threading.Lock()

    def estimation(self, topic: str, compression: CompressionType) -> float:
        """Give the ratio to reckon with."""
        return self._ratios.get((topic, compression), INITIAL_RATIO)

    def update_estimation(
        self, topic: str, compression: CompressionType, observed_ratio: float
    ) -> float:
        """Learn from a batch; give the new estimate."""
        with self._lock:
            ratio = self.estimation(topic, compression)
            if observed_ratio > ratio:
                ratio = max(ratio + COMPRESSION_RATIO_DETERIORATE_STEP, observed_ratio)
            elif observed_ratio < ratio:
                ratio = max(ratio - COMPRESSION_RATIO_IMPROVING_STEP, observed_ratio)
            self._ratios[topic, compression] = ratio
            return ratio

    def set_estimation(self, topic: str, compression: CompressionType, ratio: float) -> None:
        """Replace the estimate, as after a split of a batch that was too large."""
        with self._lock:
            self._ratios[topic, compression] = ratio

    def reset_estimation(self, topic: str) -> None:
        """Forget what was learnt about a topic."""
        with self._lock:
            for key in [key for key in self._ratios if key[0] == topic]:
                del self._ratios[key]
