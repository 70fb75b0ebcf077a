"""All metrics of one consumer, under Kafka's names.

Here are those of the user's calls (Kafka's KafkaConsumerMetrics) and the listener of the network;
`fetch_metrics` and `coordinator_metrics` have the others. Nothing is recorded per record.

Of a Java consumer's metrics some are missing: `select-*` and `io-*`, because asyncio has no such
loop, the queues of Java's own two threads (AsyncConsumerMetrics), and `app-info`, whose values are
not numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.measures.coordinator_metrics import CoordinatorMetrics, seconds_ago
from spark_kafka_sink.consumer.measures.fetch_metrics import FetchMetrics
from spark_kafka_sink.metrics.clients.connection_metrics import ConnectionMetrics
from spark_kafka_sink.metrics.clients.metric_group import MetricGroup
from spark_kafka_sink.metrics.sensor import NANOSECONDS_PER_SECOND
from spark_kafka_sink.metrics.stats import CumulativeSum
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.model import TopicPartition

CONSUMER_GROUP: Final = "consumer-metrics"
_HEARTBEATS: Final = frozenset({ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT})
_MS_PER_SECOND: Final = 1000


class ConsumerMetrics(ConnectionMetrics):
    """The sensors of one consumer; the network reports its events to them."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        has_group: bool,
        is_classic: bool,
        assigned_partitions: Callable[[], int],
        preferred_replica: Callable[[TopicPartition], int | None],
    ) -> None:
        """Register all metrics except those of topics, partitions and nodes.

        Without a group there are none of a coordinator. `assigned_partitions` returns their number,
        and `preferred_replica` the broker id of the follower from which a partition is read; any
        thread may call them.
        """
        self.fetches = FetchMetrics(metrics, preferred_replica)
        super().__init__(
            metrics,
            "consumer",
            timed_api=ApiKey.FETCH,
            request="a fetch request",
            latency=self.fetches.latency,
            throttle_time=self.fetches.throttle_time,
        )
        self.coordinator = (
            CoordinatorMetrics(
                metrics, is_classic=is_classic, assigned_partitions=assigned_partitions
            )
            if has_group
            else None
        )
        group = MetricGroup(metrics, CONSUMER_GROUP)
        self._last_poll: float | None = None
        #: Seconds between the beginnings of this poll and the one before it.
        self._since_last_poll = 0.0
        metrics.add_gauge(
            group.name(
                "last-poll-seconds-ago",
                "The seconds since the last call of poll(); -1 if there was none.",
            ),
            lambda now: seconds_ago(self._last_poll, now),
        )
        self._poll_interval = self._sensor("time-between-poll")
        group.average_and_maximum(
            self._poll_interval, "time-between-poll", "time in ms between two calls of poll()"
        )
        self._idle_ratio = self._sensor("poll-idle-ratio-avg")
        group.average(
            self._idle_ratio,
            "poll-idle-ratio-avg",
            "The average fraction of time that is spent in poll() rather than between its calls.",
        )
        self._commit_time = self._sensor("commit-sync-time-ns-total")
        self._committed_time = self._sensor("committed-time-ns-total")
        for sensor, method in (
            (self._commit_time, "commit()"),
            (self._committed_time, "committed()"),
        ):
            description = f"The total time in ns spent in {method}."
            sensor.add(group.name(sensor.name, description), CumulativeSum())

    # --- the user's calls

    def poll_started(self, now: float) -> None:
        """Store when a call of `poll` began; `poll_ended` records it."""
        last, self._last_poll = self._last_poll, now
        self._since_last_poll = 0.0 if last is None else now - last

    def poll_ended(self, now: float) -> None:
        """Record the call of `poll` that began last.

        As in Java, the idle ratio compares its time with that since the previous call's beginning.
        """
        if self._last_poll is None:
            return
        self._poll_interval.record(self._since_last_poll * _MS_PER_SECOND, now)
        spent = now - self._last_poll
        if (total := spent + self._since_last_poll) > 0:
            self._idle_ratio.record(spent / total, now)

    def commit_called(self, seconds: float, now: float) -> None:
        """Record the time of a call of `commit`."""
        self._commit_time.record(seconds * NANOSECONDS_PER_SECOND, now)

    def committed_called(self, seconds: float, now: float) -> None:
        """Record the time of a call of `committed`."""
        self._committed_time.record(seconds * NANOSECONDS_PER_SECOND, now)

    # --- NetworkListener

    def request_sent(self, node_id: int, api_key: object, size: int) -> None:
        """Record a request; when it is a heartbeat, also its time."""
        super().request_sent(node_id, api_key, size)
        if self.coordinator is not None and api_key in _HEARTBEATS:
            self.coordinator.heartbeat_sent(self._clock())

    def response_received(self, node_id: int, api_key: object, size: int, latency: float) -> None:
        """Record an answer; `latency` counts if it is to a fetch, a heartbeat or a commit."""
        super().response_received(node_id, api_key, size, latency)
        if self.coordinator is None:
            return
        if api_key in _HEARTBEATS:
            self.coordinator.heartbeat_answered(latency, self._clock())
        elif api_key is ApiKey.OFFSET_COMMIT:
            self.coordinator.commit_answered(latency, self._clock())
