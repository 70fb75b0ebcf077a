"""DescribeLogDirs: the log directories of a broker, and the replicas in them (KIP-113).

Version 2 is flexible, 3 adds an error of the whole request, 4 the size of the disk (KIP-827), 5
whether a directory is cordoned (KIP-1066).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribableLogDirTopic:
    """Partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class DescribeLogDirsRequest(ApiRequest["DescribeLogDirsResponse"]):
    """A request to the broker whose directories are described."""

    api_key = ApiKey.DESCRIBE_LOG_DIRS
    versions = VersionRange(1, 5)

    #: None: all topics.
    topics: tuple[DescribableLogDirTopic, ...] | None = field(
        array(DescribableLogDirTopic), nullable="0+"
    )


@message
class DescribeLogDirsPartition:
    """The replica of one partition in one directory."""

    partition_index: int = field(INT32)
    #: In bytes.
    partition_size: int = field(INT64)
    #: How far the end of the log is behind the high watermark.
    offset_lag: int = field(INT64)
    #: Whether it is the copy of a replica that is being moved to this directory.
    is_future_key: bool = field(BOOL)


@message
class DescribeLogDirsTopic:
    """The replicas of one topic in one directory."""

    name: str = field(STRING)
    partitions: tuple[DescribeLogDirsPartition, ...] = field(array(DescribeLogDirsPartition))


@message
class DescribeLogDirsResult:
    """One directory."""

    error_code: int = field(INT16, default=0)
    #: The absolute path.
    log_dir: str = field(STRING)
    topics: tuple[DescribeLogDirsTopic, ...] = field(array(DescribeLogDirsTopic))
    #: Of the whole disk; -1 if unknown.
    total_bytes: int = field(INT64, versions="4+", ignorable=True, default=-1)
    usable_bytes: int = field(INT64, versions="4+", ignorable=True, default=-1)
    is_cordoned: bool = field(BOOL, versions="5+", ignorable=True, default=False)


@message
class DescribeLogDirsResponse(ApiResponse, request=DescribeLogDirsRequest):
    """A response with one result per directory."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, versions="3+", ignorable=True, default=0)
    results: tuple[DescribeLogDirsResult, ...] = field(array(DescribeLogDirsResult))
