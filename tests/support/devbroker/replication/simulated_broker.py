"""A broker of a simulated cluster: its disk, its replicas, its controller, and how they live.

The process registers with the controller, fetches the metadata log, and sends heartbeats until it
is killed, or the controller lets it shut down. It finds the controller by asking any broker.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.controller.controller import Controller
from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.metadata.image import MetadataDelta, MetadataImage
from spark_kafka_sink.devbroker.metadata.quorum import (
    FetchMetadataRequest,
    FetchMetadataResponse,
)
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings
from spark_kafka_sink.devbroker.replication.replica_manager import (
    CONTROLLER,
    Envelope,
    ReplicaManager,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_partition import AlterPartitionRequest
from spark_kafka_sink.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from spark_kafka_sink.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition

CLUSTER_ID = "simulated"
#: Kafka's times, a sixtieth as long: a schedule of seconds is one of minutes.
SETTINGS = ReplicationSettings(
    replica_lag_time_max=0.5,
    replica_fetch_wait_max=0.25,
    replica_fetch_backoff=0.05,
    replica_socket_timeout=0.5,
    replica_high_watermark_checkpoint_interval=0.3,
)
CONTROLLER_SETTINGS = ControllerSettings(
    broker_session_timeout=0.6,
    leader_imbalance_check_interval=1.0,
    unclean_leader_election_interval=0.5,
)
LEASE = 0.6
HEARTBEAT_INTERVAL = 0.15
#: Correlation ids of requests to the controller that are not about replicas.
_FIRST_OWN_NUMBER = 1 << 30
_OF_THE_CONTROLLER = (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)


class SimulatedDisk:
    """The logs and high watermarks of a broker, which survive its process.

    Whatever was written survives the process: the operating system has it. A power failure leaves
    what was flushed.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicIdPartition, PartitionLog] = {}
        self.high_watermarks: dict[TopicIdPartition, int] = {}
        #: The epoch of the broker, if it was shut down cleanly.
        self.clean_epoch = -1

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
        self.high_watermarks.pop(partition, None)

    def high_watermark(self, partition: TopicIdPartition) -> int:
        """Return the stored high watermark of a partition."""
        return self.high_watermarks.get(partition, 0)

    def store_high_watermarks(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Store all high watermarks."""
        self.high_watermarks = dict(offsets)

    def fail(self) -> None:
        """Remove what was not flushed, as a power failure does."""
        for log in self.logs.values():
            log.truncate_as_follower(max(log.recovery_point, log.log_start_offset), 0)


class SimulatedBroker:
    """The process of a broker, from its start until its end."""

    def __init__(
        self,
        node_id: int,
        nodes: Collection[int],
        disk: SimulatedDisk,
        quorum: MetadataQuorum,
        rng: random.Random,
    ) -> None:
        self.node_id = node_id
        self.image = MetadataImage()
        self.replicas = ReplicaManager(node_id, disk, self.image, settings=SETTINGS)
        self.controller = Controller(
            node_id,
            CLUSTER_ID,
            quorum,
            new_uuid=lambda: uuid.UUID(int=rng.getrandbits(128)),
            rng=rng,
            settings=CONTROLLER_SETTINGS,
        )
        #: Whether it asks the controller to let it go.
        self.is_shutting_down = False
        #: Whether the controller has let it go.
        self.may_stop = False
        self.epoch = -1
        self._disk = disk
        self._previous_epoch = disk.clean_epoch
        disk.clean_epoch = -1
        self._incarnation_id = uuid.UUID(int=rng.getrandbits(128))
        self._numbers = itertools.count(_FIRST_OWN_NUMBER)
        self._nodes = itertools.cycle(sorted(nodes))
        #: The broker that this one takes for the controller.
        self._controller_id = next(self._nodes)
        self._heartbeat_at = 0.0
        self._metadata_at = 0.0
        self._metadata_number = -1
        self._applies = False

    @property
    def deadline(self) -> float:
        """When `tick` must be called."""
        return min(
            self._heartbeat_at,
            self._metadata_at,
            self.replicas.deadline,
            self.controller.deadline,
        )

    def tick(self, now: float) -> list[Envelope]:
        """Do what is due."""
        outgoing: list[Envelope] = []
        if now >= self.controller.deadline:
            self.controller.tick(now)
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + HEARTBEAT_INTERVAL
            outgoing.append(self._request(self._register_or_heartbeat()))
        if now >= self._metadata_at:
            if self._metadata_number >= 0:
                # There was no answer.
                self._controller_id = next(self._nodes)
            self._metadata_at = now + SETTINGS.replica_socket_timeout
            request = FetchMetadataRequest(node_id=self.node_id, offset=self.image.offset + 1)
            outgoing.append(self._request(request))
            self._metadata_number = outgoing[-1].correlation_id
        if now >= self.replicas.deadline:
            outgoing += self.replicas.tick(now)
        return self._addressed(outgoing)

    def handle(self, envelope: Envelope, now: float) -> list[Envelope]:
        """Handle a message."""
        message = envelope.message
        if isinstance(message, FetchMetadataRequest):
            return [envelope.response(self.controller.fetch_metadata(message, now))]
        if isinstance(message, _OF_THE_CONTROLLER):
            return [envelope.response(self.controller.handle(message, now))]
        match message:
            case BrokerRegistrationResponse() as response:
                if response.error_code == ErrorCode.NONE:
                    self.epoch = response.broker_epoch
                    self.replicas.registered(self.epoch)
                return []
            case BrokerHeartbeatResponse() as response:
                if self.is_shutting_down and response.should_shut_down:
                    self.may_stop = True
                return []
            case FetchMetadataResponse() as response:
                outgoing = self._learn(envelope.correlation_id, response, now)
            case _:
                outgoing = self.replicas.handle(envelope, now)
        return self._addressed(outgoing)

    def failed(self, correlation_id: int, now: float) -> list[Envelope]:
        """Handle that a request has not arrived."""
        if correlation_id == self._metadata_number:
            self._metadata_at = now + HEARTBEAT_INTERVAL / 4
        if correlation_id >= _FIRST_OWN_NUMBER:
            return []
        return self._addressed(self.replicas.failed(correlation_id, now))

    def stop(self, now: float) -> None:
        """Do what an orderly shutdown does in the end: let another be the controller, and flush."""
        self.controller.resign(now)
        self.replicas.checkpoint()
        for log in self._disk.logs.values():
            log.flush(0)
        self._disk.clean_epoch = self.epoch

    def _addressed(self, outgoing: list[Envelope]) -> list[Envelope]:
        return [
            each._replace(receiver=self._controller_id) if each.receiver == CONTROLLER else each
            for each in outgoing
        ]

    def _request(self, message: object) -> Envelope:
        return Envelope(self.node_id, CONTROLLER, next(self._numbers), message)

    def _register_or_heartbeat(self) -> BrokerRegistrationRequest | BrokerHeartbeatRequest:
        if self.epoch < 0:
            return BrokerRegistrationRequest(
                broker_id=self.node_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=self._incarnation_id,
                listeners=(),
                previous_broker_epoch=self._previous_epoch,
            )
        return BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self.image.offset if self._applies else -1,
            want_shut_down=self.is_shutting_down,
        )

    def _learn(
        self, correlation_id: int, response: FetchMetadataResponse, now: float
    ) -> list[Envelope]:
        """Apply the fetched metadata, or find out who has them."""
        if correlation_id == self._metadata_number:
            self._metadata_number = -1
            self._metadata_at = now + HEARTBEAT_INTERVAL
            if response.controller_id >= 0:
                self._controller_id = response.controller_id
        next_offset = self.image.offset + 1
        records = response.records[max(0, next_offset - response.offset) :]
        if response.offset > next_offset or not records:
            return []
        delta = self.image.apply(records)
        if not self._applies:
            # What an older image says of this broker is not true of this process.
            registered = self.image.brokers.get(self.node_id)
            if registered is None or registered.incarnation_id != self._incarnation_id:
                return []
            self._applies = True
            partitions = dict.fromkeys(each.id for each in self.image.partitions())
            delta = MetadataDelta(partitions=partitions)
        return self.replicas.apply(delta, now)
