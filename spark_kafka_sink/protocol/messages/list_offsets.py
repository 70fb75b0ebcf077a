"""ListOffsets: the offset for a timestamp, or the first or next offset of a partition.

Version 2 adds the isolation level, 4 leader epochs (KIP-320), 6 is flexible, 7 finds the record
with the highest timestamp (KIP-734), 8 and 9 support tiered storage (KIP-405, KIP-1005), 10 adds a
timeout (KIP-1075).
"""

from __future__ import annotations

from spark_kafka_sink.model import NO_LEADER_EPOCH, UNKNOWN_OFFSET
from spark_kafka_sink.protocol.schema import *

#: In place of a timestamp: the next offset of the partition.
LATEST_TIMESTAMP = -1
#: In place of a timestamp: the first offset of the partition.
EARLIEST_TIMESTAMP = -2
#: In place of a timestamp: the record with the highest one; from version 7 on.
MAX_TIMESTAMP = -3
#: In place of a timestamp: the first offset on the broker's own disk; from version 8 on.
EARLIEST_LOCAL_TIMESTAMP = -4
FIRST_VERSION_WITH_EARLIEST_LOCAL = 8


@message
class ListOffsetsPartition:
    """A partition and the timestamp to look up."""

    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, versions="4+", ignorable=True, default=NO_LEADER_EPOCH)
    #: Milliseconds since 1970, or one of the constants above.
    timestamp: int = field(INT64)


@message
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = field(array(ListOffsetsPartition))


@message
class ListOffsetsRequest(ApiRequest["ListOffsetsResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.LIST_OFFSETS
    versions = VersionRange(1, 10)

    #: A follower's broker id; -1 for a client.
    replica_id: int = field(INT32, default=-1)
    #: 0: up to the high watermark. 1: up to the last stable offset.
    isolation_level: int = field(INT8, versions="2+", default=0)
    topics: tuple[ListOffsetsTopic, ...] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(INT32, versions="10+", ignorable=True, default=0)


@message
class ListOffsetsPartitionResponse:
    """The timestamp and offset found in one partition; -1 if there is none."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)
    timestamp: int = field(INT64, versions="1+", default=-1)
    offset: int = field(INT64, versions="1+", default=UNKNOWN_OFFSET)
    leader_epoch: int = field(INT32, versions="4+", default=NO_LEADER_EPOCH)


@message
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = field(
        array(ListOffsetsPartitionResponse)
    )


@message
class ListOffsetsResponse(ApiResponse, request=ListOffsetsRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, versions="2+", ignorable=True, default=0)
    topics: tuple[ListOffsetsTopicResponse, ...] = field(array(ListOffsetsTopicResponse))
