"""All metrics of one consumer, under Kafka's names.

They are those of the user's calls (Kafka's KafkaConsumerMetrics), of a member of a group and of
fetches. Nothing is recorded per record. Times and durations are in seconds (times are monotonic);
the metrics have Kafka's units.

Of a Java consumer's metrics some are missing: `select-*` and `io-*`, because asyncio has no such
loop, the queues of Java's own two threads (AsyncConsumerMetrics), and `app-info`, whose values are
not numbers. In contrast to Java, a topic whose name has dots has no second set of metrics under a
name with underscores, which Kafka 5.0 removes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.metrics.client_metrics import ConnectionMetrics, MetricGroup, TopicSeries
from spark_kafka_sink.metrics.sensor import (
    NANOSECONDS_PER_SECOND,
    Avg,
    CountRate,
    CumulativeCount,
    CumulativeSum,
    Max,
    Negated,
    Sensor,
)
from spark_kafka_sink.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.metrics.kafka_metric import MetricName
    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.model import TopicPartition

FETCH_GROUP: Final = "consumer-fetch-manager-metrics"
_NO_REPLICA: Final = -1
#: Seconds after the last fetch of a topic for which its metrics stay; Java never removes them.
_TOPIC_EXPIRATION: Final = 3600.0
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


class _Fetched(NamedTuple):
    """The sensors of the fetched bytes and records of one topic, or of all."""

    bytes: Sensor
    records: Sensor

    def record(self, size: int, count: int, now: float) -> None:
        self.bytes.record(size, now)
        self.records.record(count, now)


class _Distance:
    """The distance of a partition's position to one end of its log: the sensor and its value."""

    __slots__ = ("latest", "sensor")

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor
        self.latest = 0


class FetchMetrics:
    """The sensors of the fetches of one consumer (FetchMetricsManager, FetchMetricsAggregator).

    Sizes and records are counted once per answer to a Fetch: when the last of its partitions has
    been read or dropped, so they follow what `poll` returns. Lag and lead are those of the position
    after records were returned. All methods are called under the consumer's lock.
    """

    def __init__(
        self, metrics: Metrics, preferred_replica: Callable[[TopicPartition], int | None]
    ) -> None:
        """Register all metrics except those of single topics and partitions.

        `preferred_replica` returns the broker id of the follower from which a partition is read;
        it is called whenever the metric is read, by any thread.
        """
        self._metrics = metrics
        self._preferred_replica = preferred_replica
        self._topics = TopicSeries(metrics, self._topic_sensors, expiration=_TOPIC_EXPIRATION)
        self._replicas: dict[TopicPartition, MetricName] = {}
        self._lags: dict[TopicPartition, _Distance] = {}
        self._leads: dict[TopicPartition, _Distance] = {}
        self._assignment_id = 0
        group = MetricGroup(metrics, FETCH_GROUP)
        self.throttle_time = self._sensor("fetch-throttle-time")
        group.average_and_maximum(
            self.throttle_time,
            "fetch-throttle-time",
            "time in ms for which a broker throttled the consumer",
        )
        self._fetched = self._fetched_sensors(group, "")
        self.latency = self._sensor("fetch-latency")
        group.average_and_maximum(
            self.latency, "fetch-latency", "time in ms from a fetch request to its response"
        )
        group.count_meter(self.latency, "fetch", "fetch requests answered")
        self._lag = self._sensor("records-lag")
        self._lag.add(
            group.name("records-lag-max", "The maximum lag in records of any partition."), Max()
        )
        # Recorded with the opposite sign.
        self._lead = self._sensor("records-lead")
        self._lead.add(
            group.name("records-lead-min", "The minimum lead in records of any partition."),
            Negated(Max()),
        )

    def _sensor(self, name: str, *, replaces: bool = False) -> Sensor:
        return self._metrics.sensor(name, replaces=replaces)

    def _fetched_sensors(self, group: MetricGroup, prefix: str) -> _Fetched:
        names = (f"{prefix}{what}-fetched" for what in ("bytes", "records"))
        sensors = _Fetched(*(self._sensor(name, replaces=bool(prefix)) for name in names))
        group.average_and_maximum(sensors.bytes, "fetch-size", "number of bytes per fetch")
        group.meter(sensors.bytes, "bytes-consumed", "bytes consumed")
        group.average(
            sensors.records, "records-per-request-avg", "The average number of records per fetch."
        )
        group.meter(sensors.records, "records-consumed", "records consumed")
        return sensors

    # --- fetched bytes and records

    def answered(self, partitions: Iterable[TopicPartition]) -> FetchedTotals:
        """Begin to count the bytes and records read of an answer, which names `partitions`."""
        return FetchedTotals(self, partitions)

    def fetch_read(self, totals: dict[str, tuple[int, int]]) -> None:
        """Record the bytes and records of an answer that has been read, by topic."""
        now = self._metrics.clock()
        for topic, (size, count) in totals.items():
            self._topics.use(topic, now).record(size, count, now)
        self._fetched.record(
            sum(size for size, _ in totals.values()),
            sum(count for _, count in totals.values()),
            now,
        )

    def _topic_sensors(self, topic: str) -> _Fetched:
        group = MetricGroup(self._metrics, FETCH_GROUP, topic=topic)
        return self._fetched_sensors(group, f"topic.{topic}.")

    # --- partitions

    def position_moved(
        self, partition: TopicPartition, *, lag: int | None, lead: int | None
    ) -> None:
        """Record the distances of a position to both ends of the log; None if one is not known."""
        if partition not in self._replicas:
            # No longer assigned: its metrics would stay.
            return
        now = self._metrics.clock()
        if lag is not None:
            self._lag.record(lag, now)
            distance = self._lags.get(partition)
            if distance is None:
                distance = self._lags[partition] = self._new_lag(partition)
            distance.latest = lag
            distance.sensor.record(lag, now)
        if lead is not None:
            self._lead.record(-lead, now)
            distance = self._leads.get(partition)
            if distance is None:
                distance = self._leads[partition] = self._new_lead(partition)
            distance.latest = lead
            distance.sensor.record(-lead, now)

    def _new_lag(self, partition: TopicPartition) -> _Distance:
        group = self._partition_group(partition)
        lag = _Distance(self._sensor(f"{partition}.records-lag"))
        lag.sensor.add_gauge(
            group.name("records-lag", "The latest lag in records."), lambda _: lag.latest
        )
        group.average_and_maximum(lag.sensor, "records-lag", "lag in records")
        return lag

    def _new_lead(self, partition: TopicPartition) -> _Distance:
        group = self._partition_group(partition)
        lead = _Distance(self._sensor(f"{partition}.records-lead"))
        lead.sensor.add_gauge(
            group.name("records-lead", "The latest lead in records."), lambda _: lead.latest
        )
        lead.sensor.add(
            group.name("records-lead-avg", "The average lead in records."), Negated(Avg())
        )
        lead.sensor.add(
            group.name("records-lead-min", "The minimum lead in records."), Negated(Max())
        )
        return lead

    def _partition_group(self, partition: TopicPartition) -> MetricGroup:
        return MetricGroup(
            self._metrics,
            FETCH_GROUP,
            topic=partition.topic,
            partition=str(partition.partition),
        )

    def assignment_changed(
        self, assignment_id: int, assigned: Callable[[], Collection[TopicPartition]]
    ) -> None:
        """Add and remove the metrics of partitions, if the id of the assignment is a new one."""
        if assignment_id == self._assignment_id:
            return
        self._assignment_id = assignment_id
        partitions = assigned()
        for partition in set(self._replicas).difference(partitions):
            self._metrics.remove_metric(self._replicas.pop(partition))
            for distances in (self._lags, self._leads):
                if (distance := distances.pop(partition, None)) is not None:
                    self._metrics.remove_sensor(distance.sensor.name)
        for partition in partitions:
            if partition not in self._replicas:
                self._replicas[partition] = self._add_replica(partition)

    def _add_replica(self, partition: TopicPartition) -> MetricName:
        def measure(_: float) -> float:
            replica = self._preferred_replica(partition)
            return _NO_REPLICA if replica is None else replica

        name = self._partition_group(partition).name(
            "preferred-read-replica",
            "The id of the follower that is read from; -1 if it is the leader.",
        )
        self._metrics.add_gauge(name, measure)
        return name


class FetchedTotals:
    """The totals of one answer, which are recorded when none of its partitions is left."""

    __slots__ = ("_metrics", "_totals", "_unread")

    def __init__(self, metrics: FetchMetrics, partitions: Iterable[TopicPartition]) -> None:
        """Wait for `partitions`."""
        self._metrics = metrics
        self._unread = set(partitions)
        self._totals: dict[str, tuple[int, int]] = {}

    def partition_read(self, partition: TopicPartition, size: int, records: int) -> None:
        """Add the bytes and records that were read of a partition; only its first call counts."""
        if partition not in self._unread:
            return
        self._unread.remove(partition)
        all_bytes, all_records = self._totals.get(partition.topic, (0, 0))
        self._totals[partition.topic] = all_bytes + size, all_records + records
        if not self._unread:
            self._metrics.fetch_read(self._totals)


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
