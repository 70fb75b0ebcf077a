"""The producer's metrics, under Kafka's names.

In Java these are SenderMetricsRegistry, KafkaProducerMetrics, and parts of BufferPool and Selector.
All methods are called once per batch or per request, never per record: they use the sizes and
counts that a batch has anyway. Calls about batches and requests come from the network thread, those
about waits from the thread that waited. `now` and durations are in seconds (`now` is monotonic);
the metrics have Kafka's units.

Two kinds of a Java producer's metrics are missing: `select-*` and `io-*`, because asyncio has no
such loop, and `app-info`, whose values are not numbers.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from spark_kafka_sink.metrics.client_metrics import ConnectionMetrics, MetricGroup, TopicSeries
from spark_kafka_sink.metrics.sensor import NANOSECONDS_PER_SECOND, CumulativeSum, Sensor
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.metrics.kafka_metric import MetricName
    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.producer.batch.buffer_pool import BufferPool
    from spark_kafka_sink.producer.batch.producer_batch import ProducerBatch

PRODUCER_GROUP: Final = "producer-metrics"
TOPIC_GROUP: Final = "producer-topic-metrics"

_MS_PER_SECOND: Final = 1000


class TimedCall(StrEnum):
    """Calls of the producer whose time is summed, with the first part of the metric's name.

    `spent` says in the metric's description what the time is spent on.
    """

    spent: str

    FLUSH = "flush", "in flush()"
    INIT_TRANSACTIONS = "txn-init", "in init_transactions()"
    BEGIN_TRANSACTION = "txn-begin", "in begin_transaction()"
    SEND_OFFSETS_TO_TRANSACTION = "txn-send-offsets", "in send_offsets_to_transaction()"
    PREPARE_TRANSACTION = "txn-prepare", "in prepare_transaction()"
    COMMIT_TRANSACTION = "txn-commit", "in commit_transaction()"
    ABORT_TRANSACTION = "txn-abort", "in abort_transaction()"
    METADATA_WAIT = "metadata-wait", "waiting for the metadata of topics"

    def __new__(cls, prefix: str, spent: str) -> Self:
        """Make a member of its value and its description."""
        call = str.__new__(cls, prefix)
        call._value_ = prefix
        call.spent = spent
        return call


class _TopicSensors(NamedTuple):
    records: Sensor
    bytes: Sensor
    compression: Sensor
    retries: Sensor
    errors: Sensor


class SenderMetrics(ConnectionMetrics):
    """The sensors of one producer; the network reports its events to them."""

    def __init__(self, metrics: Metrics, *, topic_expiration: float = math.inf) -> None:
        """Register all metrics except those of single topics and nodes.

        A topic's metrics end when nothing was sent to it for `topic_expiration` seconds, as
        `TopicSeries` says.
        """
        self._metrics = metrics
        self._topics = TopicSeries(metrics, self._topic_sensors, expiration=topic_expiration)
        self._uncompressed_bytes = 0
        self._compressed_bytes = 0
        group = MetricGroup(metrics, PRODUCER_GROUP)
        self._make_batch_sensors(group)
        self._make_buffer_sensors(group)
        latency = self._sensor("request-time")
        group.average_and_maximum(
            latency, "request-latency", "time in ms from a produce request to its response"
        )
        throttle_time = self._sensor("produce-throttle-time")
        group.average_and_maximum(
            throttle_time,
            "produce-throttle-time",
            "time in ms for which a broker throttled the producer",
        )
        super().__init__(
            metrics,
            "producer",
            timed_api=ApiKey.PRODUCE,
            request="a produce request",
            latency=latency,
            throttle_time=throttle_time,
        )
        self._timed_calls = {call: self._sensor(f"{call}-time-ns-total") for call in TimedCall}
        for call, sensor in self._timed_calls.items():
            description = f"The total time in ns spent {call.spent}."
            sensor.add(group.name(f"{call}-time-ns-total", description), CumulativeSum())

    def _sensor(self, name: str) -> Sensor:
        return self._metrics.sensor(name)

    def _make_batch_sensors(self, group: MetricGroup) -> None:
        self._batch_size = self._sensor("batch-size")
        group.average_and_maximum(
            self._batch_size, "batch-size", "size in bytes of a batch as sent"
        )
        self._compression = self._sensor("compression-rate")
        group.average(
            self._compression,
            "compression-rate-avg",
            "The average ratio of the compressed to the uncompressed size of a batch.",
        )
        self._queue_time = self._sensor("queue-time")
        group.average_and_maximum(
            self._queue_time,
            "record-queue-time",
            "time in ms that a batch waited before it was sent",
        )
        self._record_size = self._sensor("record-size")
        group.average_and_maximum(
            self._record_size, "record-size", "size in bytes of the largest record of a batch"
        )
        self._records_per_request = self._sensor("records-per-request")
        group.meter(self._records_per_request, "record-send", "records sent")
        group.average(
            self._records_per_request,
            "records-per-request-avg",
            "The average number of records per request.",
        )
        self._retries = self._sensor("record-retries")
        group.meter(self._retries, "record-retry", "records retried")
        self._errors = self._sensor("errors")
        group.meter(self._errors, "record-error", "records that failed")
        self._splits = self._sensor("batch-split-rate")
        group.meter(self._splits, "batch-split", "batches split")

    def _make_buffer_sensors(self, group: MetricGroup) -> None:
        self._buffer_wait = self._sensor("bufferpool-wait-time")
        self._buffer_wait.add_time_meter(
            group.name(
                "bufferpool-wait-ratio", "The fraction of time that threads wait for buffer memory."
            ),
            group.name(
                "bufferpool-wait-time-ns-total",
                "The total time in ns that threads waited for buffer memory.",
            ),
        )
        self._buffer_exhausted = self._sensor("buffer-exhausted-records")
        group.meter(
            self._buffer_exhausted, "buffer-exhausted", "waits for buffer memory that timed out"
        )

    # --- gauges, read on demand

    def observe_buffer(self, buffer: BufferPool) -> None:
        """Add gauges that read the state of the buffer pool; call this once."""
        group = MetricGroup(self._metrics, PRODUCER_GROUP)
        gauges: dict[MetricName, Callable[[float], float]] = {
            group.name(
                "buffer-total-bytes", "The size in bytes of the buffer memory (buffer.memory)."
            ): (lambda _: buffer.total_bytes),
            group.name(
                "buffer-available-bytes", "The number of bytes of buffer memory that are free."
            ): (lambda _: max(buffer.available_bytes, 0)),
            group.name(
                "waiting-threads", "The number of threads that are waiting for buffer memory."
            ): (lambda _: buffer.waiting_threads),
        }
        for name, measure in gauges.items():
            self._metrics.add_gauge(name, measure)

    def observe_client(
        self,
        *,
        requests_in_flight: Callable[[], int],
        metadata_updated_at: Callable[[], float | None],
    ) -> None:
        """Add gauges that read the state of the client; call this once.

        `metadata_updated_at` returns the time of the last answer, None before the first.
        """

        def metadata_age(now: float) -> float:
            updated_at = metadata_updated_at()
            return math.nan if updated_at is None else now - updated_at

        group = MetricGroup(self._metrics, PRODUCER_GROUP)
        self._metrics.add_gauge(
            group.name("requests-in-flight", "The current number of requests in flight."),
            lambda _: requests_in_flight(),
        )
        self._metrics.add_gauge(
            group.name("metadata-age", "The age in seconds of the metadata in use."), metadata_age
        )

    # --- batches (network thread)

    def on_batches_drained(self, batches: Sequence[ProducerBatch], now: float) -> None:
        """Record the batches of one produce request, each time they are sent."""
        records = 0
        for batch in batches:
            count, size = batch.record_count, batch.size_bytes
            compressed = size - RECORD_BATCH_OVERHEAD
            ratio = compressed / batch.uncompressed_bytes
            topic = self._topics.use(batch.topic_partition.topic, now)
            topic.records.record(count, now)
            topic.bytes.record(size, now)
            topic.compression.record(ratio, now)
            self._batch_size.record(size, now)
            self._compression.record(ratio, now)
            self._queue_time.record((now - batch.created_at) * _MS_PER_SECOND, now)
            self._record_size.record(batch.max_record_bytes, now)
            self._compressed_bytes += compressed
            self._uncompressed_bytes += batch.uncompressed_bytes
            records += count
        self._records_per_request.record(records, now)

    def on_batch_retried(self, batch: ProducerBatch, now: float) -> None:
        """Record a batch that will be resent."""
        self._retries.record(batch.record_count, now)
        topic = self._topics.get(batch.topic_partition.topic)
        if topic is not None:
            topic.retries.record(batch.record_count, now)

    def on_batch_failed(self, batch: ProducerBatch, now: float) -> None:
        """Record a batch that will never be acknowledged."""
        self._errors.record(batch.record_count, now)
        topic = self._topics.get(batch.topic_partition.topic)
        if topic is not None:
            topic.errors.record(batch.record_count, now)

    def on_batch_split(self, now: float) -> None:
        """Record a batch that its broker refused as too large."""
        self._splits.record(1, now)

    def _topic_sensors(self, topic: str) -> _TopicSensors:
        sensors = _TopicSensors(
            records=self._metrics.sensor(f"topic.{topic}.records-per-batch"),
            bytes=self._metrics.sensor(f"topic.{topic}.bytes"),
            compression=self._metrics.sensor(f"topic.{topic}.compression-rate"),
            retries=self._metrics.sensor(f"topic.{topic}.record-retries"),
            errors=self._metrics.sensor(f"topic.{topic}.record-errors"),
        )
        group = MetricGroup(self._metrics, TOPIC_GROUP, topic=topic)
        group.meter(sensors.records, "record-send", "records sent")
        group.meter(sensors.bytes, "byte", "bytes of batches sent")
        group.average(
            sensors.compression,
            "compression-rate",
            "The average ratio of the compressed to the uncompressed size of a batch.",
        )
        group.meter(sensors.retries, "record-retry", "records retried")
        group.meter(sensors.errors, "record-error", "records that failed")
        return sensors

    # --- waits (calling threads)

    def on_send_failed(self, now: float, records: int = 1) -> None:
        """Count records that failed before they were added to a batch."""
        self._errors.record(records, now)

    def on_buffer_wait(self, seconds: float, now: float) -> None:
        """Record a wait for memory, however it ended."""
        self._buffer_wait.record(seconds * NANOSECONDS_PER_SECOND, now)

    def on_buffer_exhausted(self, now: float) -> None:
        """Record a wait for memory that ended with BufferExhaustedError."""
        self._buffer_exhausted.record(1, now)

    def on_timed_call(self, call: TimedCall, seconds: float, now: float) -> None:
        """Record how long a call took."""
        self._timed_calls[call].record(seconds * NANOSECONDS_PER_SECOND, now)

    # --- for Spark

    def begin_period(self) -> MetricsSnapshot:
        """Return the totals so far; the maxima of later snapshots are of values from now on."""
        snapshot = self.snapshot()
        for sensor in (
            self._records_per_request,
            self._batch_size,
            self._queue_time,
            self.latency,
            self.throttle_time,
        ):
            sensor.forget_maximum()
        return snapshot

    def snapshot(self) -> MetricsSnapshot:
        """Return totals since the producer's start; any thread may call this."""
        return MetricsSnapshot(
            records_per_request=self._records_per_request.summary(),
            batch_size=self._batch_size.summary(),
            record_queue_time_ms=self._queue_time.summary(),
            request_latency_ms=self.latency.summary(),
            produce_throttle_time_ms=self.throttle_time.summary(),
            record_retry_total=_total(self._retries),
            record_error_total=_total(self._errors),
            batch_split_total=_total(self._splits),
            buffer_exhausted_total=_total(self._buffer_exhausted),
            bufferpool_wait_time_ns=_total(self._buffer_wait),
            metadata_wait_time_ns=_total(self._timed_calls[TimedCall.METADATA_WAIT]),
            flush_time_ns=_total(self._timed_calls[TimedCall.FLUSH]),
            uncompressed_bytes=self._uncompressed_bytes,
            compressed_bytes=self._compressed_bytes,
        )


def _total(sensor: Sensor) -> int:
    return round(sensor.summary().total)
