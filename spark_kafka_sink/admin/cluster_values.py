"""The values of `AdminClient` that are about brokers: directories, replicas and controllers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from spark_kafka_sink.config.arguments import number_of, topic_of

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from spark_kafka_sink.errors import KafkaError
    from spark_kafka_sink.model import TopicPartition


class ElectionType(IntEnum):
    """Which replica an election makes the leader of a partition (KIP-460).

    PREFERRED is the first one of the list, if it is in sync. UNCLEAN is any one that is running, if
    there is no leader; the records that it lacks are lost.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.elect_leaders(ElectionType.PREFERRED)
    {}
    """

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, order=True)
class TopicPartitionReplica:
    """The replica of a partition on one broker.

    Raises TypeError for values of a wrong type, and ValueError for numbers that cannot be sent.

    >>> print(TopicPartitionReplica("orders", 0, broker_id=1))
    orders-0 on broker 1
    """

    #: The name of the topic.
    topic: str
    #: The number of the partition.
    partition: int
    #: The broker that has the replica.
    broker_id: int

    def __post_init__(self) -> None:
        topic_of(self.topic)
        number_of(self.partition, "the partition of a TopicPartitionReplica")
        number_of(self.broker_id, "the broker_id of a TopicPartitionReplica")

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """A replica in a directory of a broker.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [directory] = admin.describe_log_dirs([1])[1].values()
    >>> directory.replica_infos[TopicPartition("orders", 0)].size
    0
    """

    #: The size of its log in bytes.
    size: int
    #: How far the end of its log is behind the high watermark or, if it is a copy that is being
    #: made, behind the replica's end.
    offset_lag: int
    #: Whether it is a copy that will replace the replica of another directory.
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """A directory of a broker, and the replicas in there.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     [directory] = admin.describe_log_dirs([1])[1].values()
    >>> directory.error, sorted(directory.replica_infos)[0]
    (None, TopicPartition(topic='orders', partition=0))
    """

    #: Why the directory cannot be used, such as KAFKA_STORAGE_ERROR; None if it can.
    error: KafkaError | None
    #: Its replicas, by partition.
    replica_infos: Mapping[TopicPartition, ReplicaInfo]
    #: The size of the disk in bytes; None if it is unknown, as for brokers before 3.3 (KIP-827).
    total_bytes: int | None
    #: The free bytes of the disk; None if unknown.
    usable_bytes: int | None
    #: Whether no new replicas are placed there (brokers since 4.3, KIP-1066).
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A partition that is moving to other brokers (KIP-455).

    >>> place = TopicPartition("orders", 0)
    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     admin.alter_partition_reassignments({place: [1]})
    ...     admin.list_partition_reassignments().get(place)  # it was there already
    """

    #: All of its replicas, those to add and to remove included.
    replicas: tuple[int, ...]
    #: The brokers that do not have it yet.
    adding_replicas: tuple[int, ...]
    #: The brokers that will not have it any more.
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaState:
    """How far a replica of the cluster's metadata is.

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     quorum = admin.describe_metadata_quorum()
    >>> [voter.replica_id for voter in quorum.voters]
    [1]
    """

    #: The id of the controller or broker.
    replica_id: int
    #: The id of its directory; all zeros if the voters are fixed (KIP-853).
    replica_directory_id: uuid.UUID
    #: The end of its log; None if it is unknown.
    log_end_offset: int | None
    #: When it last fetched, in milliseconds since 1970; None if it is unknown.
    last_fetch_timestamp: int | None
    #: When it last had all of the metadata, in milliseconds since 1970; None if it is unknown.
    last_caught_up_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumInfo:
    """The controllers of a cluster, which replicate its metadata (KIP-836).

    >>> with AdminClient({"bootstrap.servers": "localhost:9092"}) as admin:
    ...     quorum = admin.describe_metadata_quorum()
    >>> quorum.leader_id, quorum.leader_epoch
    (1, 1)
    """

    #: The active controller.
    leader_id: int
    #: How often that has changed.
    leader_epoch: int
    #: The end of what a majority has.
    high_watermark: int
    #: The controllers.
    voters: tuple[QuorumReplicaState, ...]
    #: The brokers that are not controllers.
    observers: tuple[QuorumReplicaState, ...]
    #: The addresses of the controllers, such as `CONTROLLER://10.0.0.7:9093`, by id; empty if the
    #: broker is older than 3.9.
    addresses: Mapping[int, tuple[str, ...]]
