"""The interface of the plug-ins in `metric.reporters` (Kafka's MetricsReporter)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.metrics.kafka_metric import KafkaMetric


class MetricsReporter(Protocol):
    """A plug-in that is notified of metrics and may read their values at any time.

    It is called on the producer's own threads, so it should return at once and read the values on a
    thread of its own. Its exceptions are logged and have no other effect. Each producer needs its
    own reporter, since `close` stops it.

    `init` receives all existing `metrics`; the other methods receive each `metric` as it is added
    or removed.

    >>> class Watch:
    ...     def init(self, metrics):
    ...         self.names = {metric.metric_name.name for metric in metrics}
    ...     def metric_change(self, metric):
    ...         self.names.add(metric.metric_name.name)
    ...     def metric_removal(self, metric):
    ...         pass
    ...     def close(self):
    ...         pass
    >>> watch = Watch()
    >>> KafkaProducer({"bootstrap.servers": "localhost:9092", "metric.reporters": [watch]}).close()
    >>> "record-send-total" in watch.names
    True
    """

    def init(self, metrics: Sequence[KafkaMetric]) -> None:
        """Start reporting, beginning with the existing metrics."""

    def metric_change(self, metric: KafkaMetric) -> None:
        """Add a new metric."""

    def metric_removal(self, metric: KafkaMetric) -> None:
        """Remove a metric that no longer exists."""

    def close(self) -> None:
        """Stop, because the producer is closed; the values can still be read."""
