"""A cluster that replicates, as one of its brokers knows it.

Handlers see the same `ClusterState`, `Topic` and `Partition` as in a cluster whose brokers share
their logs. Here each broker has its own (`BrokerView`), which follow its metadata: they may be old.
The logs are the broker's own replicas: a `ReplicatedPartition` writes to the leader's replica, and
writes wait for the followers.

Changes are the controller's: requests for them are forwarded to it. The coordinators are not
replicated yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.config_changes import ALL_BROKERS
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState, Forwarded
from spark_kafka_sink.devbroker.cluster.partition import Leadership, Partition, Topic
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.records import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    TopicIdPartition,
)
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.cluster.topic_changes import Topics
    from spark_kafka_sink.devbroker.lifecycle.broker_cluster import OnResponse
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
    from spark_kafka_sink.devbroker.log.partition_log import AppendResult
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.envelope import ForwardedResponse
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage, TopicImage
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord
    from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
    from spark_kafka_sink.devbroker.replication.replica_manager import ReplicaManager
    from spark_kafka_sink.protocol.schema import AnyRequest
    from spark_kafka_sink.record.record_batch import RecordBatchHeader


@dataclass(slots=True, kw_only=True)
class ReplicatedPartition(Partition):
    """A partition with replicas of its own on brokers; `log` is this broker's, or an empty one."""

    replicas_here: ReplicaManager

    @property
    def key(self) -> TopicIdPartition:
        """The partition, by the id of its topic."""
        return TopicIdPartition(self.topic.topic_id, self.index)

    def log_end_offset(self, node_id: int) -> int:
        """Return where the log of this broker ends."""
        del node_id
        return self.log.log_end_offset

    def end_offset(self, node_id: int) -> int:
        """Return the high watermark of this broker."""
        del node_id
        return self.log.high_watermark

    def check_leader(self, node_id: int) -> None:
        """Raise RefusedError with NOT_LEADER_OR_FOLLOWER unless this broker leads the partition."""
        del node_id
        self.replicas_here.find(self.key).as_leader()

    def check_enough_replicas(self) -> None:
        """Raise RefusedError with NOT_ENOUGH_REPLICAS below min.insync.replicas."""
        self.replicas_here.find(self.key).as_leader().check_enough_replicas()

    @property
    def term(self) -> int:
        """Another number each time that this broker begins to lead."""
        return self.replicas_here.find(self.key).term

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
        self, node_id: int, offset: int, *, max_bytes: int, min_one_batch: bool, committed: bool
    ) -> FetchedRecords:
        """Return what a consumer may read from this broker; see `Replica.read`."""
        del node_id
        return self.replicas_here.find(self.key).read(
            offset, max_bytes=max_bytes, min_one_batch=min_one_batch, committed=committed
        )

    def check_offsets_available(self) -> None:
        """Raise RefusedError with OFFSET_NOT_AVAILABLE while the leader does not know the end."""
        self.replicas_here.find(self.key).check_offsets_available()

    def closest_follower(
        self, rack: str, fetch_offset: int, racks: Mapping[int, str]
    ) -> int | None:
        """Return the follower in a consumer's rack that has its offset; None to use the leader."""
        del racks
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
        adding=partition.adding,
        removing=partition.removing,
    )


class BrokerView(ClusterState):
    """The brokers and topics of a cluster that replicates, by the metadata of one broker."""

    has_controller = True

    def __init__(
        self,
        cluster_id: str,
        settings: BrokerSettings,
        logs: BrokerLogs,
        node: BrokerNode,
        forward: Callable[[ForwardedRequest, OnResponse, float], None],
    ) -> None:
        """Begin without brokers and topics, and follow the metadata of a broker from now on.

        `logs` are those of the broker, and `forward` passes requests on to the controller.
        """
        super().__init__(
            cluster_id=cluster_id, settings=settings, timers=logs.timers, logs=logs.manager
        )
        self._node = node
        self._forward = forward
        self._replicated_topics = ReplicatedTopics(self.topic_index, node.image, node.replicas)
        node.on_metadata = self.apply

    @property
    def controller_id(self) -> int:
        """The broker that this one takes for the controller, -1 for none."""
        return self._node.controller_id

    @property
    def racks(self) -> dict[int, str]:
        """The racks of the brokers that have one, by id."""
        return {
            node_id: broker.rack
            for node_id, broker in self._node.image.brokers.items()
            if broker.rack
        }

    @property
    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        """The settings that were changed while brokers ran, by broker id; empty for all brokers."""
        image = self._node.image
        names = (ALL_BROKERS, *map(str, image.brokers))
        configs = {name: image.config(ConfigResource(BROKER_RESOURCE, name)) for name in names}
        return {name: values for name, values in configs.items() if values}

    def forward(self, request: AnyRequest, version: int, now: float) -> Forwarded:
        """Send a request to the controller, which may respond at once."""
        forwarded = Forwarded()

        def answer(response: ForwardedResponse | None) -> None:
            if response is None:
                forwarded.answer(None, ErrorCode.BROKER_NOT_AVAILABLE)
            else:
                forwarded.answer(response.response, response.error_code)
            self.changed(forwarded)

        self._forward(ForwardedRequest(request=request, version=version), answer, now)
        return forwarded

    def apply(self, delta: MetadataDelta) -> None:
        """Apply a change of the metadata, after the replicas have taken their roles."""
        self.metadata_offset = self._node.image.offset
        self.topic_defaults = self._node.replicas.topic_defaults
        for node_id in delta.brokers:
            self._update_broker(node_id)
        self._replicated_topics.apply(delta)
        for topic in delta.deleted_topics.values():
            for index in topic.partitions:
                self.changed(TopicPartition(topic.name, index))

    def _update_broker(self, node_id: int) -> None:
        """Show clients a broker's addresses while it is not fenced."""
        broker = self._node.image.brokers.get(node_id)
        self.nodes.pop(node_id, None)
        for addresses in self.other_addresses.values():
            addresses.pop(node_id, None)
        if broker is None:
            self.broker_ids.discard(node_id)
            return
        self.broker_ids.add(node_id)
        if broker.fenced:
            return
        for endpoint in broker.endpoints:
            node = Node(node_id, endpoint.host, endpoint.port)
            self.nodes.setdefault(node_id, node)
            self.other_addresses.setdefault(endpoint.listener, {})[node_id] = node

    def next_producer_id(self) -> int:
        """Return a producer id that was never used before; see `ProducerIdBlocks.next_id`."""
        return self._node.producer_ids.next_id()

    def take_changed(self) -> set[Hashable]:
        """Return what has changed since the last call."""
        changed = super().take_changed()
        for key in self._node.replicas.take_changed():
            topic = self.topic_by_id(key.topic_id)
            if topic is not None:
                changed.add(TopicPartition(topic.name, key.partition))
        return changed
