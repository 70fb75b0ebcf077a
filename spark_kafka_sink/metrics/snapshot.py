"""The totals of a producer since its creation, small enough to send around and easy to merge.

A windowed metric covers only the last minute, and averages of averages are wrong. So a snapshot
holds sums and counts: merging those of all tasks of a Spark write gives the averages of the write.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from spark_kafka_sink import display

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Summary:
    """The number of values, their sum and the largest of them.

    `merged` adds an `other` summary; `since` subtracts an `earlier` one of the same values, but
    keeps the maximum, which has to be of later values.

    >>> Summary(count=4, total=10.0, maximum=5.0).average
    2.5
    >>> Summary(count=4, total=10.0, maximum=5.0).merged(Summary(1, 7.0, 7.0)).maximum
    7.0
    """

    count: int = 0
    total: float = 0.0
    #: None if there were no values.
    maximum: float | None = None

    @property
    def average(self) -> float | None:
        """The mean; None if there were no values."""
        return self.total / self.count if self.count else None

    def merged(self, other: Summary) -> Summary:
        """Return the summary of both sets of values together."""
        known = [value for value in (self.maximum, other.maximum) if value is not None]
        return Summary(
            count=self.count + other.count,
            total=self.total + other.total,
            maximum=max(known, default=None),
        )

    def since(self, earlier: Summary) -> Summary:
        """Return the summary of the values that were recorded after `earlier`."""
        return Summary(
            count=self.count - earlier.count,
            total=self.total - earlier.total,
            maximum=self.maximum,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MetricsSnapshot:
    """The totals of one producer, or of several merged, named after Kafka's producer metrics.

    A retried batch counts again in `records_per_request`, `batch_size` and `record_queue_time_ms`,
    as in Kafka.

    `record_retry_total` and `record_error_total` count records, `batch_split_total` counts batches.
    `bufferpool_wait_time_ns`, `metadata_wait_time_ns` and `flush_time_ns` are total waiting times
    in nanoseconds; `uncompressed_bytes` and `compressed_bytes` are sizes. `merged` adds an `other`
    snapshot, `merge` adds up all `snapshots`, and `since` subtracts the `earlier` one with which a
    period of the same producer began (`KafkaProducer.begin_metrics_period`).

    >>> with KafkaProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    ...     metadata = producer.send("orders", b"a book").result(timeout=30)
    ...     producer.metrics_snapshot().as_dict()["record-send-total"]
    1
    """

    #: Records per produce request: its sum is `record-send-total`, its count is `request-total`.
    records_per_request: Summary = Summary()
    #: Bytes of each batch as sent, header included.
    batch_size: Summary = Summary()
    #: The time from opening a batch (in a bulk write: from closing it) to sending it.
    record_queue_time_ms: Summary = Summary()
    #: The time from sending a produce request to receiving its response.
    request_latency_ms: Summary = Summary()
    #: The throttle time in every produce response, which is mostly 0.
    produce_throttle_time_ms: Summary = Summary()
    record_retry_total: int = 0
    record_error_total: int = 0
    batch_split_total: int = 0
    #: Calls that got no buffer memory within max.block.ms.
    buffer_exhausted_total: int = 0
    bufferpool_wait_time_ns: int = 0
    metadata_wait_time_ns: int = 0
    flush_time_ns: int = 0
    #: Size of the records before and after compression, without batch headers.
    uncompressed_bytes: int = 0
    compressed_bytes: int = 0

    def __repr__(self) -> str:
        """Show the summary for operators."""
        return f"<MetricsSnapshot: {'; '.join(self.describe()) or 'nothing was sent'}>"

    def _repr_html_(self) -> str:
        """Show the totals by Kafka's metric names."""
        return display.block(
            "; ".join(self.describe()) or "nothing was sent",
            display.facts(self.as_dict(), aligned=True),
        )

    def merged(self, other: MetricsSnapshot) -> MetricsSnapshot:
        """Return the totals of both."""
        return MetricsSnapshot(
            **{
                field.name: _merged(getattr(self, field.name), getattr(other, field.name))
                for field in fields(self)
            }
        )

    def since(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        """Return the totals of a period that began with an earlier snapshot."""
        return MetricsSnapshot(
            **{
                field.name: _since(getattr(self, field.name), getattr(earlier, field.name))
                for field in fields(self)
            }
        )

    @classmethod
    def merge(cls, snapshots: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
        """Return the totals of all snapshots, which are zero if there are none."""
        merged = cls()
        for snapshot in snapshots:
            merged = merged.merged(snapshot)
        return merged

    @property
    def compression_rate(self) -> float | None:
        """The compressed size divided by the uncompressed size; None if nothing was sent."""
        return self.compressed_bytes / self.uncompressed_bytes if self.uncompressed_bytes else None

    def as_dict(self) -> dict[str, Any]:
        """Return the totals by Kafka's metric names, ready for JSON.

        A value is None if nothing was recorded for it. Times are in the unit of their name;
        latency, queue and throttle times are in ms.
        """
        return {
            "record-send-total": int(self.records_per_request.total),
            "record-retry-total": self.record_retry_total,
            "record-error-total": self.record_error_total,
            "request-total": self.records_per_request.count,
            "records-per-request-avg": self.records_per_request.average,
            "request-latency-avg": self.request_latency_ms.average,
            "request-latency-max": self.request_latency_ms.maximum,
            "record-queue-time-avg": self.record_queue_time_ms.average,
            "record-queue-time-max": self.record_queue_time_ms.maximum,
            "batch-size-avg": self.batch_size.average,
            "batch-size-max": self.batch_size.maximum,
            "batch-split-total": self.batch_split_total,
            "compression-rate-avg": self.compression_rate,
            "produce-throttle-time-total": self.produce_throttle_time_ms.total,
            "produce-throttle-time-max": self.produce_throttle_time_ms.maximum,
            "buffer-exhausted-total": self.buffer_exhausted_total,
            "bufferpool-wait-time-ns-total": self.bufferpool_wait_time_ns,
            "metadata-wait-time-ns-total": self.metadata_wait_time_ns,
            "flush-time-ns-total": self.flush_time_ns,
        }

    def describe(self) -> list[str]:
        """Return a summary for operators; waits, retries and failures only if there were any."""
        requests = self.records_per_request
        if not requests.count:
            return []
        latency = self.request_latency_ms
        if requests.count == 1:
            plural = "" if requests.total == 1 else "s"
            line = f"1 request of {requests.total:,.0f} record{plural}"
        else:
            line = f"{requests.count:,} requests of {requests.average:,.0f} records on average"
        if latency.maximum is not None:
            line += f"; answered in {latency.average:,.1f} ms on average"
            line += f", {latency.maximum:,.1f} ms at most"
        # Compression that made a few records larger is nothing to worry about.
        if self.compression_rate is not None and self.compression_rate < 1:
            line += f"; compressed to {self.compression_rate:.0%}"
        waits = {
            "for buffer memory": self.bufferpool_wait_time_ns / 1e9,
            "throttled by brokers": self.produce_throttle_time_ms.total / 1e3,
        }
        waited = [f"{seconds:,.1f} s {reason}" for reason, seconds in waits.items() if seconds]
        troubles = {
            "records retried": self.record_retry_total,
            "records failed": self.record_error_total,
            "batches split": self.batch_split_total,
        }
        troubled = [f"{count:,} {event}" for event, count in troubles.items() if count]
        lines = [line]
        if waited:
            lines.append("waited " + ", ".join(waited))
        if troubled:
            lines.append(", ".join(troubled))
        return lines


def _merged(value: Any, other: Any) -> Any:
    return value.merged(other) if isinstance(value, Summary) else value + other


def _since(now: Any, earlier: Any) -> Any:
    return now.since(earlier) if isinstance(now, Summary) else now - earlier
