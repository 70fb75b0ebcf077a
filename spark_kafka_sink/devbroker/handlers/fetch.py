"""Fetch 4-17: returns record batches of partitions, and can wait until there are enough.

- A request is part of a fetch session, opens one, or has none (`cluster.fetch_sessions`, KIP-227).
- Batches are always whole. The first batch is returned even if it exceeds the limits, so that a
  consumer always makes progress (KIP-74); the request's max_bytes and fetch.max.bytes limit the
  rest.
- While fewer than min_bytes are readable, there is no error and max_wait_ms has not passed, the
  response is delayed. Partitions that did not exist when the request arrived get an error, but do
  not end the wait; one that ceases to exist does, and so does a new leader. A fetch from a segment
  that is complete does not wait.
- Records are returned up to the high watermark: the log end offset, if there is one broker. With
  read_committed, the response ends at the last
  stable offset and lists the aborted transactions whose records the consumer must skip (KIP-98).
  As in Kafka, it may list some that began after the last record in the response.
- Topics are given by name up to version 12 and by id from version 13 on. A topic that has been
  recreated since its name was looked up, in a session or before a wait, gets INCONSISTENT_TOPIC_ID.
- The current leader epoch is checked (KIP-320), and so is the last fetched epoch (KIP-595).
- A consumer that exceeds its quota gets an empty response, and the time to wait; a response has at
  most what the quota allows in ten seconds.
- From version 11 on, followers serve consumers too (KIP-392), and with
  `rack_aware_replica_selector` the leader sends a consumer to a follower in its rack. A broker
  without a replica returns NOT_LEADER_OR_FOLLOWER. So does any broker to a fetch from a follower:
  nothing is replicated.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.client_quotas import CONSUMER_BYTE_RATE, Quota
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.cluster.fetch_sessions import (
    FetchContext,
    PartitionResult,
    RequestedPartition,
    SessionResponse,
    partition_key,
)
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.replication.replica import diverging_epoch
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import fetch as wire
from spark_kafka_sink.protocol.primitives import ZERO_UUID, Buffer

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.devbroker.log.log_segment import FetchedRecords
    from spark_kafka_sink.devbroker.log.partition_log import PartitionLog

_FIRST_VERSION_FOR_FOLLOWERS = 11
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_FIRST_VERSION_WITH_REPLICA_STATE = 15
_FIRST_VERSION_WITH_NODE_ENDPOINTS = 16
_READ_COMMITTED = 1
_UNKNOWN_OFFSET = -1
_NOT_DIVERGING = wire.EpochEndOffset()
_LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class _Read(NamedTuple):
    """One partition's part of the response, and its effect on the rest of the response."""

    data: wire.PartitionData
    #: Bytes that count towards min_bytes.
    readable_bytes: int = 0
    #: Bytes in the response.
    size_in_bytes: int = 0
    #: Whether to respond at once: for instance, the read failed, or the log diverges from the
    #: client's.
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A request as it arrived, kept while it waits."""

    session: FetchContext
    #: The partitions to read.
    requested: list[RequestedPartition]
    #: The results of those that did not exist, or that the client may not read.
    missing: list[PartitionResult]


def _error_response(
    context: RequestContext, request: wire.FetchRequest, error_code: ErrorCode, _message: str
) -> wire.FetchResponse:
    """Return a response with the error; before version 13 each partition has it, too, as in Kafka.

    Source: FetchRequest.getErrorResponse.
    """
    if context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        return wire.FetchResponse(error_code=error_code, responses=())
    return wire.FetchResponse(
        error_code=error_code,
        responses=tuple(
            wire.FetchableTopicResponse(
                topic=topic.topic,
                partitions=tuple(
                    wire.PartitionData(
                        partition_index=partition.partition,
                        error_code=error_code,
                        high_watermark=_UNKNOWN_OFFSET,
                        records=(),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


@handles(wire.FetchRequest, error_response=_error_response)
def fetch(context: RequestContext, request: wire.FetchRequest) -> wire.FetchResponse | Delayed:
    """Return the available records, or `Delayed` to wait for more (Fetch 4-17)."""
    fetch = context.kept if isinstance(context.kept, _Fetch) else _begin(context, request)
    results, size, complete = _read_all(context, request, fetch.requested)
    until = context.arrived + request.max_wait_ms / 1000
    if fetch.requested and not complete and context.now < until:
        return Delayed(until, frozenset(map(_topic_partition, fetch.requested)), kept=fetch)
    if context.throttled:
        return _response(context, fetch.session.throttle())
    quota = _quota(context, request)
    if quota is not None:
        seconds = context.client_rates.try_record(quota, size, context.now)
        if seconds > 0:
            empty = _response(context, fetch.session.throttle())
            return replace(empty, throttle_time_ms=math.ceil(seconds * 1000))
    response = fetch.session.respond([*results, *fetch.missing], context.now_ms)
    return _response(context, response)


def _begin(context: RequestContext, request: wire.FetchRequest) -> _Fetch:
    """Find the partitions of a request and of its session. Raises RefusedError."""
    uses_topic_ids = context.version >= _FIRST_VERSION_WITH_TOPIC_IDS

    # A partition that is repeated is read once: a small request must not get a huge response.
    listed = (
        RequestedPartition(
            context.topic_name(topic.topic_id) if uses_topic_ids else topic.topic,
            topic.topic_id,
            partition,
        )
        for topic in request.topics
        for partition in topic.partitions
    )
    session = context.fetch_sessions.begin(
        request.session_id,
        request.session_epoch,
        {requested.key: requested for requested in listed},
        [
            partition_key(topic.topic, topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ],
        uses_topic_ids=uses_topic_ids,
        find_name=context.topic_name,
        now_ms=context.now_ms,
    )
    fetch = _Fetch(session, [], [])
    may_read = cache(partial(_may_read, context, request))
    for requested in session.partitions:
        if requested.topic is None:
            fetch.missing.append(_missing(requested, ErrorCode.UNKNOWN_TOPIC_ID))
        elif not may_read(requested.topic):
            fetch.missing.append(_missing(requested, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif not context.cluster.has(_topic_partition(requested)):
            fetch.missing.append(_missing(requested, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            fetch.requested.append(requested)
    return fetch


def _may_read(context: RequestContext, request: wire.FetchRequest, topic: str) -> bool:
    if _replica_id(context, request) >= 0:
        return context.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    return context.allows(AclOperation.READ, ResourceType.TOPIC, topic)


def _topic_partition(requested: RequestedPartition) -> TopicPartition:
    return TopicPartition(requested.topic or "", requested.fetch_partition.partition)


def _missing(requested: RequestedPartition, error_code: ErrorCode) -> PartitionResult:
    """Return the result of a partition that was not found (FetchResponse.partitionResponse)."""
    return PartitionResult(
        requested,
        wire.PartitionData(
            partition_index=requested.fetch_partition.partition,
            error_code=error_code,
            high_watermark=_UNKNOWN_OFFSET,
            records=None,
        ),
    )


def _read_all(
    context: RequestContext, request: wire.FetchRequest, partitions: Sequence[RequestedPartition]
) -> tuple[list[PartitionResult], int, bool]:
    """Read partitions within the limits.

    Also return the size of the records, and whether to respond without waiting.
    """
    remaining = min(request.max_bytes, context.settings.fetch_max_bytes)
    quota = _quota(context, request)
    if quota is not None:
        remaining = min(remaining, int(quota.burst_bytes))
    min_bytes = min(request.min_bytes, remaining)
    readable = size = 0
    urgent = False
    results: list[PartitionResult] = []
    for requested in partitions:
        read = _read(context, request, requested, remaining, min_one_batch=readable == 0)
        results.append(PartitionResult(requested, read.data))
        readable += read.readable_bytes
        size += read.size_in_bytes
        remaining = max(0, remaining - read.size_in_bytes)
        urgent = urgent or read.urgent
    return results, size, urgent or readable >= min_bytes


def _response(context: RequestContext, response: SessionResponse) -> wire.FetchResponse:
    results = [
        result
        for result in response.results
        if not context.omits(_topic_partition(result.requested))
    ]
    leaders = {result.data.current_leader.leader_id for result in results}
    topics = itertools.groupby(
        results, lambda result: (result.requested.topic_id, result.requested.topic or "")
    )
    return wire.FetchResponse(
        error_code=response.error_code,
        session_id=response.session_id,
        responses=tuple(
            wire.FetchableTopicResponse(
                topic=topic, topic_id=topic_id, partitions=tuple(result.data for result in group)
            )
            for (topic_id, topic), group in topics
        ),
        node_endpoints=context.endpoints(wire.NodeEndpoint, leaders),
    )


def _read(
    context: RequestContext,
    request: wire.FetchRequest,
    requested: RequestedPartition,
    remaining: int,
    *,
    min_one_batch: bool,
) -> _Read:
    partition = None
    try:
        context.check_fault(_topic_partition(requested))
        partition = context.cluster.partition(_topic_partition(requested))
        _check_topic_id(partition, requested.topic_id)
        _refuse_followers(context, request)
        return _read_partition(
            context,
            request,
            partition,
            requested.fetch_partition,
            remaining,
            min_one_batch=min_one_batch,
        )
    except RefusedError as refused:
        leader = wire.LeaderIdAndEpoch()
        if (
            partition is not None
            and refused.error_code in _LEADER_ERRORS
            and context.version >= _FIRST_VERSION_WITH_NODE_ENDPOINTS
        ):
            leader = wire.LeaderIdAndEpoch(
                leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
            )
        return _Read(
            wire.PartitionData(
                partition_index=requested.fetch_partition.partition,
                error_code=refused.error_code,
                high_watermark=_UNKNOWN_OFFSET,
                aborted_transactions=None,
                current_leader=leader,
                records=(),
            )
        )


def _read_partition(
    context: RequestContext,
    request: wire.FetchRequest,
    partition: Partition,
    fetch_partition: wire.FetchPartition,
    remaining: int,
    *,
    min_one_batch: bool,
) -> _Read:
    """Read one partition (ReplicaManager.readFromLog). Raises RefusedError."""
    log = partition.log
    preferred = _preferred_replica(context, request, partition, fetch_partition.fetch_offset)
    if preferred is not None:
        partition.check_leader_epoch(fetch_partition.current_leader_epoch)
        return _Read(_data(partition, preferred_read_replica=preferred))
    partition.check_reader(
        fetch_partition.current_leader_epoch,
        only_leader=context.version < _FIRST_VERSION_FOR_FOLLOWERS,
    )
    diverging = diverging_epoch(log, fetch_partition, log.log_end_offset)
    if diverging is not None:
        return _Read(_data(partition, diverging_epoch=diverging))
    committed = request.isolation_level == _READ_COMMITTED
    records = partition.read(
        fetch_partition.fetch_offset,
        max_bytes=min(fetch_partition.partition_max_bytes, remaining),
        min_one_batch=min_one_batch,
        committed=committed,
    )
    data = _data(
        partition,
        aborted_transactions=_aborted(log, fetch_partition.fetch_offset, records)
        if committed
        else None,
        records=context.altered(
            TopicPartition(partition.topic.name, partition.index), records.batches
        ),
    )
    # As in DelayedFetch: there is enough if it is not even in the segment that grows.
    readable_up_to = data.last_stable_offset if committed else data.high_watermark
    urgent = log.is_in_older_segment(fetch_partition.fetch_offset, readable_up_to)
    return _Read(data, records.readable_bytes, records.size_in_bytes, urgent)


def _data(
    partition: Partition,
    *,
    aborted_transactions: tuple[wire.AbortedTransaction, ...] | None = None,
    diverging_epoch: wire.EpochEndOffset = _NOT_DIVERGING,
    preferred_read_replica: int = -1,
    records: tuple[Buffer, ...] = (),
) -> wire.PartitionData:
    """Return the result of a read that did not fail."""
    log = partition.log
    return wire.PartitionData(
        partition_index=partition.index,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted_transactions=aborted_transactions,
        diverging_epoch=diverging_epoch,
        preferred_read_replica=preferred_read_replica,
        records=records,
    )


def _check_topic_id(partition: Partition, topic_id: uuid.UUID) -> None:
    if topic_id not in {ZERO_UUID, partition.topic.topic_id}:
        raise RefusedError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"topic {partition.topic.name!r} was recreated and has another id",
        )


def _preferred_replica(
    context: RequestContext, request: wire.FetchRequest, partition: Partition, fetch_offset: int
) -> int | None:
    """Return the follower that a consumer of this broker should fetch from; None for none."""
    if (
        context.version < _FIRST_VERSION_FOR_FOLLOWERS
        or not context.settings.rack_aware_replica_selector
        or context.node_id != partition.leader_id
    ):
        return None
    return partition.closest_follower(request.rack_id, fetch_offset)


def _aborted(
    log: PartitionLog, fetch_offset: int, records: FetchedRecords
) -> tuple[wire.AbortedTransaction, ...]:
    """Return the aborted transactions that have records among those read, and maybe later ones."""
    if not records.batches:
        return ()
    return tuple(
        wire.AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
        for txn in log.aborted_transactions(fetch_offset, records.upper_bound)
    )


def _quota(context: RequestContext, request: wire.FetchRequest) -> Quota | None:
    """Return the quota of a consumer; followers have none."""
    return context.quota(CONSUMER_BYTE_RATE) if _replica_id(context, request) < 0 else None


def _replica_id(context: RequestContext, request: wire.FetchRequest) -> int:
    """Return the broker that fetches as a follower; negative for a consumer."""
    if context.version < _FIRST_VERSION_WITH_REPLICA_STATE:
        return request.replica_id
    return request.replica_state.replica_id


def _refuse_followers(context: RequestContext, request: wire.FetchRequest) -> None:
    replica_id = _replica_id(context, request)
    if replica_id >= 0:
        raise RefusedError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica_id} does not have a replica"
        )
