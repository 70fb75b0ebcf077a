"""Produce: appends record batches to partitions and returns their offsets.

Version 8 reports which records of a batch were rejected (KIP-467), 9 is flexible, 10 reports the
new leader of a partition that has moved (KIP-951), 11 adds TRANSACTION_ABORTABLE, 12 adds
partitions to the transaction implicitly (KIP-890), 13 uses topic ids only (KIP-516). With acks=0
there is no response.
"""

from __future__ import annotations

from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.schema import *

#: The last version with topic names; later ones have only topic ids.
LAST_VERSION_WITH_NAMES = 12


@message
class PartitionProduceData:
    """The record batch for one partition."""

    index: int = field(INT32)
    records: Records | None = field(RECORDS, nullable="0+")


@message
class TopicProduceData:
    """The batches for one topic.

    Pass the name, and also the topic id if it is known: the version decides which one is sent.
    """

    name: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
    partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))


@message
class ProduceRequest(ApiRequest["ProduceResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.PRODUCE
    versions = VersionRange(3, 13)

    transactional_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    #: 0: no response. 1: the leader has appended the batches. -1: all in-sync replicas have.
    acks: int = field(INT16)
    #: How long the broker may wait for the in-sync replicas.
    timeout_ms: int = field(INT32)
    topic_data: tuple[TopicProduceData, ...] = field(array(TopicProduceData))

    @property
    def highest_version(self) -> int:
        """The highest version that can represent this request: 13 needs all topic ids."""
        if ZERO_UUID.int in [topic.topic_id.int for topic in self.topic_data]:
            return LAST_VERSION_WITH_NAMES
        return self.versions.max


@message
class BatchIndexAndErrorMessage:
    """A rejected record's index in the batch, and the reason."""

    batch_index: int = field(INT32, versions="8+")
    batch_index_error_message: str | None = field(
        STRING, versions="8+", nullable="8+", default=None
    )


@message
class LeaderIdAndEpoch:
    """The leader of a partition as the responding broker knows it; -1 if unknown."""

    leader_id: int = field(INT32, versions="10+", default=-1)
    leader_epoch: int = field(INT32, versions="10+", default=NO_LEADER_EPOCH)


@message
class PartitionProduceResponse:
    """The offset at which a batch was appended, or the error."""

    index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    #: -1 for an error, and for a duplicate whose original batch the broker no longer remembers.
    base_offset: int = field(INT64)
    #: -1 if the records keep their own timestamps.
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
    """The results for one topic, by name or (from version 13 on) by topic id."""

    name: str = field(STRING, versions="0-12", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="13+", ignorable=True, default=ZERO_UUID)
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
class ProduceResponse(ApiResponse, request=ProduceRequest):
    """A response with one result per partition."""

    responses: tuple[TopicProduceResponse, ...] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, versions="1+", ignorable=True, default=0)
    node_endpoints: tuple[NodeEndpoint, ...] = field(
        array(NodeEndpoint), versions="10+", tag=0, default=()
    )


def partition_responses(
    request: ProduceRequest, response: ProduceResponse
) -> dict[TopicPartition, PartitionProduceResponse]:
    """Return the results by partition, whether the version uses topic names or ids.

    A result for a topic that is not in the request is ignored.
    """
    names = {topic.topic_id: topic.name for topic in request.topic_data}
    return {
        TopicPartition(name, partition.index): partition
        for topic in response.responses
        if (name := topic.name or names.get(topic.topic_id))
        for partition in topic.partition_responses
    }
