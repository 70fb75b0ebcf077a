"""Produce: record batches for partitions, and where they were appended.

8 tells which records of a batch were refused (KIP-467), 9 is flexible, 10 names the new leader of a
partition that has moved (KIP-951), 11 adds TRANSACTION_ABORTABLE, 12 adds partitions to the
transaction by itself (KIP-890). With acks=0 there is no response.
"""

from __future__ import annotations

from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    ApiMessage,
    Records,
    VersionRange,
    array,
    field,
    message,
)


@message
class PartitionProduceData:
    """The record batch for one partition."""

    index: int = field(INT32)
    records: Records | None = field(RECORDS, nullable="0+")


@message
class TopicProduceData:
    """The batches for one topic."""

    name: str = field(STRING)
    partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))


@message
class ProduceRequest(ApiMessage):
    """Batches for the partitions that one broker leads."""

    api_key = ApiKey.PRODUCE
    versions = VersionRange(3, 12)

    transactional_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    #: 0: answer nothing. 1: the leader has it. -1: all in-sync replicas have it.
    acks: int = field(INT16)
    #: How long the broker may wait for the replicas.
    timeout_ms: int = field(INT32)
    topic_data: tuple[TopicProduceData, ...] = field(array(TopicProduceData))


@message
class BatchIndexAndErrorMessage:
    """A record that was refused: its index in the batch, and why."""

    batch_index: int = field(INT32, versions="8+")
    batch_index_error_message: str | None = field(
        STRING, versions="8+", nullable="8+", default=None
    )


@message
class LeaderIdAndEpoch:
    """Who leads a partition, as the answering broker knows it; -1 where it does not."""

    leader_id: int = field(INT32, versions="10+", default=-1)
    leader_epoch: int = field(INT32, versions="10+", default=NO_LEADER_EPOCH)


@message
class PartitionProduceResponse:
    """Where a batch was appended, or why it was not."""

    index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    #: -1 for a duplicate whose original the broker has forgotten, and for an error.
    base_offset: int = field(INT64)
    #: -1 when the records keep their own timestamps.
    log_append_time_ms: int = field(INT64, versions="2+", ignorable=True, default=-1)
    log_start_offset: int = field(INT64, versions="5+", ignorable=True, default=-1)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field(
        array(BatchIndexAndErrorMessage), versions="8+", ignorable=True, default=()
    )
    error_message: str | None = field(
        STRING, versions="8+", nullable="8+", ignorable=True, default=None
    )
    current_leader: LeaderIdAndEpoch = field(
        LeaderIdAndEpoch, versions="10+", tag=0, default=LeaderIdAndEpoch()
    )


@message
class TopicProduceResponse:
    """The answers for one topic."""

    name: str = field(STRING)
    partition_responses: tuple[PartitionProduceResponse, ...] = field(
        array(PartitionProduceResponse)
    )


@message
class NodeEndpoint:
    """The address of a leader named in `current_leader`."""

    node_id: int = field(INT32, versions="10+")
    host: str = field(STRING, versions="10+")
    port: int = field(INT32, versions="10+")
    rack: str | None = field(STRING, versions="10+", nullable="10+", default=None)


@message
class ProduceResponse(ApiMessage):
    """One answer per partition."""

    api_key = ApiKey.PRODUCE
    versions = VersionRange(3, 12)

    responses: tuple[TopicProduceResponse, ...] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), versions="10+", tag=0, default=()
    )
