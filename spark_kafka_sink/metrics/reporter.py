"""Where metrics go: the plug-in `metric.reporters` (Kafka's MetricsReporter)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.metrics.kafka_metric import KafkaMetric


class MetricsReporter(Protocol):
    """Is told which metrics there are, and reads their values when it likes.

    It is called on the producer's own threads, so it should return at once; values are best read on
    a thread of its own. What it raises is logged, and breaks nothing. Each producer needs a
    reporter of its own, since `close` ends it.
    """

    def init(self, metrics: Sequence[KafkaMetric]) -> None:
        """Start, with the metrics that exist already."""

    def metric_change(self, metric: KafkaMetric) -> None:
        """Take note of a metric that is new."""

    def metric_removal(self, metric: KafkaMetric) -> None:
        """Forget a metric that is gone."""

    def close(self) -> None:
        """Stop: the producer is closed. The values can still be read."""
