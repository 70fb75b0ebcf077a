"""DeleteRecords: the records of a partition up to an offset go (KIP-107).

2 is flexible.
"""

from __future__ import annotations

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


@message
class DeleteRecordsPartition:
    """A partition, and the first offset that stays; -1: none stays."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)


@message
class DeleteRecordsTopic:
    """A topic's partitions."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = field(array(DeleteRecordsPartition))


@message
class DeleteRecordsRequest(ApiMessage):
    """Asks the leader of the partitions."""

    api_key = ApiKey.DELETE_RECORDS
    versions = VersionRange(0, 2)

    topics: tuple[DeleteRecordsTopic, ...] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


@message
class DeleteRecordsPartitionResult:
    """Where a partition starts from now on, -1 with an error."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16, default=0)


@message
class DeleteRecordsTopicResult:
    """A topic's partitions."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = field(
        array(DeleteRecordsPartitionResult)
    )


@message
class DeleteRecordsResponse(ApiMessage):
    """One answer per partition."""

    api_key = ApiKey.DELETE_RECORDS
    versions = VersionRange(0, 2)

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[DeleteRecordsTopicResult, ...] = field(array(DeleteRecordsTopicResult))
