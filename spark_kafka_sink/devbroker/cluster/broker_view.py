"""A cluster that replicates, as one of its brokers knows it: what its handlers see.

It follows the broker's metadata, which may be old. Changes are the controller's: requests for them
are forwarded to it. The coordinators are those of the broker. ACLs, users and quotas are stored
once for all brokers, and change for all of them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.config_changes import ALL_BROKERS
from spark_kafka_sink.devbroker.base.new_topics import coordinator_topic
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.timers import Timers
from spark_kafka_sink.devbroker.base.topic_names import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from spark_kafka_sink.devbroker.cluster.cluster_state import ClusterState, Forwarded, Verification
from spark_kafka_sink.devbroker.cluster.replicated_coordinators import ReplicatedCoordinators
from spark_kafka_sink.devbroker.cluster.replicated_topics import ReplicatedTopics
from spark_kafka_sink.devbroker.groups.group_coordinator import GroupCoordinator
from spark_kafka_sink.devbroker.metadata.envelope import ForwardedRequest
from spark_kafka_sink.devbroker.metadata.records import BROKER_RESOURCE, NO_LEADER, ConfigResource
from spark_kafka_sink.devbroker.transactions.transaction_coordinator import TransactionCoordinator
from spark_kafka_sink.model import Node, TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.cluster.cluster_state import OnMarkers
    from spark_kafka_sink.devbroker.cluster.cluster_store import ClusterStore
    from spark_kafka_sink.devbroker.cluster.replicated_coordinators import CoordinatorWrite
    from spark_kafka_sink.devbroker.lifecycle.broker_cluster import OnResponse
    from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode
    from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
    from spark_kafka_sink.devbroker.metadata.envelope import ForwardedResponse, Response
    from spark_kafka_sink.devbroker.metadata.image import MetadataDelta
    from spark_kafka_sink.devbroker.replication.broker_logs import BrokerLogs
    from spark_kafka_sink.model import ProducerIdAndEpoch
    from spark_kafka_sink.protocol.schema import AnyRequest


class BrokerView(ClusterState):
    """The brokers and topics of a cluster that replicates, by the metadata of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: ClusterStore,
        logs: BrokerLogs,
        node: BrokerNode,
        forward: Callable[[ForwardedRequest, OnResponse, float], None],
    ) -> None:
        """Begin without brokers and topics, and follow the metadata of a broker from now on.

        `logs` are those of the broker, and `forward` passes requests on to the controller.
        """
        # The timers end with the process of the broker, unlike those of the logs.
        super().__init__(settings, Timers(), logs.manager, store)
        self._node = node
        self._forward = forward
        self._replicated = ReplicatedCoordinators(self, node)
        self.transactions = TransactionCoordinator(
            self, self._replicated.logs[TRANSACTION_STATE_TOPIC]
        )
        self.groups = GroupCoordinator(self, self._replicated.logs[GROUP_METADATA_TOPIC])
        self._replicated_topics = ReplicatedTopics(self.topic_index, node.image, node.replicas)
        node.on_metadata = self.apply

    @property
    def controller_id(self) -> int:
        """The broker that this one takes for the controller, -1 for none."""
        return self._node.controller_id

    @property
    def controller_epoch(self) -> int:
        """The epoch of the controller, as far as this broker knows."""
        return self._node.controller_epoch

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

    def apply(self, delta: MetadataDelta, now: float) -> None:
        """Apply a change of the metadata, after the replicas have taken their roles."""
        self.metadata_offset = self._node.image.offset
        self.topic_defaults = self._node.replicas.topic_defaults
        for node_id in delta.brokers:
            self._update_broker(node_id)
        self._replicated_topics.apply(delta)
        self._replicated.apply(delta, now)
        for topic in delta.deleted_topics.values():
            for index in topic.partitions:
                self.changed(TopicPartition(topic.name, index))
        if delta.deleted_topics:
            self.groups.delete_topics({topic.name for topic in delta.deleted_topics.values()})

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

    # Coordinators.

    def prepare_coordinators(self, topic: str, now: float) -> None:
        """Create the partitions of an internal topic, if there are none (AutoTopicCreation)."""
        if self.topic(topic) is None:
            self.forward(coordinator_topic(topic, len(self.broker_ids)), 0, now)

    def group_coordinator(self, group_id: str) -> int:
        """Return the broker that coordinates a group, -1 while there is none."""
        return self._replicated.leader(GROUP_METADATA_TOPIC, group_id)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, -1 while there is none."""
        return self._replicated.leader(TRANSACTION_STATE_TOPIC, transactional_id)

    def check_group_coordinator(self, group_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates the group."""
        self._check_loaded(GROUP_METADATA_TOPIC, group_id)

    def check_transaction_coordinator(self, transactional_id: str) -> None:
        """Raise RefusedError with NOT_COORDINATOR unless this broker coordinates the id."""
        self._check_loaded(TRANSACTION_STATE_TOPIC, transactional_id)

    def _check_loaded(self, topic: str, key: str) -> None:
        if not self._replicated.is_loaded(topic, key):
            raise RefusedError(
                ErrorCode.NOT_COORDINATOR,
                f"the coordinator of {key!r} is broker {self._replicated.leader(topic, key)}",
            )

    def coordinator_epoch(self, transactional_id: str) -> int:
        """Return the leader epoch of the partition that a transactional id maps to."""
        log = self._replicated.logs[TRANSACTION_STATE_TOPIC]
        partition = self._node.image.find_partition(log.key_of(transactional_id))
        return NO_LEADER if partition is None else partition.leader_epoch

    def take_writes(self) -> list[CoordinatorWrite]:
        """Return what the coordinators have written since the last call."""
        return self._replicated.take_writes()

    def check_replicated(self, write: CoordinatorWrite) -> ErrorCode | None:
        """Return the outcome of a coordinator's write; None to wait."""
        return self._node.replicas.check_replicated(*write)

    def watched(self, writes: Iterable[CoordinatorWrite]) -> frozenset[TopicPartition]:
        """Return the partitions whose changes writes wait for."""
        topics = self._node.image.topics
        return frozenset(
            TopicPartition(topics[write.key.topic_id].name, write.key.partition)
            for write in writes
            if write.key.topic_id in topics
        )

    def write_markers(
        self,
        transactional_id: str,
        partitions: Collection[TopicPartition],
        marker: TransactionMarker,
        written: OnMarkers,
    ) -> None:
        """Write a transaction's markers once its end is replicated; then call `written`."""
        self._replicated.write_markers(transactional_id, partitions, marker, written)

    def send_markers(self, now: float) -> None:
        """Send the markers that have waited until a transaction's end was replicated."""
        self._replicated.send_markers(now)

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        adds: bool,
        now: float,
    ) -> Verification:
        """Add partitions to a transaction or verify them, at the coordinator of its id."""
        verification = Verification()
        coordinator = self.transaction_coordinator(transactional_id)
        if coordinator == NO_LEADER:
            verification.codes = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return verification

        def answered(response: Response | None, _: float) -> None:
            verification.codes = _codes(response, partitions)
            self.changed(verification)

        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            verify_only=not adds,
            topics=tuple(
                AddPartitionsToTxnTopic(name=name, partitions=tuple(indexes))
                for name, indexes in topics.items()
            ),
        )
        request = AddPartitionsToTxnRequest(transactions=(transaction,))
        self._node.peers.ask(coordinator, request, answered, now)
        return verification


def _codes(
    response: Response | None, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return what the coordinator says of partitions."""
    if not isinstance(response, AddPartitionsToTxnResponse):
        return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
    if response.error_code != ErrorCode.NONE:
        return dict.fromkeys(partitions, ErrorCode(response.error_code))
    return {
        TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for result in topic.results_by_partition
    }
