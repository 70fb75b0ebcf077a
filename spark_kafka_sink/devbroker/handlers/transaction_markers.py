"""WriteTxnMarkers 1-2: writes the markers that end transactions in partitions.

The transaction coordinator sends it to the leaders of the partitions, and an administrator may end
a transaction that hangs (KIP-664). The client needs ALTER or CLUSTER_ACTION on the cluster.

A marker is a write with acks=all: fewer in-sync replicas than min.insync.replicas are
NOT_ENOUGH_REPLICAS, and the response waits until they have it, or for request.timeout.ms
(REQUEST_TIMED_OUT). A partition without a replica on this broker is UNKNOWN_TOPIC_OR_PARTITION, one
that another broker leads NOT_LEADER_OR_FOLLOWER. A marker that an older producer or coordinator
writes is INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED. In a partition of
`__consumer_offsets` it ends what the transaction has committed of groups there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.topic_names import GROUP_METADATA_TOPIC, coordinates
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.log.producer_state import TransactionMarker
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import write_txn_markers as wire

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Partition

#: request.timeout.ms of brokers, in seconds.
_TIMEOUT = 30.0


@dataclass(slots=True)
class _Write:
    """A marker in a partition."""

    producer_id: int
    topic_partition: TopicPartition
    code: ErrorCode = ErrorCode.NONE
    partition: Partition | None = None
    #: For `Partition.check_replicated`, while the response waits for that.
    unreplicated: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Written:
    """What is kept of a request while its markers are replicated."""

    writes: list[_Write]


def _partitions(marker: wire.WritableTxnMarker) -> dict[TopicPartition, None]:
    """Return the partitions of a marker; one that is repeated gets one marker."""
    return dict.fromkeys(
        TopicPartition(topic.name, index)
        for topic in marker.topics
        for index in topic.partition_indexes
    )


def _error_response(
    _context: RequestContext,
    request: wire.WriteTxnMarkersRequest,
    error_code: ErrorCode,
    _message: str,
) -> wire.WriteTxnMarkersResponse:
    """Return a response with the error for each partition."""
    return _response(
        [
            _Write(marker.producer_id, topic_partition, error_code)
            for marker in request.markers
            for topic_partition in _partitions(marker)
        ]
    )


@handles(wire.WriteTxnMarkersRequest, error_response=_error_response)
def write_txn_markers(
    context: RequestContext, request: wire.WriteTxnMarkersRequest
) -> wire.WriteTxnMarkersResponse | Delayed:
    """Write markers; see the module (KafkaApis.handleWriteTxnMarkersRequest)."""
    if isinstance(context.kept, _Written):
        writes = context.kept.writes
    else:
        if not context.allows(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            context.check_right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        writes = [
            _write(context, marker, topic_partition)
            for marker in request.markers
            for topic_partition in _partitions(marker)
        ]
    until = context.arrived + _TIMEOUT
    waiting = _check_replicated(writes, expired=context.now >= until)
    if waiting:
        return Delayed(until, waiting, kept=_Written(writes))
    return _response(writes)


def _response(writes: list[_Write]) -> wire.WriteTxnMarkersResponse:
    results: dict[int, dict[str, list[wire.WritableTxnMarkerPartitionResult]]] = {}
    for write in writes:
        topic, index = write.topic_partition
        results.setdefault(write.producer_id, {}).setdefault(topic, []).append(
            wire.WritableTxnMarkerPartitionResult(partition_index=index, error_code=write.code)
        )
    return wire.WriteTxnMarkersResponse(
        markers=tuple(
            wire.WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=tuple(
                    wire.WritableTxnMarkerTopicResult(name=name, partitions=tuple(partitions))
                    for name, partitions in topics.items()
                ),
            )
            for producer_id, topics in results.items()
        )
    )


def _write(
    context: RequestContext, requested: wire.WritableTxnMarker, topic_partition: TopicPartition
) -> _Write:
    """Append a marker to a partition."""
    write = _Write(requested.producer_id, topic_partition)
    marker = TransactionMarker(
        producer_id=requested.producer_id,
        producer_epoch=requested.producer_epoch,
        committed=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
        transaction_version=requested.transaction_version,
        timestamp=context.now_ms,
    )
    try:
        if topic_partition.topic == GROUP_METADATA_TOPIC:
            if not coordinates(topic_partition):
                raise _unknown(topic_partition)
            context.cluster.groups.offsets.append_marker(topic_partition.partition, marker)
        else:
            _append(context, write, marker)
    except RefusedError as refused:
        write.code = refused.error_code
    return write


def _append(context: RequestContext, write: _Write, marker: TransactionMarker) -> None:
    partition = context.cluster.partition(write.topic_partition)
    if context.node_id not in partition.replicas:
        raise _unknown(write.topic_partition)
    offset = partition.append_marker(marker, context.now)
    context.cluster.changed(write.topic_partition)
    write.partition = partition
    write.unreplicated = (offset + 1, partition.term)


def _unknown(topic_partition: TopicPartition) -> RefusedError:
    return RefusedError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no replica of {topic_partition} here"
    )


def _check_replicated(writes: list[_Write], *, expired: bool) -> frozenset[TopicPartition]:
    """Return the partitions to wait for; the others have their results then."""
    waiting = set()
    for write in writes:
        if write.unreplicated is None or write.partition is None:
            continue
        code = write.partition.check_replicated(*write.unreplicated)
        if code is None and not expired:
            waiting.add(write.topic_partition)
            continue
        write.unreplicated = None
        write.code = ErrorCode.REQUEST_TIMED_OUT if code is None else code
    return frozenset(waiting)
