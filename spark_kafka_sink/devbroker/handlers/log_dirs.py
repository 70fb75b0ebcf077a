"""The directory of a broker: DescribeLogDirs and AlterReplicaLogDirs.

A broker has one, which all brokers of a cluster share; in memory, a name stands for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from spark_kafka_sink.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: The longest name of a directory, and what Kafka adds to that of a log while it moves.
_MAX_NAME = 255
_FUTURE_SUFFIX = f".{'0' * 32}-future"


def _failed_description(
    _context: RequestContext, _request: object, error_code: ErrorCode, _message: str
) -> DescribeLogDirsResponse:
    """Return a response with the error, which versions before 3 cannot express."""
    return DescribeLogDirsResponse(error_code=error_code, results=())


@handles(DescribeLogDirsRequest, error_response=_failed_description)
def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describe the directory of this broker, and its replicas in there (DescribeLogDirs 1-5).

    Without topics, all of them are described; partitions that the broker does not have are left
    out. No replica lags behind its own high watermark. In memory, the size of the disk is unknown.
    """
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, partition)
            for topic in request.topics
            for partition in topic.partitions
        }
    total, usable = context.cluster.logs.space()
    return DescribeLogDirsResponse(
        results=(
            DescribeLogDirsResult(
                log_dir=context.cluster.logs.location,
                topics=tuple(_topics(context, wanted)),
                total_bytes=total,
                usable_bytes=usable,
            ),
        )
    )


def _topics(
    context: RequestContext, wanted: Collection[TopicPartition] | None
) -> Iterator[DescribeLogDirsTopic]:
    for topic in context.cluster.topics:
        partitions = tuple(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_in_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            for partition in topic.partitions
            if context.node_id in partition.replicas
            and (wanted is None or partition.topic_partition in wanted)
        )
        if partitions:
            yield DescribeLogDirsTopic(name=topic.name, partitions=partitions)


def _failed_moves(
    _context: RequestContext,
    request: AlterReplicaLogDirsRequest,
    error_code: ErrorCode,
    _message: str,
) -> AlterReplicaLogDirsResponse:
    """Return a response with the error for each replica."""
    return _response(dict.fromkeys(_moves(request), error_code))


@handles(AlterReplicaLogDirsRequest, error_response=_failed_moves)
def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Move replicas of this broker to a directory (AlterReplicaLogDirs 1-2).

    There is only one, so replicas are where they should be, or it is LOG_DIR_NOT_FOUND.
    Replicas of other brokers get REPLICA_NOT_AVAILABLE, missing ones UNKNOWN_TOPIC_OR_PARTITION,
    and those of a topic with a name too long for such a move INVALID_TOPIC_EXCEPTION.
    """
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic_partition, path in _moves(request).items():
        try:
            _check_move(context, topic_partition, path)
        except RefusedError as refused:
            codes[topic_partition] = refused.error_code
        else:
            codes[topic_partition] = ErrorCode.NONE
    return _response(codes)


def _check_move(context: RequestContext, topic_partition: TopicPartition, path: str) -> None:
    """Raise RefusedError unless a replica is to be where it is (ReplicaManager)."""
    topic, index = topic_partition
    if len(f"{topic}-{index}{_FUTURE_SUFFIX}") > _MAX_NAME:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    if path != context.cluster.logs.location:
        raise RefusedError(
            ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config."
        )
    if context.node_id not in context.cluster.partition(topic_partition).replicas:
        raise RefusedError(
            ErrorCode.REPLICA_NOT_AVAILABLE,
            f"broker {context.node_id} has no replica of {topic_partition}",
        )


def _moves(request: AlterReplicaLogDirsRequest) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.name, partition): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for partition in topic.partitions
    }


def _response(codes: dict[TopicPartition, ErrorCode]) -> AlterReplicaLogDirsResponse:
    by_topic: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (topic, index), code in codes.items():
        result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
        by_topic.setdefault(topic, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(topic_name=topic, partitions=tuple(results))
            for topic, results in by_topic.items()
        )
    )
