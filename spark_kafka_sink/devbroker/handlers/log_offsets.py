"""The offsets of logs: ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.log.partition_log import PartitionLog, TimestampAndOffset
from spark_kafka_sink.errors import CorruptRecordError
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import offset_for_leader_epoch as epochs
from spark_kafka_sink.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    FIRST_VERSION_WITH_EARLIEST_LOCAL,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.record.decode import DecodeBudget

_LATEST_TIERED_TIMESTAMP = -5
_FIRST_VERSION_OF_QUESTION = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: FIRST_VERSION_WITH_EARLIEST_LOCAL,
    _LATEST_TIERED_TIMESTAMP: 9,
}
_READ_COMMITTED = 1
_NO_TIMESTAMP = -1
_NO_OFFSET = -1
_NOTHING_FOUND = TimestampAndOffset(_NO_TIMESTAMP, _NO_OFFSET)
_FIRST_VERSION_WITH_LEADER_EPOCH = 4
#: The offset with which DeleteRecords deletes all records.
_UP_TO_THE_HIGH_WATERMARK = -1


@handles(ListOffsetsRequest)
def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up an offset of each partition, also by timestamp (ListOffsets 1-10).

    - A timestamp finds the first record at or after it. Negative timestamps are special: -1 latest,
      -2 earliest, -3 largest timestamp (7+, KIP-734), -4 earliest on this broker's disk (8+,
      KIP-405; the same as earliest), -5 latest in tiered storage (9+, KIP-1005; there is none). Any
      other, or too early a version, gets UNSUPPORTED_VERSION.
    - The result is offset -1 for a timestamp later than all records, and for the largest timestamp
      of an empty log.
    - A partition that occurs more than once gets a single INVALID_REQUEST.
    - For read_committed (2+), latest is the last stable offset, and records from there on are not
      found.
    - A leader epoch other than the partition's gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
    """
    times = Counter(
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    budget = context.decode_budget()
    topics = []
    answered: set[TopicPartition] = set()
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if topic_partition in answered:
                continue
            answered.add(topic_partition)
            if context.omits(topic_partition):
                continue
            try:
                context.check_right(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
                _refuse_duplicate(topic_partition, times[topic_partition])
                result = _look_up(context, request, topic_partition, partition, budget)
            except RefusedError as refused:
                result = ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=refused.error_code
                )
            partitions.append(result)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return ListOffsetsResponse(topics=tuple(topics))


def _refuse_duplicate(topic_partition: TopicPartition, times: int) -> None:
    if times > 1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"the request contains {topic_partition} {times} times"
        )


def _look_up(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic_partition: TopicPartition,
    requested: ListOffsetsPartition,
    budget: DecodeBudget,
) -> ListOffsetsPartitionResponse:
    context.check_fault(topic_partition)
    timestamp = requested.timestamp
    if timestamp < 0:
        first_version = _FIRST_VERSION_OF_QUESTION.get(timestamp)
        if first_version is None or context.version < first_version:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"ListOffsets version {context.version} does not support timestamp {timestamp}",
            )
    partition = context.cluster.partition(topic_partition)
    partition.check_reader(context.node_id, requested.current_leader_epoch)
    log = partition.log
    committed = request.isolation_level == _READ_COMMITTED
    last_fetchable = log.last_stable_offset if committed else log.high_watermark
    try:
        found = _find_offset(log, timestamp, last_fetchable, budget)
    except CorruptRecordError as error:
        raise RefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    # Only an offset that was found has a leader epoch, as in Kafka.
    epoch_is_known = (
        found.offset != _NO_OFFSET and context.version >= _FIRST_VERSION_WITH_LEADER_EPOCH
    )
    return ListOffsetsPartitionResponse(
        partition_index=requested.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=_leader_epoch(partition, timestamp, found)
        if epoch_is_known
        else NO_LEADER_EPOCH,
    )


def _leader_epoch(partition: Partition, timestamp: int, found: TimestampAndOffset) -> int:
    if timestamp == LATEST_TIMESTAMP:
        return partition.leader_epoch
    epoch = partition.log.leader_epochs.epoch_at(found.offset)
    return NO_LEADER_EPOCH if epoch is None else epoch


def _find_offset(
    log: PartitionLog, timestamp: int, last_fetchable: int, budget: DecodeBudget
) -> TimestampAndOffset:
    if timestamp == LATEST_TIMESTAMP:
        return TimestampAndOffset(_NO_TIMESTAMP, last_fetchable)
    if timestamp in {EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP}:
        return TimestampAndOffset(_NO_TIMESTAMP, log.log_start_offset)
    if timestamp == _LATEST_TIERED_TIMESTAMP:
        return _NOTHING_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(budget)
    else:
        found = log.offset_for_timestamp(timestamp, budget)
    return _NOTHING_FOUND if found is None or found.offset >= last_fetchable else found


@handles(epochs.OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(
    context: RequestContext, request: epochs.OffsetForLeaderEpochRequest
) -> epochs.OffsetForLeaderEpochResponse:
    """Return the end offsets of leader epochs (OffsetForLeaderEpoch 2-4, KIP-320).

    The client's current leader epoch is checked first (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH).
    The result is epoch -1 and offset -1 for an epoch newer than the log's, and the end of the
    previous epoch for one without records. A partition that does not exist gets
    UNKNOWN_TOPIC_OR_PARTITION.
    """
    may_read_all = context.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)

    def find(topic: str, requested: epochs.OffsetForLeaderPartition) -> epochs.EpochEndOffset:
        topic_partition = TopicPartition(topic, requested.partition)
        try:
            if not may_read_all:
                context.check_right(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
            context.check_fault(topic_partition)
            partition = context.cluster.partition(topic_partition)
            partition.check_reader(context.node_id, requested.current_leader_epoch)
        except RefusedError as refused:
            return epochs.EpochEndOffset(
                error_code=refused.error_code, partition=requested.partition
            )
        end = partition.log.end_offset_for_epoch(requested.leader_epoch)
        if end is None:
            return epochs.EpochEndOffset(error_code=ErrorCode.NONE, partition=requested.partition)
        return epochs.EpochEndOffset(
            error_code=ErrorCode.NONE,
            partition=requested.partition,
            leader_epoch=end.epoch,
            end_offset=end.end_offset,
        )

    return epochs.OffsetForLeaderEpochResponse(
        topics=tuple(
            epochs.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    find(topic.topic, requested)
                    for requested in topic.partitions
                    if not context.omits(TopicPartition(topic.topic, requested.partition))
                ),
            )
            for topic in request.topics
        )
    )


@handles(DeleteRecordsRequest, when_failed={"low_watermark": _NO_OFFSET})
def delete_records(context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete the records of partitions before given offsets (DeleteRecords 0-2).

    Offset -1 stands for the high watermark. An offset above it gets OFFSET_OUT_OF_RANGE, and so
    does any other negative one; an offset below the log start offset has no effect. A topic whose
    cleanup.policy lacks "delete" gets POLICY_VIOLATION. If the disk fails, the error is
    KAFKA_STORAGE_ERROR, although whole segments may already have been deleted. The response has the
    new log start offsets. All of a request's log start offsets are written to disk at once; if a
    partition occurs more than once, the last offset counts.
    """
    logs = context.cluster.logs
    partition_logs: dict[TopicPartition, PartitionLog] = {}
    offsets: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, RefusedError] = {}
    requested_offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic_partition, offset in requested_offsets.items():
        try:
            partition_logs[topic_partition] = _deletable_log(context, topic_partition)
            offsets[topic_partition] = _new_start(partition_logs[topic_partition], offset)
        except RefusedError as refused:
            refusals[topic_partition] = refused
    refusals |= logs.delete_records(offsets)

    def result(topic_partition: TopicPartition) -> DeleteRecordsPartitionResult:
        refused = refusals.get(topic_partition)
        return DeleteRecordsPartitionResult(
            partition_index=topic_partition.partition,
            low_watermark=partition_logs[topic_partition].log_start_offset
            if refused is None
            else _NO_OFFSET,
            error_code=ErrorCode.NONE if refused is None else refused.error_code,
        )

    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    result(TopicPartition(topic.name, partition.partition_index))
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _deletable_log(context: RequestContext, topic_partition: TopicPartition) -> PartitionLog:
    context.check_right(AclOperation.DELETE, ResourceType.TOPIC, topic_partition.topic)
    partition = context.cluster.partition(topic_partition)
    partition.check_leader(context.node_id)
    if not partition.topic.config.deletes:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"cleanup.policy of {partition.topic.name!r} does not include delete",
        )
    return partition.log


def _new_start(log: PartitionLog, requested: int) -> int:
    offset = log.high_watermark if requested == _UP_TO_THE_HIGH_WATERMARK else requested
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {requested} is not between 0 and the high watermark, {log.high_watermark}",
        )
    return offset
