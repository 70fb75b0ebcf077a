"""Fetch 4-17: returns record batches of partitions, and can wait until there are enough.

- There are no fetch sessions (KIP-227). A request that would open one gets a full response with
  session id 0, which means that there is no session; a request that continues one gets
  FETCH_SESSION_ID_NOT_FOUND.
- Batches are always whole. The first batch is returned even if it exceeds the limits, so that a
  consumer always makes progress (KIP-74); the request's max_bytes and fetch.max.bytes limit the
  rest.
- While fewer than min_bytes are readable, there is no error and max_wait_ms has not passed, the
  response is delayed.
- The high watermark is the log end offset. With read_committed, the response ends at the last
  stable offset and lists the aborted transactions whose records the consumer must skip (KIP-98).
- Topics are given by name up to version 12 and by id from version 13 on. The current leader epoch
  is checked (KIP-320), and so is the last fetched epoch (KIP-595).
- From version 11 on, followers serve consumers too (KIP-392); here they are never behind. A broker
  without a replica returns NOT_LEADER_OR_FOLLOWER. So does any broker to a fetch from a follower:
  nothing is replicated.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Delayed, Handler, RequestContext
from spark_kafka_sink.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    import uuid

    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.devbroker.log.partition_log import FetchedRecords, PartitionLog
    from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchTopic

_FIRST_VERSION_FOR_FOLLOWERS = 11
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_FIRST_VERSION_WITH_REPLICA_STATE = 15
_FIRST_VERSION_WITH_NODE_ENDPOINTS = 16
#: Session epochs of a full request: "no session" and "open a session".
_FULL_FETCH_EPOCHS = frozenset({-1, 0})
_READ_COMMITTED = 1
_UNKNOWN_OFFSET = -1
_LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class _PartitionResult(NamedTuple):
    """One partition's part of the response, and its effect on the rest of the response."""

    data: PartitionData
    #: Bytes that count towards min_bytes.
    readable_bytes: int
    #: Bytes in the response.
    size_in_bytes: int
    #: Whether to respond at once: the read failed, or the log diverges from the client's.
    urgent: bool


class FetchHandler(Handler[FetchRequest, FetchResponse]):
    """The handler that reads the logs of partitions."""

    api_key = ApiKey.FETCH
    versions = FetchRequest.versions

    def handle(self, context: RequestContext, request: FetchRequest) -> FetchResponse | Delayed:
        """Return the available records, or `Delayed` to wait for more."""
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            raise RefusedError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "this broker does not support fetch sessions"
            )
        remaining = min(request.max_bytes, context.settings.fetch_max_bytes)
        min_bytes = min(request.min_bytes, remaining)
        readable = 0
        urgent = False
        watched: set[TopicPartition] = set()
        leaders: set[int] = set()
        topics: list[FetchableTopicResponse] = []
        answered: set[tuple[str, uuid.UUID, int]] = set()
        for topic in request.topics:
            name = _topic_name(context, topic)
            results: list[PartitionData] = []
            for asked in topic.partitions:
                # Drop duplicates: a small request that repeats one would get a huge response.
                place = topic.topic, topic.topic_id, asked.partition
                if place in answered:
                    continue
                answered.add(place)
                try:
                    partition = _find(context, name, asked)
                except RefusedError as refused:
                    results.append(_failed(asked, refused.error_code))
                    continue
                if partition is None:
                    continue
                result = _read(
                    context, request, partition, asked, remaining, min_one_batch=readable == 0
                )
                results.append(result.data)
                watched.add(TopicPartition(partition.topic.name, asked.partition))
                readable += result.readable_bytes
                remaining = max(0, remaining - result.size_in_bytes)
                urgent = urgent or result.urgent
                if result.data.current_leader.leader_id >= 0:
                    leaders.add(result.data.current_leader.leader_id)
            topics.append(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(results)
                )
            )
        until = context.arrived + request.max_wait_ms / 1000
        if watched and not urgent and readable < min_bytes and context.now < until:
            return Delayed(until, frozenset(watched))
        if context.throttled:
            # KafkaApis.handleFetchRequest: the client has to fetch the same again.
            return FetchResponse(responses=())
        return FetchResponse(
            responses=tuple(topics),
            node_endpoints=_endpoints(context, leaders),
        )

    def error_response(
        self,
        context: RequestContext,
        request: FetchRequest,
        error_code: ErrorCode,
        message: str,
    ) -> FetchResponse:
        """Return a response with the error and no records (FetchRequest.getErrorResponse)."""
        return FetchResponse(error_code=error_code, responses=())


def _topic_name(context: RequestContext, topic: FetchTopic) -> str | None:
    if context.version < _FIRST_VERSION_WITH_TOPIC_IDS:
        return topic.topic
    known = context.cluster.topic_by_id(topic.topic_id)
    return None if known is None else known.name


def _find(context: RequestContext, name: str | None, asked: FetchPartition) -> Partition | None:
    """Return the partition to read; None for one that a fault omits. Raises RefusedError."""
    if name is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic id is unknown")
    topic_partition = TopicPartition(name, asked.partition)
    return None if context.omits(topic_partition) else context.cluster.partition(topic_partition)


def _read(
    context: RequestContext,
    request: FetchRequest,
    partition: Partition,
    asked: FetchPartition,
    remaining: int,
    *,
    min_one_batch: bool,
) -> _PartitionResult:
    log = partition.log
    topic_partition = TopicPartition(partition.topic.name, partition.index)
    try:
        context.check_fault(topic_partition)
        _refuse_followers(context, request)
        partition.check_reader(
            context.node_id,
            asked.current_leader_epoch,
            only_leader=context.version < _FIRST_VERSION_FOR_FOLLOWERS,
        )
        diverging = _diverging_epoch(partition, asked)
        if diverging is not None:
            data = PartitionData(
                partition_index=asked.partition,
                high_watermark=log.high_watermark,
                last_stable_offset=log.last_stable_offset,
                log_start_offset=log.log_start_offset,
                aborted_transactions=None,
                diverging_epoch=diverging,
                records=(),
            )
            return _PartitionResult(data, 0, 0, urgent=True)
        committed = request.isolation_level == _READ_COMMITTED
        records = log.read(
            asked.fetch_offset,
            max_bytes=min(asked.partition_max_bytes, remaining),
            min_one_batch=min_one_batch,
            committed=committed,
        )
    except RefusedError as refused:
        leader = LeaderIdAndEpoch()
        if (
            refused.error_code in _LEADER_ERRORS
            and context.version >= _FIRST_VERSION_WITH_NODE_ENDPOINTS
        ):
            leader = LeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )
        data = PartitionData(
            partition_index=asked.partition,
            error_code=refused.error_code,
            high_watermark=_UNKNOWN_OFFSET,
            aborted_transactions=None,
            current_leader=leader,
            records=(),
        )
        return _PartitionResult(data, 0, 0, urgent=True)
    data = PartitionData(
        partition_index=asked.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=_aborted(log, asked.fetch_offset, records) if committed else None,
        records=context.altered(topic_partition, records.batches),
    )
    return _PartitionResult(data, records.readable_bytes, records.size_in_bytes, urgent=False)


def _aborted(
    log: PartitionLog, fetch_offset: int, records: FetchedRecords
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that have records among those read."""
    if not records.batches:
        return ()
    return tuple(
        AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
        for txn in log.aborted_transactions(fetch_offset, records.end_offset)
    )


def _refuse_followers(context: RequestContext, request: FetchRequest) -> None:
    replica_id = (
        request.replica_id
        if context.version < _FIRST_VERSION_WITH_REPLICA_STATE
        else request.replica_state.replica_id
    )
    if replica_id >= 0:
        raise RefusedError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica_id} does not have a replica"
        )


def _diverging_epoch(partition: Partition, asked: FetchPartition) -> EpochEndOffset | None:
    """Return where the client's log diverges from this one; None if it does not.

    As Partition.readRecords. Raises RefusedError with OFFSET_OUT_OF_RANGE for an unknown epoch.
    """
    if asked.last_fetched_epoch == NO_LEADER_EPOCH:
        return None
    end = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end is None:
        raise RefusedError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"leader epoch {asked.last_fetched_epoch} is unknown",
        )
    if end.epoch == asked.last_fetched_epoch and end.end_offset >= asked.fetch_offset:
        return None
    return EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def _endpoints(context: RequestContext, leaders: set[int]) -> tuple[NodeEndpoint, ...]:
    return tuple(
        NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port)
        for node_id, node in context.nodes.items()
        if node_id in leaders
    )


def _failed(asked: FetchPartition, error_code: ErrorCode) -> PartitionData:
    """Return the response for a partition that was not found (FetchResponse.partitionResponse)."""
    return PartitionData(
        partition_index=asked.partition,
        error_code=error_code,
        high_watermark=_UNKNOWN_OFFSET,
        records=None,
    )
