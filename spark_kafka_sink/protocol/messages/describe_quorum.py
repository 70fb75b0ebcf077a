"""DescribeQuorum: the controllers that replicate the cluster's metadata (KIP-595).

Version 1 adds when a replica was in sync (KIP-836), 2 the addresses of controllers and the ids of
their directories (KIP-853).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class RequestedPartitionData:
    """A partition to describe."""

    partition_index: int = field(INT32)


@message
class RequestedTopicData:
    """Partitions of one topic."""

    topic_name: str = field(STRING)
    partitions: tuple[RequestedPartitionData, ...] = field(array(RequestedPartitionData))


@message
class DescribeQuorumRequest(ApiRequest["DescribeQuorumResponse"]):
    """A request about partition 0 of __cluster_metadata, which a broker forwards."""

    api_key = ApiKey.DESCRIBE_QUORUM
    versions = VersionRange(0, 2)

    topics: tuple[RequestedTopicData, ...] = field(array(RequestedTopicData))


@message
class ReplicaState:
    """How far a replica of the metadata is."""

    replica_id: int = field(INT32)
    replica_directory_id: Uuid = field(UUID, versions="2+", default=ZERO_UUID)
    #: -1 if it is unknown.
    log_end_offset: int = field(INT64)
    #: When it last fetched, in milliseconds since 1970; -1 for the leader, or if it is unknown.
    last_fetch_timestamp: int = field(INT64, versions="1+", ignorable=True, default=-1)
    #: When it last had all records; -1 if it is unknown.
    last_caught_up_timestamp: int = field(INT64, versions="1+", ignorable=True, default=-1)


@message
class PartitionData:
    """The replicas of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="2+", nullable="2+", ignorable=True, default=None
    )
    #: -1 if it is unknown.
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    high_watermark: int = field(INT64)
    #: The controllers.
    current_voters: tuple[ReplicaState, ...] = field(array(ReplicaState))
    #: The brokers that are not controllers.
    observers: tuple[ReplicaState, ...] = field(array(ReplicaState))


@message
class TopicData:
    """The partitions of one topic."""

    topic_name: str = field(STRING)
    partitions: tuple[PartitionData, ...] = field(array(PartitionData))


@message
class Listener:
    """An address of a controller."""

    name: str = field(STRING, versions="2+")
    host: str = field(STRING, versions="2+")
    port: int = field(UINT16, versions="2+")


@message
class Node:
    """A controller."""

    node_id: int = field(INT32, versions="2+")
    listeners: tuple[Listener, ...] = field(array(Listener), versions="2+")


@message
class DescribeQuorumResponse(ApiResponse, request=DescribeQuorumRequest):
    """A response with the state of the metadata's replicas."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="2+", nullable="2+", ignorable=True, default=None
    )
    topics: tuple[TopicData, ...] = field(array(TopicData))
    nodes: tuple[Node, ...] = field(array(Node), versions="2+", default=())
