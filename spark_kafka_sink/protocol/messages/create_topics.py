"""CreateTopics: creates topics, with partitions, replicas and settings.

Version 4 lets the broker choose the number of partitions and replicas (KIP-464), 5 is flexible and
returns the resulting settings (KIP-525), 6 may be throttled (KIP-599), 7 returns the topic id.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class CreatableReplicaAssignment:
    """The replicas of one partition, the preferred leader first."""

    partition_index: int = field(INT32)
    broker_ids: tuple[int, ...] = field(array(INT32))


@message
class CreatableTopicConfig:
    """A setting of a new topic."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@message
class CreatableTopic:
    """A topic to create."""

    name: str = field(STRING)
    #: -1: the broker's default, or the number of `assignments`.
    num_partitions: int = field(INT32)
    #: -1: the broker's default, or the number of assigned brokers.
    replication_factor: int = field(INT16)
    assignments: tuple[CreatableReplicaAssignment, ...] = field(
        array(CreatableReplicaAssignment), default=()
    )
    configs: tuple[CreatableTopicConfig, ...] = field(array(CreatableTopicConfig), default=())


@message
class CreateTopicsRequest(ApiRequest["CreateTopicsResponse"]):
    """A request for the controller, which any broker forwards."""

    api_key = ApiKey.CREATE_TOPICS
    versions = VersionRange(2, 7)

    topics: tuple[CreatableTopic, ...] = field(array(CreatableTopic))
    timeout_ms: int = field(INT32, default=60_000)
    #: Only check the request; create nothing.
    validate_only: bool = field(BOOL, versions="1+", default=False)


@message
class CreatableTopicConfigs:
    """A setting of a created topic."""

    name: str = field(STRING, versions="5+")
    value: str | None = field(STRING, versions="5+", nullable="5+")
    read_only: bool = field(BOOL, versions="5+")
    #: As numbered by org.apache.kafka.common.requests.DescribeConfigsResponse.ConfigSource.
    config_source: int = field(INT8, versions="5+", ignorable=True, default=-1)
    is_sensitive: bool = field(BOOL, versions="5+")


@message
class CreatableTopicResult:
    """The result for one topic."""

    name: str = field(STRING)
    topic_id: Uuid = field(UUID, versions="7+", ignorable=True, default=ZERO_UUID)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(
        STRING, versions="1+", nullable="0+", ignorable=True, default=None
    )
    #: The reason why `configs` is None.
    topic_config_error_code: int = field(INT16, versions="5+", tag=0, ignorable=True, default=0)
    num_partitions: int = field(INT32, versions="5+", ignorable=True, default=-1)
    replication_factor: int = field(INT16, versions="5+", ignorable=True, default=-1)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(
        array(CreatableTopicConfigs), versions="5+", nullable="5+", ignorable=True, default=()
    )


@message
class CreateTopicsResponse(ApiResponse, request=CreateTopicsRequest):
    """A response with one result per topic."""

    throttle_time_ms: int = field(INT32, versions="2+", ignorable=True, default=0)
    topics: tuple[CreatableTopicResult, ...] = field(array(CreatableTopicResult))
