"""The metrics of a member of a group.

In Java these are HeartbeatMetricsManager, OffsetCommitMetricsManager, ConsumerRebalanceMetrics-
Manager and RebalanceCallbackMetricsManager, and for a classic group parts of AbstractCoordinator.
Times and durations are in seconds (times are monotonic); the metrics have Kafka's units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.metrics.clients.metric_group import MetricGroup
from spark_kafka_sink.metrics.stats import CountRate, CumulativeCount, CumulativeSum, Max

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor

COORDINATOR_GROUP: Final = "consumer-coordinator-metrics"
_MS_PER_SECOND: Final = 1000
_SECONDS_PER_HOUR: Final = 3600.0
#: The value of a time ago if there was no such event.
NEVER_HAPPENED: Final = -1

#: The methods of a rebalance listener, and the names of their metrics.
_CALLBACKS: Final = {
    "on_partitions_revoked": "partition-revoked-latency",
    "on_partitions_assigned": "partition-assigned-latency",
    "on_partitions_lost": "partition-lost-latency",
}


class CoordinatorMetrics:
    """The sensors of one member."""

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
        self._heartbeats = self._sensor("heartbeat-latency")
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

    def _sensor(self, name: str) -> Sensor:
        return self._metrics.sensor(name)

    def _latency(self, name: str, what: str) -> Sensor:
        sensor = self._sensor(name)
        self._group.average_and_maximum(sensor, name, what)
        return sensor

    def _make_rebalance_sensors(self, group: MetricGroup) -> None:
        self._rebalances = self._latency("rebalance-latency", "time in ms of a rebalance")
        self._rebalances.add(
            group.name("rebalance-latency-total", "The total time in ms of all rebalances."),
            CumulativeSum(),
        )
        self._failures = self._sensor("failed-rebalance")
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


def seconds_ago(event: float | None, now: float) -> float:
    """Return the whole seconds since a time; -1 if it is None."""
    return NEVER_HAPPENED if event is None else int(now - event)
