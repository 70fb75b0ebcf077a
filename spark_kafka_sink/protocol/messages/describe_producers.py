"""DescribeProducers: the idempotent and transactional producers of partitions (KIP-664)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class TopicRequest:
    """The partitions of one topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@message
class DescribeProducersRequest(ApiRequest["DescribeProducersResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.DESCRIBE_PRODUCERS
    versions = VersionRange(0, 0)

    topics: tuple[TopicRequest, ...] = field(array(TopicRequest))


@message
class ProducerState:
    """The state of one producer in one partition."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    #: The timestamp of its last batch or marker, in milliseconds since 1970.
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    #: The first offset of its open transaction; -1 if there is none.
    current_txn_start_offset: int = field(INT64, default=-1)


@message
class PartitionResponse:
    """The producers of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: tuple[ProducerState, ...] = field(array(ProducerState))


@message
class TopicResponse:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[PartitionResponse, ...] = field(array(PartitionResponse))


@message
class DescribeProducersResponse(ApiResponse, request=DescribeProducersRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TopicResponse, ...] = field(array(TopicResponse))
