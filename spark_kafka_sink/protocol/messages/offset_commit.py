"""OffsetCommit: stores the offsets up to which a consumer group has read.

Version 5 removes the retention time (KIP-211), 6 adds leader epochs (KIP-320), 7 static members
(KIP-345), 8 is flexible, 9 supports the new consumer protocol (KIP-848), 10 uses topic ids only.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class OffsetCommitRequestPartition:
    """The offset to commit for one partition: the next one to read."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, versions="6+", ignorable=True, default=-1)
    committed_metadata: str | None = field(STRING, nullable="0+")


@message
class OffsetCommitRequestTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-9", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[OffsetCommitRequestPartition, ...] = field(
        array(OffsetCommitRequestPartition)
    )


@message
class OffsetCommitRequest(ApiRequest["OffsetCommitResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.OFFSET_COMMIT
    versions = VersionRange(2, 10)

    group_id: str = field(STRING)
    #: -1 if the sender is not a member.
    generation_id_or_member_epoch: int = field(INT32, versions="1+", ignorable=True, default=-1)
    member_id: str = field(STRING, versions="1+", ignorable=True)
    group_instance_id: str | None = field(STRING, versions="7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, versions="2-4", ignorable=True, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...] = field(array(OffsetCommitRequestTopic))


@message
class OffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class OffsetCommitResponseTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-9", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[OffsetCommitResponsePartition, ...] = field(
        array(OffsetCommitResponsePartition)
    )


@message
class OffsetCommitResponse(ApiResponse, request=OffsetCommitRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, versions="3+", ignorable=True, default=0)
    topics: tuple[OffsetCommitResponseTopic, ...] = field(array(OffsetCommitResponseTopic))
