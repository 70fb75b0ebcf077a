"""OffsetForLeaderEpoch: the end offset of a leader epoch (KIP-101, KIP-320).

Version 3 distinguishes replicas from consumers, 4 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class OffsetForLeaderPartition:
    """A partition and the leader epoch to look up."""

    partition: int = field(INT32)
    #: The epoch that the client believes to be current, which the broker checks; -1: unknown.
    current_leader_epoch: int = field(INT32, versions="2+", ignorable=True, default=-1)
    leader_epoch: int = field(INT32)


@message
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[OffsetForLeaderPartition, ...] = field(array(OffsetForLeaderPartition))


@message
class OffsetForLeaderEpochRequest(ApiRequest["OffsetForLeaderEpochResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.OFFSET_FOR_LEADER_EPOCH
    versions = VersionRange(2, 4)

    #: -1 from a consumer, -2 from a debugging tool.
    replica_id: int = field(INT32, versions="3+", ignorable=True, default=-2)
    topics: tuple[OffsetForLeaderTopic, ...] = field(array(OffsetForLeaderTopic))


@message
class EpochEndOffset:
    """The largest epoch not above the requested one, and the first offset after it."""

    error_code: int = field(INT16, default=0)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, versions="1+", ignorable=True, default=-1)
    end_offset: int = field(INT64, default=-1)


@message
class OffsetForLeaderTopicResult:
    """The partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[EpochEndOffset, ...] = field(array(EpochEndOffset))


@message
class OffsetForLeaderEpochResponse(ApiResponse, request=OffsetForLeaderEpochRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, versions="2+", ignorable=True, default=0)
    topics: tuple[OffsetForLeaderTopicResult, ...] = field(array(OffsetForLeaderTopicResult))
