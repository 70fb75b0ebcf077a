"""OffsetFetch: returns the committed offsets of consumer groups.

Version 2 can request all partitions (null), 5 adds leader epochs (KIP-320), 6 is flexible, 7 can
require offsets that no open transaction may change (KIP-447), 8 supports several groups (KIP-709),
9 supports the new consumer protocol (KIP-848), 10 uses topic ids only. Up to version 7 the single
group and its offsets are fields of the messages themselves.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class OffsetFetchRequestTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-7")
    partition_indexes: tuple[int, ...] = field(array(INT32), versions="0-7")


@message
class OffsetFetchRequestTopics:
    """The partitions of one topic."""

    name: str = field(STRING, versions="8-9", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    partition_indexes: tuple[int, ...] = field(array(INT32), versions="8+")


@message
class OffsetFetchRequestGroup:
    """A group and the requested partitions."""

    group_id: str = field(STRING, versions="8+")
    member_id: str | None = field(
        STRING, versions="9+", nullable="9+", ignorable=True, default=None
    )
    member_epoch: int = field(INT32, versions="9+", ignorable=True, default=-1)
    #: None: all partitions with an offset of the group.
    topics: tuple[OffsetFetchRequestTopics, ...] | None = field(
        array(OffsetFetchRequestTopics), versions="8+", nullable="8+"
    )


@message
class OffsetFetchRequest(ApiRequest["OffsetFetchResponse"]):
    """A request to the groups' coordinator."""

    api_key = ApiKey.OFFSET_FETCH
    versions = VersionRange(1, 10)

    group_id: str = field(STRING, versions="0-7", default="")
    #: None: all partitions with an offset of the group.
    topics: tuple[OffsetFetchRequestTopic, ...] | None = field(
        array(OffsetFetchRequestTopic), versions="0-7", nullable="2-7", default=()
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = field(
        array(OffsetFetchRequestGroup), versions="8+", default=()
    )
    require_stable: bool = field(BOOL, versions="7+", default=False)


@message
class OffsetFetchResponsePartition:
    """The committed offset of one partition; -1 if there is none."""

    partition_index: int = field(INT32, versions="0-7")
    committed_offset: int = field(INT64, versions="0-7")
    committed_leader_epoch: int = field(INT32, versions="5-7", ignorable=True, default=-1)
    metadata: str | None = field(STRING, versions="0-7", nullable="0-7")
    error_code: int = field(INT16, versions="0-7", default=0)


@message
class OffsetFetchResponseTopic:
    """The partitions of one topic."""

    name: str = field(STRING, versions="0-7")
    partitions: tuple[OffsetFetchResponsePartition, ...] = field(
        array(OffsetFetchResponsePartition), versions="0-7"
    )


@message
class OffsetFetchResponsePartitions:
    """The committed offset of one partition; -1 if there is none."""

    partition_index: int = field(INT32, versions="8+")
    committed_offset: int = field(INT64, versions="8+")
    committed_leader_epoch: int = field(INT32, versions="8+", ignorable=True, default=-1)
    metadata: str | None = field(STRING, versions="8+", nullable="8+")
    error_code: int = field(INT16, versions="8+", default=0)


@message
class OffsetFetchResponseTopics:
    """The partitions of one topic."""

    name: str = field(STRING, versions="8-9", ignorable=True, default="")
    topic_id: Uuid = field(UUID, versions="10+", ignorable=True, default=ZERO_UUID)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = field(
        array(OffsetFetchResponsePartitions), versions="8+"
    )


@message
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: str = field(STRING, versions="8+")
    topics: tuple[OffsetFetchResponseTopics, ...] = field(
        array(OffsetFetchResponseTopics), versions="8+"
    )
    error_code: int = field(INT16, versions="8+", default=0)


@message
class OffsetFetchResponse(ApiResponse, request=OffsetFetchRequest):
    """A response with the committed offsets."""

    throttle_time_ms: int = field(INT32, versions="3+", ignorable=True, default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = field(
        array(OffsetFetchResponseTopic), versions="0-7", default=()
    )
    error_code: int = field(INT16, versions="2-7", ignorable=True, default=0)
    groups: tuple[OffsetFetchResponseGroup, ...] = field(
        array(OffsetFetchResponseGroup), versions="8+", default=()
    )
