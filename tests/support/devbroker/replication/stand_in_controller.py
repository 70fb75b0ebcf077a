"""A controller in a few lines: it is always there, and elects in-sync replicas only.

Brokers whose heartbeats stop are fenced; a partition keeps its last in-sync replica. It answers the
real messages of brokers, so that the cores of replication are tested without those of the real
controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.metadata.image import MetadataImage
from spark_kafka_sink.devbroker.metadata.records import (
    NO_LEADER,
    BrokerChange,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    RegisterBroker,
    TopicIdPartition,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.devbroker.replication.replica_manager import Envelope


class MetadataFetch(NamedTuple):
    """A request for the records of the metadata log from an offset on."""

    offset: int


class MetadataRecords(NamedTuple):
    """The records from an offset on."""

    offset: int
    records: tuple[MetadataRecord, ...]


class StandInController:
    """The controller of a simulated cluster."""

    def __init__(self, session_timeout: float, *, unclean: bool = False) -> None:
        self.records: list[MetadataRecord] = []
        self.image = MetadataImage()
        self._session_timeout = session_timeout
        #: Whether a replica that is not in sync may lead if no other can.
        self._unclean = unclean
        self._heard_at: dict[int, float] = {}

    def append(self, *records: MetadataRecord) -> None:
        """Append to the metadata log."""
        self.records += records
        self.image.apply(records)

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Respond to a broker."""
        match envelope.message:
            case BrokerRegistrationRequest() as request:
                epoch = self._register(request.broker_id, request.incarnation_id, now)
                answer = BrokerRegistrationResponse(broker_epoch=epoch)
            case BrokerHeartbeatRequest() as request:
                answer = self._heartbeat(request, now)
            case MetadataFetch(offset):
                answer = MetadataRecords(offset, tuple(self.records[offset:]))
            case AlterPartitionRequest() as request:
                answer = self._alter(request)
        return [envelope.response(answer)]

    def tick(self, now: float) -> None:
        """Fence the brokers that have not been heard of."""
        for node_id, broker in list(self.image.brokers.items()):
            silent = now - self._heard_at.get(node_id, now) > self._session_timeout
            if silent and not broker.fenced:
                self._change_broker(node_id, fenced=True)

    def elect(self, key: TopicIdPartition, node_id: int) -> None:
        """Move the leadership to a replica, if it is in sync and active."""
        partition = self.image.find_partition(key)
        if node_id in partition.isr and self.image.is_active(node_id):
            self._change(partition, leader=node_id)

    def _register(self, node_id: int, incarnation_id: uuid.UUID, now: float) -> int:
        known = self.image.brokers.get(node_id)
        if known is not None and known.incarnation_id == incarnation_id:
            return known.broker_epoch
        if known is not None and not known.fenced:
            self._change_broker(node_id, fenced=True)
        epoch = len(self.records)
        self.append(
            RegisterBroker(node_id=node_id, broker_epoch=epoch, incarnation_id=incarnation_id)
        )
        self._heard_at[node_id] = now
        return epoch

    def _heartbeat(self, request: BrokerHeartbeatRequest, now: float) -> BrokerHeartbeatResponse:
        broker = self.image.brokers.get(request.broker_id)
        if broker is None or broker.broker_epoch != request.broker_epoch:
            return BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        self._heard_at[request.broker_id] = now
        if broker.fenced and request.current_metadata_offset >= broker.broker_epoch:
            self._change_broker(request.broker_id, fenced=False)
        return BrokerHeartbeatResponse(is_fenced=False)

    def _change_broker(self, node_id: int, *, fenced: bool) -> None:
        epoch = self.image.brokers[node_id].broker_epoch
        self.append(BrokerChange(node_id=node_id, broker_epoch=epoch, fenced=fenced))
        for partition in list(self.image.partitions()):
            isr = tuple(each for each in partition.isr if not (fenced and each == node_id))
            if node_id in partition.replicas and (
                node_id in partition.isr or partition.leader == NO_LEADER
            ):
                self._change(partition, isr=isr or partition.isr)

    def _change(
        self,
        partition: PartitionRecord,
        *,
        isr: tuple[int, ...] | None = None,
        leader: int | None = None,
    ) -> None:
        """Record a new ISR, and a leader if the last one cannot go on (or another is wanted)."""
        members = partition.isr if isr is None else isr
        active = self.image.is_active
        if leader is None and partition.leader in members and active(partition.leader):
            leader = partition.leader
        if leader is None:
            leader = next(
                (each for each in partition.replicas if each in members and active(each)),
                NO_LEADER,
            )
        if leader == NO_LEADER and self._unclean:
            leader = next((each for each in partition.replicas if active(each)), NO_LEADER)
            isr = members if leader == NO_LEADER else (leader,)
        self.append(
            PartitionChange(
                topic_id=partition.topic_id,
                partition=partition.partition,
                leader=None if leader == partition.leader else leader,
                isr=None if isr == partition.isr else isr,
            )
        )

    def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        return AlterPartitionResponse(
            topics=tuple(
                AlterPartitionResponseTopic(
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        self._alter_partition(topic.topic_id, each) for each in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _alter_partition(
        self, topic_id: uuid.UUID, wanted: AlterPartitionRequestPartition
    ) -> AlterPartitionResponsePartition:
        key = TopicIdPartition(topic_id, wanted.partition_index)
        partition = self.image.find_partition(key)
        isr = tuple(each.broker_id for each in wanted.new_isr_with_epochs)
        code = ErrorCode.NONE
        if wanted.leader_epoch != partition.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif wanted.partition_epoch != partition.partition_epoch:
            code = ErrorCode.INVALID_UPDATE_VERSION
        elif not all(
            self.image.is_active(each.broker_id)
            and self.image.brokers[each.broker_id].broker_epoch == each.broker_epoch
            for each in wanted.new_isr_with_epochs
        ):
            code = ErrorCode.INELIGIBLE_REPLICA
        if code is not ErrorCode.NONE:
            return AlterPartitionResponsePartition(
                partition_index=wanted.partition_index, error_code=code
            )
        self._change(partition, isr=isr)
        partition = self.image.find_partition(key)
        return AlterPartitionResponsePartition(
            partition_index=wanted.partition_index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=partition.isr,
            partition_epoch=partition.partition_epoch,
        )
