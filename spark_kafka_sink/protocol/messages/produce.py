"""Produce: record batches for partitions, and where they were appended.

8 tells which records of a batch were refused (KIP-467), 9 is flexible, 10 names the new leader of a
partition that has moved (KIP-951), 11 adds TRANSACTION_ABORTABLE, 12 adds partitions to the
transaction by itself (KIP-890), 13 names topics by their ids alone (KIP-516). With acks=0 there is
no response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.primitives import ZERO_UUID
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    ApiMessage,
    Records,
    VersionRange,
    array,
    field,
    message,
)

if TYPE_CHECKING:
    import uuid

#: The last version that names topics; later ones have nothing but their ids.
LAST_VERSION_WITH_NAMES = 12


@message
class PartitionProduceData:
    """The record batch for one partition."""

    index: int = field(INT32)
    records: Records | None = field(RECORDS, nullable="0+")


@message
class TopicProduceData:
    """The batches for one topic.

    Give both name and id where the id is known: the version decides which of them is sent.
    """

    name: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: uuid.UUID = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
    partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))


@message
class ProduceRequest(ApiMessage):
    """Batches for the partitions that one broker leads."""

    api_key = ApiKey.PRODUCE
    versions = VersionRange(3, 13)

    transactional_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    #: 0: answer nothing. 1: the leader has it. -1: all in-sync replicas have it.
    acks: int = field(INT16)
    #: How long the broker may wait for the replicas.
    timeout_ms: int = field(INT32)
    topic_data: tuple[TopicProduceData, ...] = field(array(TopicProduceData))

    @property
    def highest_version(self) -> int:
        """The highest version that can say what this request says: 13 needs all topics' ids."""
        if all(topic.topic_id != ZERO_UUID for topic in self.topic_data):
            return self.versions.max
        return LAST_VERSION_WITH_NAMES


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
    """The answers for one topic, which has its name in the answer or (from 13 on) its id."""

    name: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: uuid.UUID = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
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
    versions = VersionRange(3, 13)

    responses: tuple[TopicProduceResponse, ...] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), versions="10+", tag=0, default=()
    )


def partition_responses(
    request: ProduceRequest, response: ProduceResponse
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Give the answers by partition, whether the version names topics or has their ids.

    An answer about a topic that was not asked about is left out.
    """
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    return {
        TopicPartition(name, partition.index): partition
        for topic in response.responses
        if (name := topic.name or names.get(topic.topic_id))
        for partition in topic.partition_responses
    }
