"""A metrics reporter that writes the values of all metrics to a log."""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.metrics.kafka_metric import KafkaMetric, MetricName

DEFAULT_INTERVAL: Final = 60.0
#: How long `close` waits for a line that is being written, in seconds.
_JOIN_TIMEOUT: Final = 1.0


class LoggingMetricsReporter:
    """A reporter that logs at level INFO every `interval` seconds, and when the producer closes.

    It writes one line for each group and set of tags, such as those of one topic, and omits metrics
    with no recorded value. It runs in its own daemon thread.

    `interval` is in seconds. `logger` defaults to the one named after this module.

    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "metric.reporters": [LoggingMetricsReporter(interval=10)],
    ... }
    >>> KafkaProducer(settings).close()
    """

    def __init__(
        self, interval: float = DEFAULT_INTERVAL, logger: logging.Logger | None = None
    ) -> None:
        """Raise ValueError unless `interval` is above 0; `init` starts the thread."""
        if not interval > 0:
            raise ValueError(f"interval must be greater than 0 seconds, not {interval}")
        self._interval = interval
        self._logger = logger or logging.getLogger(__name__)
        self._metrics: dict[MetricName, KafkaMetric] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def init(self, metrics: Sequence[KafkaMetric]) -> None:
        """Start logging; raise RuntimeError on a second call."""
        if self._thread is not None:
            raise RuntimeError(
                "the reporter is already in use by a producer: create one for each producer"
            )
        for metric in metrics:
            self.metric_change(metric)
        self._thread = threading.Thread(
            target=self._run, name="kafka-metrics-reporter", daemon=True
        )
        self._thread.start()

    def metric_change(self, metric: KafkaMetric) -> None:
        """Add a metric to the log."""
        with self._lock:
            self._metrics[metric.metric_name] = metric

    def metric_removal(self, metric: KafkaMetric) -> None:
        """Remove a metric from the log."""
        with self._lock:
            self._metrics.pop(metric.metric_name, None)

    def close(self) -> None:
        """Log the last values and stop."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT)
        self.report()

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            self.report()

    def report(self) -> None:
        """Log the current values."""
        with self._lock:
            metrics = sorted(self._metrics.values(), key=lambda item: item.metric_name.name)
        lines: dict[str, list[str]] = {}
        for metric in metrics:
            name = metric.metric_name
            value = metric.value()
            if not math.isnan(value):
                tags = ",".join(f"{tag}={text}" for tag, text in name.tags.items())
                label = f"{name.group}{{{tags}}}"
                lines.setdefault(label, []).append(f"{name.name}={value:.10g}")
        for label, values in sorted(lines.items()):
            self._logger.info("%s: %s", label, " ".join(values))
