"""The metrics of fetches (Kafka's FetchMetricsManager and FetchMetricsAggregator).

Sizes and records are counted once per answer to a Fetch: when the last of its partitions has been
read or dropped, so they follow what `poll` returns. Lag and lead are those of the position after
records were returned.

All methods are called under the consumer's lock.

In contrast to Java, a topic whose name has dots has no second set of metrics under a name with
underscores, which Kafka 5.0 removes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_kafka_sink.metrics.client_metrics import MetricGroup, TopicSeries
from spark_kafka_sink.metrics.stats import Avg, Max, Negated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from spark_kafka_sink.metrics.kafka_metric import MetricName
    from spark_kafka_sink.metrics.metrics import Metrics
    from spark_kafka_sink.metrics.sensor import Sensor
    from spark_kafka_sink.model import TopicPartition

FETCH_GROUP: Final = "consumer-fetch-manager-metrics"
_NO_REPLICA: Final = -1
#: Seconds after the last fetch of a topic for which its metrics stay; Java never removes them.
_TOPIC_EXPIRATION: Final = 3600.0


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
    """The sensors of the fetches of one consumer."""

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
