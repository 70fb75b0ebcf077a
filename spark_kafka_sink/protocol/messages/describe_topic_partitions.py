"""DescribeTopicPartitions: the partitions of topics, page by page (KIP-966)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class TopicRequest:
    """A topic to describe."""

    name: str = field(STRING)


@message
class Cursor:
    """The partition with which a page begins."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


@message
class DescribeTopicPartitionsRequest(ApiRequest["DescribeTopicPartitionsResponse"]):
    """A request to any broker."""

    api_key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    versions = VersionRange(0, 0)

    #: Empty: all topics.
    topics: tuple[TopicRequest, ...] = field(array(TopicRequest))
    response_partition_limit: int = field(INT32, default=2000)
    cursor: Cursor | None = field(Cursor, nullable="0+", default=None)


@message
class DescribeTopicPartitionsResponsePartition:
    """One partition."""

    error_code: int = field(INT16, default=0)
    partition_index: int = field(INT32)
    #: -1 if there is none.
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, ignorable=True, default=-1)
    replica_nodes: tuple[int, ...] = field(array(INT32))
    isr_nodes: tuple[int, ...] = field(array(INT32))
    #: Replicas that are not in sync, but have all committed records.
    eligible_leader_replicas: tuple[int, ...] | None = field(
        array(INT32), nullable="0+", default=None
    )
    last_known_elr: tuple[int, ...] | None = field(array(INT32), nullable="0+", default=None)
    #: Replicas on brokers that do not run.
    offline_replicas: tuple[int, ...] = field(array(INT32), ignorable=True, default=())


@message
class DescribeTopicPartitionsResponseTopic:
    """One topic, or part of it."""

    error_code: int = field(INT16, default=0)
    name: str | None = field(STRING, nullable="0+")
    topic_id: Uuid = field(UUID, ignorable=True, default=ZERO_UUID)
    is_internal: bool = field(BOOL, ignorable=True, default=False)
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = field(
        array(DescribeTopicPartitionsResponsePartition)
    )
    #: One bit per AclOperation.
    topic_authorized_operations: int = field(INT32, default=-2147483648)


@message
class DescribeTopicPartitionsResponse(ApiResponse, request=DescribeTopicPartitionsRequest):
    """One page: topics by name, and where the next page begins."""

    throttle_time_ms: int = field(INT32, ignorable=True, default=0)
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = field(
        array(DescribeTopicPartitionsResponseTopic)
    )
    next_cursor: Cursor | None = field(Cursor, nullable="0+", default=None)
