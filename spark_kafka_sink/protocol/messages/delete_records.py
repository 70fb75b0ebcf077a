"""DeleteRecords: deletes the records of partitions before given offsets (KIP-107).

Version 2 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DeleteRecordsPartition:
    """A partition and the first offset to retain; -1: retain none."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)


@message
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = field(array(DeleteRecordsPartition))


@message
class DeleteRecordsRequest(ApiRequest["DeleteRecordsResponse"]):
    """A request to the partitions' leader."""

    api_key = ApiKey.DELETE_RECORDS
    versions = VersionRange(0, 2)

    topics: tuple[DeleteRecordsTopic, ...] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


@message
class DeleteRecordsPartitionResult:
    """The new first offset of one partition; -1 with an error."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16, default=0)


@message
class DeleteRecordsTopicResult:
    """The partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = field(
        array(DeleteRecordsPartitionResult)
    )


@message
class DeleteRecordsResponse(ApiResponse, request=DeleteRecordsRequest):
    """A response with one result per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[DeleteRecordsTopicResult, ...] = field(array(DeleteRecordsTopicResult))
