"""Metadata: the brokers, and the topics with their partitions and leaders.

From version 1 on an empty list of topics requests none, and null requests all; in version 0 an
empty list requests all. Version 4 adds the switch for auto-creation, 7 leader epochs, 8 authorized
operations, 9 is flexible, 10 adds topic ids (and from 12 on topics can be requested by id), 13 an
error code for the whole response.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *

#: The authorized operations were not requested, or are unknown.
UNKNOWN_OPERATIONS = -(2**31)


@message
class MetadataRequestTopic:
    """A topic, by name or (from version 12 on) by topic id."""

    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    name: str | None = field(STRING, nullable="10+")


@message
class MetadataRequest(ApiRequest["MetadataResponse"]):
    """A request to any broker."""

    api_key = ApiKey.METADATA
    versions = VersionRange(0, 13)

    #: None requests all topics.
    topics: tuple[MetadataRequestTopic, ...] | None = field(
        array(MetadataRequestTopic), nullable="1+"
    )
    allow_auto_topic_creation: bool = field(BOOL, versions="4+", default=True)
    include_cluster_authorized_operations: bool = field(BOOL, versions="8-10", default=False)
    include_topic_authorized_operations: bool = field(BOOL, versions="8+", default=False)


@message
class MetadataResponseBroker:
    """A broker's id and advertised address."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, versions="1+", nullable="1+", ignorable=True, default=None)


@message
class MetadataResponsePartition:
    """A partition's leader and replicas, by broker id."""

    error_code: int = field(INT16, default=0)
    partition_index: int = field(INT32)
    #: -1 if there is none.
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, versions="7+", ignorable=True, default=NO_LEADER_EPOCH)
    replica_nodes: tuple[int, ...] = field(array(INT32))
    isr_nodes: tuple[int, ...] = field(array(INT32))
    offline_replicas: tuple[int, ...] = field(
        array(INT32), versions="5+", ignorable=True, default=()
    )


@message
class MetadataResponseTopic:
    """A topic, or the error."""

    error_code: int = field(INT16, default=0)
    #: None if the requested topic id is unknown.
    name: str | None = field(STRING, nullable="12+")
    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    is_internal: bool = field(BOOL, versions="1+", ignorable=True, default=False)
    partitions: tuple[MetadataResponsePartition, ...] = field(array(MetadataResponsePartition))
    #: One bit per operation, as numbered by org.apache.kafka.common.acl.AclOperation.
    topic_authorized_operations: int = field(INT32, versions="8+", default=UNKNOWN_OPERATIONS)


@message
class MetadataResponse(ApiResponse, request=MetadataRequest):
    """A response with the cluster as the responding broker knows it."""

    throttle_time_ms: int = field(INT32, versions="3+", ignorable=True, default=0)
    brokers: tuple[MetadataResponseBroker, ...] = field(array(MetadataResponseBroker))
    cluster_id: str | None = field(
        STRING, versions="2+", nullable="2+", ignorable=True, default=None
    )
    controller_id: int = field(INT32, versions="1+", ignorable=True, default=-1)
    topics: tuple[MetadataResponseTopic, ...] = field(array(MetadataResponseTopic))
    cluster_authorized_operations: int = field(INT32, versions="8-10", default=UNKNOWN_OPERATIONS)
    error_code: int = field(INT16, versions="13+", ignorable=True, default=0)
