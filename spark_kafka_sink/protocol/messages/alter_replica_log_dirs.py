"""AlterReplicaLogDirs: moves replicas of a broker between its log directories (KIP-113).

Version 2 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class AlterReplicaLogDirTopic:
    """Partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class AlterReplicaLogDir:
    """A directory, and the replicas that are to be in it."""

    path: str = field(STRING)
    topics: tuple[AlterReplicaLogDirTopic, ...] = field(array(AlterReplicaLogDirTopic))


@message
class AlterReplicaLogDirsRequest(ApiRequest["AlterReplicaLogDirsResponse"]):
    """A request to the broker that has the replicas."""

    api_key = ApiKey.ALTER_REPLICA_LOG_DIRS
    versions = VersionRange(1, 2)

    dirs: tuple[AlterReplicaLogDir, ...] = field(array(AlterReplicaLogDir))


@message
class AlterReplicaLogDirPartitionResult:
    """The result for one replica: it is moved from now on, or not."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16, default=0)


@message
class AlterReplicaLogDirTopicResult:
    """The results for the partitions of one topic."""

    topic_name: str = field(STRING)
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = field(
        array(AlterReplicaLogDirPartitionResult)
    )


@message
class AlterReplicaLogDirsResponse(ApiResponse, request=AlterReplicaLogDirsRequest):
    """A response with one result per replica."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AlterReplicaLogDirTopicResult, ...] = field(array(AlterReplicaLogDirTopicResult))
