"""Which broker coordinates what: the leaders of the internal topics' partitions.

A group or transactional id is coordinated by the leader of the partition that it maps to.
The partitions are spread over the brokers when a coordinator is first looked up, those that do not
run then included, as Kafka spreads new partitions. After every restart they are placed again, with
the next leader epoch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.internal_topics import (
    COORDINATOR_PARTITIONS,
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    coordinator_partition,
)
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.leadership import Leadership, place_replicas
from spark_kafka_sink.devbroker.log.coordinator_log import CoordinatorLog
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from spark_kafka_sink.devbroker.log.log_manager import LogManager
    from spark_kafka_sink.model import TopicPartition

#: Internal topics whose partition leaders are coordinators.
_COORDINATED = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})
_REPLICATION_FACTOR = 3


def coordinates(topic_partition: TopicPartition) -> bool:
    """Return whether the leader of a partition is a coordinator."""
    topic, index = topic_partition
    return topic in _COORDINATED and 0 <= index < COORDINATOR_PARTITIONS


class CoordinatorLeaders:
    """The partition leaders of the internal topics, and the topics' logs."""

    def __init__(
        self, logs: LogManager, running: Collection[int], brokers: Collection[int]
    ) -> None:
        """Start without placing anything.

        `brokers` is a live view of all brokers' ids, `running` of those that run.
        """
        self._running = running
        self._brokers = brokers
        self._leaders: dict[str, list[Leadership]] = {}
        #: By internal topic.
        self.logs = {
            name: CoordinatorLog(logs, name, partial(self._leader_epoch, name))
            for name in sorted(_COORDINATED)
        }

    def clear(self) -> None:
        """Remove all placements."""
        self._leaders.clear()

    def of(self, topic: str, key: str) -> Leadership:
        """Return the leadership of the partition of an internal topic that an id maps to."""
        return self.all(topic)[coordinator_partition(key)]

    def check(self, topic: str, key: str, node_id: int) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates an id."""
        leader_id = self.of(topic, key).leader_id
        if node_id != leader_id:
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR,
                f"the coordinator of {key!r} is broker {leader_id}, not {node_id}",
            )

    def all(self, topic: str) -> list[Leadership]:
        """Return the leadership of each partition of an internal topic."""
        leaders = self._leaders.get(topic)
        if leaders is None:
            # As offsets.topic.replication.factor, if there are enough brokers.
            count = min(_REPLICATION_FACTOR, len(self._brokers))
            leaders = [
                Leadership.begin(
                    place_replicas(index, count, self._running, self._brokers)
                    if self._running
                    else (),
                    self._running,
                )
                for index in range(COORDINATOR_PARTITIONS)
            ]
            for index, leader_epoch in self.logs[topic].leader_epochs().items():
                # As after every restart, the partition gets a new leader.
                leaders[index].leader_epoch = leader_epoch + 1
            if self._running:
                self._leaders[topic] = leaders
        return leaders

    def elect(self) -> Iterator[tuple[str, int]]:
        """Elect running leaders where needed and possible; yield the partitions that moved."""
        for topic, leaders in self._leaders.items():
            for index, leadership in enumerate(leaders):
                if leadership.update(self._running, 1):
                    yield topic, index

    def _leader_epoch(self, topic: str, index: int) -> int:
        return self.all(topic)[index].leader_epoch
