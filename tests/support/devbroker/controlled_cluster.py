"""A controller, with brokers that are nothing but registrations and heartbeats."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.controller.controller import Controller
from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
from spark_kafka_sink.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponsePartition,
    BrokerState,
)
from spark_kafka_sink.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from spark_kafka_sink.protocol.messages.elect_leaders import (
    PREFERRED,
    ElectLeadersRequest,
    TopicPartitions,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
    from spark_kafka_sink.devbroker.metadata.records import PartitionRecord

CLUSTER_ID = "a-cluster"


class ControlledCluster:
    """Some brokers, all of them active in the beginning, and the controller of broker 0."""

    def __init__(
        self, brokers: int = 3, *, settings: ControllerSettings | None = None, seed: int = 1
    ) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.settings = settings
        self.quorum = MetadataQuorum()
        self.incarnations: dict[int, uuid.UUID] = {}
        self.epochs: dict[int, int] = {}
        #: The brokers that have asked to shut down, which they do not take back.
        self.stopping: set[int] = set()
        self._ids = itertools.count(1)
        self.controller = self.new_controller(0)
        self.controller.tick(self.now)
        for node_id in range(brokers):
            self.start(node_id)

    def new_controller(self, node_id: int) -> Controller:
        """Return the controller of another broker, on standby."""
        self.quorum.start(node_id)
        return Controller(
            node_id,
            CLUSTER_ID,
            self.quorum,
            new_uuid=self.new_uuid,
            rng=self.rng,
            settings=self.settings,
        )

    def new_uuid(self) -> uuid.UUID:
        """Return the next id."""
        return uuid.UUID(int=next(self._ids))

    # Brokers.

    def register(
        self, node_id: int, *, previous_epoch: int = -1, cluster_id: str = CLUSTER_ID
    ) -> BrokerRegistrationResponse:
        """Register a new process of a broker."""
        incarnation = self.new_uuid()
        response = self.register_again(
            node_id, incarnation, previous_epoch=previous_epoch, cluster_id=cluster_id
        )
        if not response.error_code:
            self.incarnations[node_id] = incarnation
            self.epochs[node_id] = response.broker_epoch
            self.stopping.discard(node_id)
        return response

    def register_again(
        self,
        node_id: int,
        incarnation: uuid.UUID,
        *,
        previous_epoch: int = -1,
        cluster_id: str = CLUSTER_ID,
    ) -> BrokerRegistrationResponse:
        """Register a process of a broker, which may be registered already."""
        request = BrokerRegistrationRequest(
            broker_id=node_id,
            cluster_id=cluster_id,
            incarnation_id=incarnation,
            listeners=(
                Listener(name="EXTERNAL", host="h", port=9000 + node_id, security_protocol=0),
            ),
            rack="r",
            previous_broker_epoch=previous_epoch,
        )
        return self.controller.handle(request, self.now)

    def heartbeat(
        self,
        node_id: int,
        *,
        want_fence: bool = False,
        want_shut_down: bool = False,
        offset: int | None = None,
        epoch: int | None = None,
    ) -> BrokerHeartbeatResponse:
        """Send a heartbeat, by default of a broker that has read all metadata."""
        if want_shut_down:
            self.stopping.add(node_id)
        request = BrokerHeartbeatRequest(
            broker_id=node_id,
            broker_epoch=self.epochs[node_id] if epoch is None else epoch,
            current_metadata_offset=self.controller.image.offset if offset is None else offset,
            want_fence=want_fence,
            want_shut_down=node_id in self.stopping,
        )
        return self.controller.handle(request, self.now)

    def start(self, node_id: int, *, previous_epoch: int = -1) -> None:
        """Register and unfence a broker."""
        self.register(node_id, previous_epoch=previous_epoch)
        self.heartbeat(node_id)

    def fence(self, *node_ids: int) -> None:
        """Make brokers ask to be fenced, which is what their silence leads to as well."""
        for node_id in node_ids:
            self.heartbeat(node_id, want_fence=True)

    def pass_time(self, seconds: float, *alive: int) -> None:
        """Pass some time, in which some brokers send heartbeats."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for node_id in alive:
                self.heartbeat(node_id)
            self.controller.tick(self.now)

    # Topics.

    def create(self, *assignments: tuple[int, ...], name: str = "t", **settings: str) -> uuid.UUID:
        """Create a topic with these replicas; settings have underscores instead of dots."""
        request = CreateTopicsRequest(
            topics=(
                CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=tuple(
                        CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                        for index, replicas in enumerate(assignments)
                    ),
                    configs=tuple(
                        CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in settings.items()
                    ),
                ),
            )
        )
        (result,) = self.controller.handle(request, self.now).topics
        assert result.error_code == 0, result.error_message
        return result.topic_id

    def partition(self, index: int = 0, name: str = "t") -> PartitionRecord:
        """Return a partition."""
        return self.controller.image.find_topic(name).partitions[index]

    def state(self, index: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return leader, ISR and ELR of a partition."""
        partition = self.partition(index)
        return partition.leader, partition.isr, partition.elr

    def elect(self, index: int = 0, *, election: int = PREFERRED, topic: str = "t") -> int:
        """Elect a leader; return the error code."""
        wanted = TopicPartitions(topic=topic, partitions=(index,))
        request = ElectLeadersRequest(election_type=election, topic_partitions=(wanted,))
        response = self.controller.handle(request, self.now)
        (result,) = response.replica_election_results[0].partition_result
        return response.error_code or result.error_code

    def reassign(
        self, replicas: tuple[int, ...] | None, *, may_change_replication_factor: bool = True
    ) -> int:
        """Move partition 0, or cancel its move; return the error code."""
        partition = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may_change_replication_factor,
            topics=(ReassignableTopic(name="t", partitions=(partition,)),),
        )
        response = self.controller.handle(request, self.now)
        return response.error_code or response.responses[0].partitions[0].error_code

    def alter(
        self, isr: tuple[int, ...], *, sender: int | None = None, version: int = 3, **changes: int
    ) -> AlterPartitionResponsePartition:
        """Request an ISR of partition 0 as its leader would, or differently."""
        partition = self.partition()
        epochs = changes.pop("epochs", None) or self.epochs
        values = {
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "partition_index": 0,
            **changes,
        }
        wish = AlterPartitionRequestPartition(
            new_isr=isr if version < 3 else (),
            new_isr_with_epochs=tuple(
                BrokerState(broker_id=each, broker_epoch=epochs.get(each, -1)) for each in isr
            ),
            **values,
        )
        leader = partition.leader if sender is None else sender
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self.epochs[leader],
            topics=(AlterPartitionRequestTopic(topic_id=partition.topic_id, partitions=(wish,)),),
        )
        response = self.controller.handle(request, self.now, version)
        assert response.error_code == 0
        return response.topics[0].partitions[0]
