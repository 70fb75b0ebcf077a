"""All metrics of one consumer, under Kafka's names.

Here are those of the user's calls (Kafka's KafkaConsumerMetrics) and of a member of a group, and
the listener of the network; `fetch_metrics` has the others. Nothing is recorded per record. Times
and durations are in seconds (times are monotonic); the metrics have Kafka's units.

Of a Java consumer's metrics some are missing: `select-*` and `io-*`, because asyncio has no such
loop, the queues of Java's own two threads (AsyncConsumerMetrics), and `app-info`, whose values are
not numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.consumer.fetch.fetch_metrics import FetchMetrics
from spark_kafka_sink.metrics.client_metrics import MetricGroup
from spark_kafka_sink.metrics.connection_metrics import ConnectionMetrics
from spark_kafka_sink.metrics.sensor import NANOSECONDS_PER_SECOND
from spark_kafka_sink.metrics.stats import CountRate, CumulativeCount, CumulativeSum, Max
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor
    from spark_kafka_sink.model import TopicPartition

CONSUMER_GROUP: Final = "consumer-metrics"
COORDINATOR_GROUP: Final = "consumer-coordinator-metrics"
#: The value of a time ago if there was no such event.
NEVER_HAPPENED: Final = -1
_SECONDS_PER_HOUR: Final = 3600.0
_MS_PER_SECOND: Final = 1000
_HEARTBEATS: Final = frozenset({ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT})
#: The methods of a rebalance listener, and the names of their metrics.
_CALLBACKS: Final = {
    "on_partitions_revoked": "partition-revoked-latency",
    "on_partitions_assigned": "partition-assigned-latency",
    "on_partitions_lost": "partition-lost-latency",
}


class CoordinatorMetrics:
    """The sensors of one member of a group.

    In Java these are HeartbeatMetricsManager, OffsetCommitMetricsManager,
    ConsumerRebalanceMetricsManager and RebalanceCallbackMetricsManager, and for a classic group
    parts of AbstractCoordinator.
    """

    def __init__(
        self, metrics: Metrics, *, is_classic: bool, assigned_partitions: Callable[[], int]
    ) -> None:
        """Register the metrics; those of joins and syncs only for a classic group.

        `assigned_partitions` returns the number of partitions; any thread may call it.
        """
        self._metrics = metrics
        self._group = group = MetricGroup(metrics, COORDINATOR_GROUP)
        self._last_heartbeat: float | None = None
        self._last_rebalance: float | None = None
        self._rebalancing_since: float | None = None
        self._commits = self._latency("commit-latency", "time in ms of a commit request")
        group.count_meter(self._commits, "commit", "commit requests")
        self._heartbeats = self._metrics.sensor("heartbeat-latency")
        self._heartbeats.add(
            group.name(
                "heartbeat-response-time-max",
                "The maximum time in ms from a heartbeat to its response.",
            ),
            Max(),
        )
        group.count_meter(self._heartbeats, "heartbeat", "heartbeats")
        if is_classic:
            self._joins = self._latency("join-time", "time in ms of a successful join")
            group.count_meter(self._joins, "join", "group joins")
            self._syncs = self._latency("sync-time", "time in ms of a successful sync")
            group.count_meter(self._syncs, "sync", "group syncs")
        self._make_rebalance_sensors(group)
        self._callbacks = {
            method: self._latency(name, f"time in ms of {method}() of the rebalance listener")
            for method, name in _CALLBACKS.items()
        }
        metrics.add_gauge(
            group.name("assigned-partitions", "The number of partitions currently assigned."),
            lambda _: assigned_partitions(),
        )
        metrics.add_gauge(
            group.name(
                "last-heartbeat-seconds-ago",
                "The seconds since the last heartbeat was sent; -1 if there was none.",
            ),
            lambda now: seconds_ago(self._last_heartbeat, now),
        )
        metrics.add_gauge(
            group.name(
                "last-rebalance-seconds-ago",
                "The seconds since the last successful rebalance; -1 if there was none.",
            ),
            lambda now: seconds_ago(self._last_rebalance, now),
        )

    def _latency(self, name: str, what: str) -> Sensor:
        sensor = self._metrics.sensor(name)
        self._group.average_and_maximum(sensor, name, what)
        return sensor

    def _make_rebalance_sensors(self, group: MetricGroup) -> None:
        self._rebalances = self._latency("rebalance-latency", "time in ms of a rebalance")
        self._rebalances.add(
            group.name("rebalance-latency-total", "The total time in ms of all rebalances."),
            CumulativeSum(),
        )
        self._failures = self._metrics.sensor("failed-rebalance")
        for sensor, name, what in (
            (self._rebalances, "rebalance", "successful"),
            (self._failures, "failed-rebalance", "failed"),
        ):
            sensor.add(
                group.name(f"{name}-total", f"The total number of {what} rebalances."),
                CumulativeCount(),
            )
            sensor.add(
                group.name(f"{name}-rate-per-hour", f"The number of {what} rebalances per hour."),
                CountRate(_SECONDS_PER_HOUR),
            )

    # --- requests

    def commit_answered(self, latency: float, now: float) -> None:
        """Record the answer to an OffsetCommit, whatever it says."""
        self._commits.record(latency * _MS_PER_SECOND, now)

    def heartbeat_sent(self, now: float) -> None:
        """Record that a heartbeat was sent."""
        self._last_heartbeat = now

    def heartbeat_answered(self, latency: float, now: float) -> None:
        """Record the answer to a heartbeat, whatever it says."""
        self._heartbeats.record(latency * _MS_PER_SECOND, now)

    def joined(self, latency: float, now: float) -> None:
        """Record a JoinGroup that has succeeded."""
        self._joins.record(latency * _MS_PER_SECOND, now)

    def synced(self, latency: float, now: float) -> None:
        """Record a SyncGroup that has succeeded."""
        self._syncs.record(latency * _MS_PER_SECOND, now)

    # --- rebalances

    def rebalance_started(self, now: float) -> None:
        """Record the beginning of a rebalance; a failed one that is repeated goes on."""
        if self._rebalancing_since is None:
            self._rebalancing_since = now

    def rebalance_failed(self, now: float) -> None:
        """Record that a rebalance in progress has failed; it may be repeated."""
        if self._rebalancing_since is not None:
            self._failures.record(1, now)

    def rebalance_ended(self, now: float) -> None:
        """Record that a rebalance in progress has succeeded."""
        if self._rebalancing_since is not None:
            self._rebalances.record((now - self._rebalancing_since) * _MS_PER_SECOND, now)
            self._last_rebalance = now
            self._rebalancing_since = None

    def rebalance_given_up(self) -> None:
        """Forget a rebalance that is not repeated, if there is one in progress."""
        self._rebalancing_since = None

    def listener_called(self, method: str, seconds: float, now: float) -> None:
        """Record the time of a call of the user's listener, which has not raised."""
        self._callbacks[method].record(seconds * _MS_PER_SECOND, now)


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


def seconds_ago(event: float | None, now: float) -> float:
    """Return the whole seconds since a time; -1 if it is None."""
    return NEVER_HAPPENED if event is None else int(now - event)
