"""A broker of a simulated cluster: its disk, and the times by which it lives.

The broker itself is the package's own.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.controller.replication_control import ControllerSettings
from spark_kafka_sink.devbroker.lifecycle.broker_lifecycle import (
    BrokerIdentity,
    LifecycleSettings,
)
from spark_kafka_sink.devbroker.lifecycle.broker_node import BrokerNode, NodeSettings
from spark_kafka_sink.devbroker.lifecycle.forwarder import ForwardingSettings
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
from spark_kafka_sink.devbroker.metadata.metadata_fetcher import MetadataFetchSettings
from spark_kafka_sink.devbroker.replication.follower_fetcher import ReplicationSettings

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping

    from spark_kafka_sink.devbroker.base.topic_config import TopicConfig
    from spark_kafka_sink.devbroker.metadata.quorum import MetadataQuorum
    from spark_kafka_sink.devbroker.metadata.records import TopicIdPartition

CLUSTER_ID = "simulated"
#: Kafka's times, a sixtieth as long: a schedule of seconds is one of minutes.
SETTINGS = NodeSettings(
    replication=ReplicationSettings(
        replica_lag_time_max=0.5,
        replica_fetch_wait_max=0.25,
        replica_fetch_backoff=0.05,
        replica_socket_timeout=0.5,
        replica_high_watermark_checkpoint_interval=0.3,
    ),
    controller=ControllerSettings(
        broker_session_timeout=0.6,
        leader_imbalance_check_interval=1.0,
        unclean_leader_election_interval=0.5,
    ),
    lifecycle=LifecycleSettings(heartbeat_interval=0.15, session_timeout=0.6, resend_backoff=0.02),
    forwarding=ForwardingSettings(request_timeout=0.5, retry_backoff=0.05),
    metadata=MetadataFetchSettings(max_wait=0.15, request_timeout=0.5, retry_backoff=0.04),
)
LEASE = 0.6


class SimulatedDisk:
    """The logs and high watermarks of a broker, which survive its process.

    Whatever was written survives the process: the operating system has it. A power failure leaves
    what was flushed.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicIdPartition, PartitionLog] = {}
        self.high_watermarks: dict[TopicIdPartition, int] = {}
        #: The epoch of the last process that has opened a log, if that was shut down cleanly.
        self.clean_epoch = -1

    def open(self, partition: TopicIdPartition, _topic: str, config: TopicConfig) -> PartitionLog:
        """Return the log of a partition, as it was left."""
        self.clean_epoch = -1
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

    def truncated(self) -> None:
        """Do nothing: the end of a log is in the log itself."""

    def remove_others(self, partitions: Collection[TopicIdPartition]) -> None:
        """Delete the logs of all other partitions."""
        for partition in self.logs.keys() - set(partitions):
            self.delete(partition)

    def fail(self) -> None:
        """Remove what was not flushed, as a power failure does."""
        for log in self.logs.values():
            log.truncate_as_follower(max(log.recovery_point, log.log_start_offset), 0)


def start_broker(
    node_id: int,
    nodes: Collection[int],
    disk: SimulatedDisk,
    quorum: MetadataQuorum,
    rng: random.Random,
) -> BrokerNode:
    """Return a new process of a broker."""
    identity = BrokerIdentity(
        node_id=node_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=uuid.UUID(int=rng.getrandbits(128)),
        previous_epoch=disk.clean_epoch,
    )
    return BrokerNode(
        identity,
        nodes,
        disk,
        quorum,
        new_uuid=lambda: uuid.UUID(int=rng.getrandbits(128)),
        rng=rng,
        settings=SETTINGS,
    )


def stop_broker(broker: BrokerNode, disk: SimulatedDisk, now: float) -> None:
    """Do what an orderly shutdown does in the end: let another be the controller, and flush."""
    broker.stop(now)
    for log in disk.logs.values():
        log.flush(0)
    if broker.lifecycle.is_registered:
        disk.clean_epoch = broker.lifecycle.epoch
