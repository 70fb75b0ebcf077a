"""A topic, its partitions, and which broker may serve them (Kafka's Partition).

The brokers of a cluster share one log for each partition; the partition's `leadership` decides
which of them serves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.internal_topics import INTERNAL_TOPICS
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.cluster.leadership import Leadership


@dataclass(slots=True)
class Partition:
    """A partition: its leadership and its log."""

    topic: Topic
    index: int
    leadership: Leadership
    log: PartitionLog = field(default_factory=PartitionLog)
    #: Followers that have stopped to replicate, each with the offset at which its log ends.
    lagging: dict[int, int] = field(default_factory=dict)

    @property
    def leader_id(self) -> int:
        """The id of the leader, -1 for none."""
        return self.leadership.leader_id

    @property
    def leader_epoch(self) -> int:
        """The leader epoch, which every change of leader raises."""
        return self.leadership.leader_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers with a replica."""
        return self.leadership.replicas

    def end_offset(self, node_id: int) -> int:
        """Return where the log of a replica ends; that is also its high watermark."""
        end_offset = self.log.high_watermark
        return min(self.lagging.get(node_id, end_offset), end_offset)

    def check_leader(self, node_id: int) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        if node_id != self.leader_id:
            raise RefusedError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the leader of {self.topic.name}-{self.index} is broker {self.leader_id}, "
                f"not {node_id}",
            )

    def check_reader(self, node_id: int, leader_epoch: int, *, only_leader: bool = True) -> None:
        """Raise RefusedError unless a client that knows this leader epoch may read from a broker.

        The checks are: NOT_LEADER_OR_FOLLOWER if the broker has no replica; the epoch, as in
        `check_leader_epoch`; NOT_LEADER_OR_FOLLOWER if `only_leader` is set and the broker is not
        the leader (Partition.getLocalLog).
        """
        if node_id not in self.replicas:
            self.check_leader(node_id)
        self.check_leader_epoch(leader_epoch)
        if only_leader:
            self.check_leader(node_id)

    def check_leader_epoch(self, leader_epoch: int) -> None:
        """Raise RefusedError if the client's leader epoch is not the partition's (KIP-320).

        FENCED_LEADER_EPOCH for an older one, UNKNOWN_LEADER_EPOCH for a newer one; -1 means that
        the client knows none.
        """
        if leader_epoch in {NO_LEADER_EPOCH, self.leader_epoch}:
            return
        raise RefusedError(
            ErrorCode.FENCED_LEADER_EPOCH
            if leader_epoch < self.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"the request has leader epoch {leader_epoch}, the partition has {self.leader_epoch}",
        )

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS below min.insync.replicas.

        The minimum is never more than the number of replicas (Partition.effectiveMinIsr).
        """
        enough = min(self.topic.config.min_insync_replicas, len(self.replicas))
        if len(self.leadership.isr) < enough:
            raise RefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic.name}-{self.index} has {len(self.leadership.isr)} in-sync replicas, "
                f"but min.insync.replicas is {enough}",
            )


@dataclass(slots=True)
class Topic:
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    #: The settings that were set explicitly, by Kafka's names; `config` is the resulting whole.
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether this is an internal topic of Kafka."""
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """The number of replicas of each partition."""
        return len(self.partitions[0].replicas)
