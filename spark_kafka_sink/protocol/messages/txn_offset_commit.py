"""TxnOffsetCommit: commits offsets of a consumer group as part of a transaction.

Version 2 adds leader epochs, 3 is flexible and adds the group member (KIP-447), 4 adds
TRANSACTION_ABORTABLE, 5 adds the group to the transaction implicitly (KIP-890), 6 has topic ids
instead of names (KIP-1319).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *

#: The generation of a sender that is not a member of the group.
UNKNOWN_GENERATION_ID = -1


@message
class TxnOffsetCommitRequestPartition:
    """The offset to commit for one partition: the next one to read."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(
        INT32, versions="2+", ignorable=True, default=NO_LEADER_EPOCH
    )
    committed_metadata: str | None = field(STRING, nullable="0+", default=None)


@message
class TxnOffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-5", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="6+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = field(
        array(TxnOffsetCommitRequestPartition)
    )


@message
class TxnOffsetCommitRequest(ApiRequest["TxnOffsetCommitResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    versions = VersionRange(0, 6)

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id_or_member_epoch: int = field(INT32, versions="3+", default=UNKNOWN_GENERATION_ID)
    member_id: str = field(STRING, versions="3+", default="")
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = field(array(TxnOffsetCommitRequestTopic))


@message
class TxnOffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class TxnOffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-5", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="6+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = field(
        array(TxnOffsetCommitResponsePartition)
    )


@message
class TxnOffsetCommitResponse(ApiResponse, request=TxnOffsetCommitRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = field(array(TxnOffsetCommitResponseTopic))
