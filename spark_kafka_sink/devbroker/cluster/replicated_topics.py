"""The topics of a cluster that replicates, as one of its brokers knows them.

They follow the metadata of that broker, which may be old. The logs are the broker's own replicas:
a `ReplicatedPartition` writes to the leader's replica, and writes wait for the followers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.cluster.partition import Leadership, Partition, Topic
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.topic_changes import Topics
    from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
    from spark_kafka_sink.devbroker.log.partition_log import AppendResult
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage, TopicImage
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord
    from spark_kafka_sink.devbroker.replication.replica import Replica
    from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
    from spark_kafka_sink.protocol.error_codes import ErrorCode
    from spark_kafka_sink.record.record_batch import RecordBatchHeader


@dataclass(slots=True, kw_only=True)
class ReplicatedPartition(Partition):
    """A partition with replicas of its own on brokers; `log` is this broker's, or an empty one."""

    replicas_here: ReplicaManager

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by the id of its topic."""
        return TopicIdPartition(self.topic.topic_id, self.index)

    @property
    def _replica(self) -> Replica:
        """The replica of this broker; raises RefusedError with NOT_LEADER_OR_FOLLOWER for none."""
        return self.replicas_here.find(self.key)

    def check_leader(self) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        self._replica.as_leader()

    def check_reader(self, leader_epoch: int, *, only_leader: bool = True) -> None:
        """Raise RefusedError unless a client may read here; see `Partition.check_reader`."""
        replica = self._replica
        self.check_leader_epoch(leader_epoch)
        if only_leader:
            replica.as_leader()

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS below min.insync.replicas."""
        self._replica.as_leader().check_enough_replicas()

    @property
    def term(self) -> int:
        """Another number each time that this broker begins to lead."""
        return self._replica.term

    def append(
        self, batch: memoryview, header: RecordBatchHeader, *, acks: int, now: float
    ) -> AppendResult:
        """Append a validated batch. Raises RefusedError as `ReplicaManager.append`."""
        return self.replicas_here.append(self.key, batch, header, acks=acks, now=now)

    def append_marker(self, marker: TransactionMarker, now: float) -> int:
        """Append a transaction marker; return its offset.

        Raises RefusedError as `ReplicaManager.append_marker`.
        """
        return self.replicas_here.append_marker(self.key, marker, now)

    def check_replicated(self, end_offset: int, term: int) -> ErrorCode | None:
        """Return the outcome of a write that ends before an offset; None to wait."""
        return self.replicas_here.check_replicated(self.key, end_offset, term)

    def low_watermark(self) -> int:
        """Return the lowest log start of all replicas on running brokers.

        Raises RefusedError with NOT_LEADER_OR_FOLLOWER.
        """
        return self.replicas_here.low_watermark(self.key)

    def read(
        self, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool
    ) -> FetchedRecords:
        """Return what a consumer may read from this broker; see `Replica.read`."""
        return self._replica.read(
            offset, max_bytes=max_bytes, min_one_batch=min_one_batch, committed=committed
        )

    def check_offsets_available(self) -> None:
        """Raise RefusedError with OFFSET_NOT_AVAILABLE while the leader does not know the end."""
        self._replica.check_offsets_available()

    def closest_follower(self, rack: str, fetch_offset: int) -> int | None:
        """Return the follower in a consumer's rack that has its offset; None to use the leader."""
        return self.replicas_here.closest_follower(self.key, rack, fetch_offset)


class ReplicatedTopics:
    """Keeps the topics of one broker as its metadata say."""

    def __init__(self, topics: Topics, image: MetadataImage, replicas: ReplicaManager) -> None:
        """Change `topics` from now on, which are empty; `image` and `replicas` are the broker's."""
        self._topics = topics
        self._image = image
        self._replicas = replicas

    def apply(self, delta: MetadataDelta) -> None:
        """Apply a change of the metadata, after the replicas have taken their roles."""
        for topic_id in delta.deleted_topics:
            topic = self._topics.find_by_id(topic_id)
            if topic is not None:
                self._topics.remove(topic)
        for key in sorted(delta.partitions):
            partition = self._image.find_partition(key)
            if partition is not None:
                self._update(key, partition)
        if any(each.resource_type == BROKER_RESOURCE for each in delta.configs):
            for topic in self._topics:
                self._configure(topic)
        for resource in delta.configs:
            if resource.resource_type == TOPIC_RESOURCE:
                configured = self._topics.find(resource.name)
                if configured is not None:
                    self._configure(configured)

    def _update(self, key: TopicIdPartition, partition: PartitionRecord) -> None:
        topic = self._topics.find_by_id(key.topic_id)
        if topic is None:
            topic = self._add(self._image.topics[key.topic_id])
        log = self._replicas.log(key) or PartitionLog()
        if key.partition < len(topic.partitions):
            known = topic.partitions[key.partition]
            known.leadership = _leadership(partition)
            known.log = log
        else:
            topic.partitions.append(
                ReplicatedPartition(
                    topic=topic,
                    index=key.partition,
                    leadership=_leadership(partition),
                    log=log,
                    replicas_here=self._replicas,
                )
            )

    def _add(self, image: TopicImage) -> Topic:
        topic = Topic(
            name=image.name,
            topic_id=image.topic_id,
            config=self._replicas.topic_config(image.name),
            overrides=dict(self._image.topic_config(image.name)),
        )
        self._topics.add(topic)
        return topic

    def _configure(self, topic: Topic) -> None:
        topic.config = self._replicas.topic_config(topic.name)
        topic.overrides = dict(self._image.topic_config(topic.name))


def _leadership(partition: PartitionRecord) -> Leadership:
    return Leadership(
        partition.replicas,
        partition.leader,
        partition.leader_epoch,
        isr=partition.isr,
        eligible=frozenset(partition.elr),
    )
