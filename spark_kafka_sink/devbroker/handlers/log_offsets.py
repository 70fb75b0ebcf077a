"""The offsets of logs: ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.log.partition_log import TimestampAndOffset
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
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog
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
_FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5
#: The replica ids of consumers, and of tools that look at a follower (ListOffsetsRequest).
_CONSUMER = -1
_DEBUGGING = -2
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
    - While a new leader's high watermark may be behind what consumers have seen, latest gets
      OFFSET_NOT_AVAILABLE, and so does a timestamp of later records (5+, KIP-207; before that,
      LEADER_NOT_AVAILABLE).
    - A request with a broker's id sees all records, and one with -2 may ask a follower.
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
                code = refused.error_code
                if (
                    code is ErrorCode.OFFSET_NOT_AVAILABLE
                    and context.version < _FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
                ):
                    code = ErrorCode.LEADER_NOT_AVAILABLE
                result = ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=code
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
    partition.check_reader(
        requested.current_leader_epoch, only_leader=request.replica_id != _DEBUGGING
    )
    try:
        found = _find_offset(partition, request, timestamp, budget)
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
    partition: Partition, request: ListOffsetsRequest, timestamp: int, budget: DecodeBudget
) -> TimestampAndOffset:
    """Look up an offset (Partition.fetchOffsetForTimestamp)."""
    log = partition.log
    if timestamp in {EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP}:
        return TimestampAndOffset(_NO_TIMESTAMP, log.log_start_offset)
    if timestamp == _LATEST_TIERED_TIMESTAMP:
        return _NOTHING_FOUND
    is_consumer = request.replica_id == _CONSUMER
    if not is_consumer:
        last_fetchable = log.log_end_offset
    elif request.isolation_level == _READ_COMMITTED:
        last_fetchable = log.last_stable_offset
    else:
        last_fetchable = log.high_watermark
    found: TimestampAndOffset | None
    if timestamp == LATEST_TIMESTAMP:
        found = None
    elif timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(budget)
    else:
        found = log.offset_for_timestamp(timestamp, budget)
    if found is not None and found.offset < last_fetchable:
        return found
    if is_consumer:
        partition.check_offsets_available()
    if timestamp == LATEST_TIMESTAMP:
        return TimestampAndOffset(_NO_TIMESTAMP, last_fetchable)
    return _NOTHING_FOUND


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
            partition.check_reader(requested.current_leader_epoch)
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


@dataclass(slots=True)
class _Deletion:
    """What a DeleteRecords request has done, kept while followers still have records."""

    #: The results of partitions, which may change while they are `waiting`.
    results: dict[TopicPartition, DeleteRecordsPartitionResult]
    #: The partitions to wait for, with the new start of each.
    waiting: dict[TopicPartition, tuple[Partition, int]]


@handles(DeleteRecordsRequest, when_failed={"low_watermark": _NO_OFFSET})
def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Delayed:
    """Delete the records of partitions before given offsets (DeleteRecords 0-2).

    Offset -1 stands for the high watermark. An offset above it gets OFFSET_OUT_OF_RANGE, and so
    does any other negative one; an offset below the log start offset has no effect. A topic whose
    cleanup.policy lacks "delete" gets POLICY_VIOLATION. If the disk fails, the error is
    KAFKA_STORAGE_ERROR, although whole segments may already have been deleted. The response has the
    low watermarks: the lowest log start of all running replicas. It waits until followers have
    deleted the records too, or for the request's timeout (REQUEST_TIMED_OUT). All of a request's
    log start offsets are written to disk at once; if a partition occurs more than once, the last
    offset counts.
    """
    deletion = context.kept if isinstance(context.kept, _Deletion) else _delete(context, request)
    until = context.arrived + request.timeout_ms / 1000
    _check_deleted(deletion, expired=context.now >= until)
    if deletion.waiting:
        return Delayed(until, frozenset(deletion.waiting), kept=deletion)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    deletion.results[TopicPartition(topic.name, partition.partition_index)]
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _delete(context: RequestContext, request: DeleteRecordsRequest) -> _Deletion:
    """Delete the records in the logs of this broker (ReplicaManager.deleteRecordsOnLocalLog)."""
    partitions: dict[TopicPartition, Partition] = {}
    offsets: dict[TopicPartition, int] = {}
    refusals: dict[TopicPartition, RefusedError] = {}
    requested_offsets = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic_partition, offset in requested_offsets.items():
        try:
            partitions[topic_partition] = _deletable(context, topic_partition)
            offsets[topic_partition] = _new_start(partitions[topic_partition].log, offset)
        except RefusedError as refused:
            refusals[topic_partition] = refused
    refusals |= context.cluster.logs.delete_records(offsets)
    results = {
        topic_partition: _deleted(topic_partition, _NO_OFFSET, refused.error_code)
        for topic_partition, refused in refusals.items()
    }
    waiting = {}
    for topic_partition in offsets.keys() - refusals.keys():
        partition = partitions[topic_partition]
        waiting[topic_partition] = (partition, offsets[topic_partition])
        low_watermark = partition.low_watermark()
        results[topic_partition] = _deleted(topic_partition, low_watermark, ErrorCode.NONE)
    return _Deletion(results, waiting)


def _check_deleted(deletion: _Deletion, *, expired: bool) -> None:
    """Complete the partitions whose followers have deleted the records (DelayedDeleteRecords)."""
    for topic_partition, (partition, offset) in list(deletion.waiting.items()):
        try:
            low_watermark, code = partition.low_watermark(), ErrorCode.NONE
        except RefusedError as refused:
            low_watermark, code = _NO_OFFSET, refused.error_code
        if code is ErrorCode.NONE and low_watermark < offset:
            if not expired:
                continue
            code = ErrorCode.REQUEST_TIMED_OUT
            # As in Kafka, the low watermark is still that of the beginning.
            low_watermark = deletion.results[topic_partition].low_watermark
        deletion.results[topic_partition] = _deleted(topic_partition, low_watermark, code)
        del deletion.waiting[topic_partition]


def _deleted(
    topic_partition: TopicPartition, low_watermark: int, code: ErrorCode
) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=topic_partition.partition, low_watermark=low_watermark, error_code=code
    )


def _deletable(context: RequestContext, topic_partition: TopicPartition) -> Partition:
    context.check_right(AclOperation.DELETE, ResourceType.TOPIC, topic_partition.topic)
    partition = context.cluster.partition(topic_partition)
    partition.check_leader()
    if not partition.topic.config.deletes:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"cleanup.policy of {partition.topic.name!r} does not include delete",
        )
    return partition


def _new_start(log: PartitionLog, requested: int) -> int:
    offset = log.high_watermark if requested == _UP_TO_THE_HIGH_WATERMARK else requested
    if not 0 <= offset <= log.high_watermark:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {requested} is not between 0 and the high watermark, {log.high_watermark}",
        )
    return offset
