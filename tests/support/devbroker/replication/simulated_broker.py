"""A broker of a simulated cluster: its disk, its replicas, and its life beside the controller."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage
from spark_kafka_sink.devbroker.replication.replica_manager import (
    CONTROLLER,
    Envelope,
    ReplicaManager,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tests.support.devbroker.replication.stand_in_controller import (
    MetadataFetch,
    MetadataRecords,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition
    from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
    from spark_kafka_sink.protocol.schema import AnyRequest

#: Correlation ids of requests to the controller that are not about replicas.
_FIRST_OWN_NUMBER = 1 << 30


class SimulatedDisk:
    """The logs and high watermarks of a broker, which survive its process.

    Whatever was written survives: the operating system has it.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicIdPartition, PartitionLog] = {}
        self._high_watermarks: dict[TopicIdPartition, int] = {}

    def open(self, partition: TopicIdPartition, _topic: str, config: TopicConfig) -> PartitionLog:
        """Return the log of a partition, as it was left."""
        log = self.logs.get(partition)
        if log is None:
            log = self.logs[partition] = PartitionLog(config=config)
        log.config = config
        return log

    def delete(self, partition: TopicIdPartition) -> None:
        """Delete the log of a partition."""
        del self.logs[partition]
        self._high_watermarks.pop(partition, None)

    def high_watermark(self, partition: TopicIdPartition) -> int:
        """Return the stored high watermark of a partition."""
        return self._high_watermarks.get(partition, 0)

    def store_high_watermarks(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Store all high watermarks."""
        self._high_watermarks = dict(offsets)


class SimulatedBroker:
    """The process of a broker, from its start until it is killed."""

    def __init__(
        self,
        node_id: int,
        disk: SimulatedDisk,
        incarnation_id: uuid.UUID,
        settings: ReplicationSettings,
        *,
        heartbeat_interval: float,
        patience: float,
    ) -> None:
        self.node_id = node_id
        self.image = MetadataImage()
        self.replicas = ReplicaManager(node_id, disk, self.image, settings=settings)
        self._incarnation_id = incarnation_id
        self._heartbeat_interval = heartbeat_interval
        self._patience = patience
        self._epoch = -1
        self._numbers = itertools.count(_FIRST_OWN_NUMBER)
        #: When to send what next: the registration or a heartbeat, and a fetch of metadata.
        self._heartbeat_at = 0.0
        self._metadata_at = 0.0
        self._metadata_number = -1
        self._applies = False

    @property
    def deadline(self) -> float:
        """When `tick` must be called."""
        return min(self._heartbeat_at, self._metadata_at, self.replicas.deadline)

    def tick(self, now: float) -> list[Envelope]:
        """Do what is due."""
        outgoing: list[Envelope] = []
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_interval
            outgoing.append(self._request(self._register_or_heartbeat()))
        if now >= self._metadata_at:
            self._metadata_at = now + self._patience
            outgoing.append(self._request(MetadataFetch(self.image.offset + 1)))
            self._metadata_number = outgoing[-1].correlation_id
        if now >= self.replicas.deadline:
            outgoing += self.replicas.tick(now)
        return outgoing

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Handle a message."""
        match envelope.message:
            case BrokerRegistrationResponse() as response:
                if response.error_code == ErrorCode.NONE:
                    self._epoch = response.broker_epoch
                    self.replicas.registered(self._epoch)
            case BrokerHeartbeatResponse():
                pass
            case MetadataRecords() as response:
                if envelope.correlation_id == self._metadata_number:
                    self._metadata_at = now + self._heartbeat_interval
                return self._apply(response, now)
            case _:
                return self.replicas.handle(envelope, now)
        return []

    def failed(self, correlation_id: int, now: float) -> list[Envelope]:
        """Handle that a request has not arrived."""
        if correlation_id >= _FIRST_OWN_NUMBER:
            return []
        return self.replicas.failed(correlation_id, now)

    def _request(self, message: AnyRequest | MetadataFetch) -> Envelope:
        return Envelope(self.node_id, CONTROLLER, next(self._numbers), message)

    def _register_or_heartbeat(self) -> BrokerRegistrationRequest | BrokerHeartbeatRequest:
        if self._epoch < 0:
            return BrokerRegistrationRequest(
                broker_id=self.node_id,
                cluster_id="simulated",
                incarnation_id=self._incarnation_id,
                listeners=(),
            )
        return BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self._epoch,
            current_metadata_offset=self.image.offset if self._applies else -1,
        )

    def _apply(self, response: MetadataRecords, now: float) -> list[Envelope]:
        next_offset = self.image.offset + 1
        records = response.records[next_offset - response.offset :]
        if response.offset > next_offset or not records:
            return []
        delta = self.image.apply(records)
        if not self._applies:
            # What an older image says of this broker is not true of this process.
            registered = self.image.brokers.get(self.node_id)
            if registered is None or registered.incarnation_id != self._incarnation_id:
                return []
            self._applies = True
            delta = MetadataDelta(
                partitions=dict.fromkeys(each.id for each in self.image.partitions())
            )
        return self.replicas.apply(delta, now)
