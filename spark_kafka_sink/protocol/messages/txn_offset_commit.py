"""TxnOffsetCommit: offsets of a consumer group, to be committed with a transaction.

2 adds leader epochs, 3 is flexible and names the group's member (KIP-447), 4 adds
TRANSACTION_ABORTABLE, 5 adds the group to the transaction by itself (KIP-890).
"""

from __future__ import annotations

from spark_kafka_sink.model import NO_LEADER_EPOCH
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)

#: The generation of one who is no member of the group.
UNKNOWN_GENERATION_ID = -1


@message
class TxnOffsetCommitRequestPartition:
    """The next offset to read of one partition."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(
        INT32, versions="2+", ignorable=True, default=NO_LEADER_EPOCH
    )
    committed_metadata: str | None = field(STRING, nullable="0+", default=None)


@message
class TxnOffsetCommitRequestTopic:
    """A topic's partitions."""

    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = field(
        array(TxnOffsetCommitRequestPartition)
    )


@message
class TxnOffsetCommitRequest(ApiMessage):
    """Asks the coordinator of the group."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    versions = VersionRange(0, 5)

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, versions="3+", default=UNKNOWN_GENERATION_ID)
    member_id: str = field(STRING, versions="3+", default="")
    group_instance_id: str | None = field(STRING, versions="3+", nullable="3+", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = field(array(TxnOffsetCommitRequestTopic))


@message
class TxnOffsetCommitResponsePartition:
    """Whether one partition's offset was taken."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class TxnOffsetCommitResponseTopic:
    """A topic's partitions."""

    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = field(
        array(TxnOffsetCommitResponsePartition)
    )


@message
class TxnOffsetCommitResponse(ApiMessage):
    """One answer per partition."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    versions = VersionRange(0, 5)

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = field(array(TxnOffsetCommitResponseTopic))
