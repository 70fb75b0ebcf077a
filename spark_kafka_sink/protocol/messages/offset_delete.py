"""OffsetDelete: deletes committed offsets of a consumer group (KIP-496)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class OffsetDeleteRequestPartition:
    """A partition whose offset is to be deleted."""

    partition_index: int = field(INT32)


@message
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = field(
        array(OffsetDeleteRequestPartition)
    )


@message
class OffsetDeleteRequest(ApiRequest["OffsetDeleteResponse"]):
    """A request to the group's coordinator."""

    api_key = ApiKey.OFFSET_DELETE
    versions = VersionRange(0, 0)

    group_id: str = field(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = field(array(OffsetDeleteRequestTopic))


@message
class OffsetDeleteResponsePartition:
    """The result for one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class OffsetDeleteResponseTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = field(
        array(OffsetDeleteResponsePartition)
    )


@message
class OffsetDeleteResponse(ApiResponse, request=OffsetDeleteRequest):
    """A response with one result per partition, or an error of the whole group."""

    error_code: int = field(INT16, default=0)
    throttle_time_ms: int = field(INT32, ignorable=True, default=0)
    topics: tuple[OffsetDeleteResponseTopic, ...] = field(array(OffsetDeleteResponseTopic))
