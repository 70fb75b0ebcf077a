"""Produce 3-13: appends record batches to partitions; each partition succeeds or fails on its own.

The checks are in Kafka's order (KafkaApis.handleProduceRequest,
ReplicaManager.handleProduceAppend): the client may write; the partition exists (topics are given by
id from version 13 on); there is exactly one batch, of format 2; the transaction; acks is -1, 0 or
1; the topic is not internal; then `log_validator` and the log itself, which checks the producer's
sequence number. With acks=-1, at least min.insync.replicas replicas must be in sync, or the error
is NOT_ENOUGH_REPLICAS. The response then waits until they have the records (DelayedProduce). The
error, if they do not get them in time, is REQUEST_TIMED_OUT: the records may still be committed.

Transactional batches in a request without a transactional id fail all partitions with
TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Such a request is searched for them first, so one batch with
a malformed header fails all partitions as well, with CORRUPT_MESSAGE. The first batch of a
transaction in a partition is checked with the transaction coordinator (KIP-890):

- Up to version 11, the partition must already be in the transaction; if not, the error is
  TRANSACTION_ABORTABLE (11) or INVALID_TXN_STATE. While the previous transaction is being ended,
  the error is NOT_ENOUGH_REPLICAS, which makes clients retry.
- From version 12 on, the partition is added. While the previous transaction is being ended, the
  request waits for up to 100 ms and then gets CONCURRENT_TRANSACTIONS.
- In all versions, an unavailable coordinator is NOT_ENOUGH_REPLICAS, and INVALID_PRODUCER_EPOCH is
  returned instead of PRODUCER_FENCED.

With acks=0 there is no response; an error closes the connection. The response to a duplicate has
the offset of the first append, and the batch's largest timestamp as its log append time whatever
the topic's timestamp type, as in Kafka (UnifiedLog.append).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from spark_kafka_sink.devbroker.base.refusal import CloseConnectionError, RefusedError
from spark_kafka_sink.devbroker.handlers.handler import (
    Delayed,
    RequestContext,
    failed_response,
    handles,
)
from spark_kafka_sink.devbroker.handlers.transactions import TransactionalBatch, verify_or_add
from spark_kafka_sink.devbroker.log.log_validator import (
    ValidationBudget,
    is_transactional,
    only_batch,
    producer_of,
    validate_batch,
)
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import produce as wire
from spark_kafka_sink.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.protocol.schema import ApiResponse

ALL_ACKS = -1
NO_ACKS = 0
_VALID_ACKS = frozenset({ALL_ACKS, NO_ACKS, 1})
_NO_OFFSET = -1
_NO_TIMESTAMP = -1
_FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 11
_FIRST_VERSION_THAT_ADDS_PARTITIONS = 12
_FIRST_VERSION_WITH_LEADERS = 10
#: The client id of Kafka's internal admin client, which may write to internal topics.
_ADMIN_CLIENT_ID = "__admin_client"
#: add.partitions.to.txn.retry.backoff.max.ms and add.partitions.to.txn.retry.backoff.ms, in seconds
_MAX_WAIT_FOR_COORDINATOR = 0.1
_COORDINATOR_BACKOFF = 0.02

#: Append errors whose response has no log start offset (ReplicaManager.appendToLocalLog).
_ERRORS_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


@dataclass(slots=True)
class _Entry:
    """One partition of the request, with the state of its append."""

    topic: wire.TopicProduceData
    data: wire.PartitionProduceData
    #: None if the topic id is unknown.
    topic_partition: TopicPartition | None = None
    partition: Partition | None = None
    batch: memoryview | None = None
    response: wire.PartitionProduceResponse | None = None
    #: For `Partition.check_replicated`, while the response waits for that.
    unreplicated: tuple[int, int] | None = None

    def refuse(self, refused: RefusedError, *, log_start_offset: int = _NO_OFFSET) -> None:
        """Set the response to an error."""
        self.response = wire.PartitionProduceResponse(
            index=self.data.index,
            error_code=refused.error_code,
            base_offset=_NO_OFFSET,
            log_start_offset=log_start_offset,
            record_errors=tuple(
                wire.BatchIndexAndErrorMessage(
                    batch_index=record.batch_index, batch_index_error_message=record.message
                )
                for record in refused.record_errors
            ),
            error_message=refused.message,
        )


@dataclass(frozen=True, slots=True)
class _Appended:
    """What is kept of a request while its records are replicated."""

    entries: list[_Entry]


def _error_response(
    context: RequestContext,
    request: wire.ProduceRequest,
    error_code: ErrorCode,
    message: str,
) -> ApiResponse | None:
    """Return a response with the error for each partition; None with acks=0."""
    if request.acks == NO_ACKS:
        return None
    return failed_response(
        request,
        context.version,
        {"error_code": error_code, "error_message": message, "base_offset": _NO_OFFSET},
    )


@handles(wire.ProduceRequest, error_response=_error_response)
def produce(
    context: RequestContext, request: wire.ProduceRequest
) -> wire.ProduceResponse | Delayed | None:
    """Append the batch of each partition that passes the checks (Produce 3-13)."""
    if isinstance(context.kept, _Appended):
        entries = context.kept.entries
    else:
        _check_transactional(context, request)
        entries = [
            _Entry(topic, partition)
            for topic in request.topic_data
            for partition in topic.partition_data
        ]
        for entry in entries:
            _find(context, entry)
        if request.transactional_id is not None:
            delayed = _verify(context, request, entries)
            if delayed is not None:
                return delayed
        budget = ValidationBudget(context.settings.request_max_validated_bytes)
        for entry in entries:
            if entry.response is None:
                _append(context, request, entry, budget)
    until = context.arrived + request.timeout_ms / 1000
    unreplicated = _check_replicated(entries, expired=context.now >= until)
    if unreplicated:
        return Delayed(until, unreplicated, kept=_Appended(entries))
    return _answer(context, request, entries)


def _check_transactional(context: RequestContext, request: wire.ProduceRequest) -> None:
    """Raise RefusedError for transactional records that the client may not write."""
    checks_rights = context.cluster.authorizer is not None
    if (request.transactional_id is None or checks_rights) and any(
        is_transactional(_records(partition))
        for topic in request.topic_data
        for partition in topic.partition_data
    ):
        if request.transactional_id is None:
            raise RefusedError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "transactional records require a transactional id",
            )
        context.check_right(
            AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        )


def _check_replicated(entries: list[_Entry], *, expired: bool) -> frozenset[TopicPartition]:
    """Return the partitions to wait for; the others have their results then."""
    waiting = set()
    for entry in entries:
        if entry.unreplicated is None or entry.partition is None or entry.response is None:
            continue
        code = entry.partition.check_replicated(*entry.unreplicated)
        if code is None and not expired:
            waiting.add(entry.partition.topic_partition)
            continue
        entry.unreplicated = None
        if code is not ErrorCode.NONE:
            code = ErrorCode.REQUEST_TIMED_OUT if code is None else code
            # As in Kafka, the offsets are those of the append, whatever the error.
            entry.response = replace(entry.response, error_code=code)
    return frozenset(waiting)


def _records(data: wire.PartitionProduceData) -> memoryview | None:
    # A decoded records field is a memoryview or None; the field's wider type is for encoding.
    return cast("memoryview | None", data.records)


def _find(context: RequestContext, entry: _Entry) -> None:
    """Find the partition and its only batch, or set an error response."""
    name = entry.topic.name
    if entry.topic.topic_id != ZERO_UUID:
        topic = context.cluster.topic_by_id(entry.topic.topic_id)
        name = "" if topic is None else topic.name
    if not name and context.version > wire.LAST_VERSION_WITH_NAMES:
        entry.refuse(
            RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, f"topic {entry.topic.topic_id} does not exist")
        )
        return
    try:
        context.check_right(AclOperation.WRITE, ResourceType.TOPIC, name)
        entry.topic_partition = TopicPartition(name, entry.data.index)
        entry.partition = context.cluster.partition(entry.topic_partition)
        entry.batch = only_batch(_records(entry.data), api_version=context.version)
    except RefusedError as refused:
        entry.refuse(refused)


def _verify(
    context: RequestContext, request: wire.ProduceRequest, entries: list[_Entry]
) -> Delayed | None:
    """Check transactional batches with the coordinator; return Delayed if the request must wait.

    Raises RefusedError with INVALID_PRODUCER_ID_MAPPING for batches of several producers.
    """
    batches: list[TransactionalBatch] = []
    by_partition: dict[TopicPartition, _Entry] = {}
    for entry in entries:
        if entry.response is not None or not is_transactional(entry.batch):
            continue
        if entry.batch is None or entry.partition is None or entry.topic_partition is None:
            continue
        producer, base_sequence = producer_of(entry.batch)
        if producer.is_valid:
            by_partition[entry.topic_partition] = entry
            batches.append(
                TransactionalBatch(entry.topic_partition, entry.partition, producer, base_sequence)
            )
    adds = context.version >= _FIRST_VERSION_THAT_ADDS_PARTITIONS
    errors = verify_or_add(
        context,
        request.transactional_id or "",
        batches,
        adds=adds,
        knows_abortable=context.version >= _FIRST_VERSION_WITH_TRANSACTION_ABORTABLE,
    )
    if isinstance(errors, Delayed):
        return errors
    busy = any(code is ErrorCode.CONCURRENT_TRANSACTIONS for code in errors.values())
    if busy and adds and context.now < context.arrived + _MAX_WAIT_FOR_COORDINATOR:
        return Delayed(context.now + _COORDINATOR_BACKOFF)
    for topic_partition, code in errors.items():
        by_partition[topic_partition].refuse(
            RefusedError(code, f"{topic_partition} is not in a transaction: {code.name}")
        )
    return None


def _append(
    context: RequestContext, request: wire.ProduceRequest, entry: _Entry, budget: ValidationBudget
) -> None:
    """Append the batch to the partition's log, and set the response."""
    partition, batch = entry.partition, entry.batch
    if partition is None or batch is None:
        return
    if request.acks not in _VALID_ACKS:
        entry.refuse(
            RefusedError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}"
            )
        )
        return
    if partition.topic.is_internal and context.header.client_id != _ADMIN_CLIENT_ID:
        entry.refuse(
            RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"cannot append to internal topic {partition.topic.name}",
            )
        )
        return
    try:
        partition.check_leader()
        if request.acks == ALL_ACKS:
            partition.check_enough_replicas()
        entry.response, end_offset = _append_batch(
            context, partition, batch, acks=request.acks, budget=budget
        )
        if request.acks == ALL_ACKS:
            entry.unreplicated = (end_offset, partition.term)
    except RefusedError as refused:
        entry.refuse(
            refused,
            log_start_offset=_NO_OFFSET
            if refused.error_code in _ERRORS_WITHOUT_LOG_START
            else partition.log.log_start_offset,
        )


def _answer(
    context: RequestContext, request: wire.ProduceRequest, entries: list[_Entry]
) -> wire.ProduceResponse | None:
    if request.acks == NO_ACKS:
        for entry in entries:
            if entry.response is not None and entry.response.error_code != ErrorCode.NONE:
                raise CloseConnectionError(
                    f"error {entry.response.error_code} of {entry.topic_partition} cannot be "
                    "returned with acks=0"
                )
        return None
    responses = iter([_with_leader(context, entry) for entry in entries])
    leaders = {
        entry.partition.leader_id
        for entry in entries
        if entry.partition is not None
        and entry.response is not None
        and entry.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        and context.version >= _FIRST_VERSION_WITH_LEADERS
    }
    return wire.ProduceResponse(
        responses=tuple(
            wire.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(next(responses) for _ in topic.partition_data),
            )
            for topic in request.topic_data
        ),
        node_endpoints=context.endpoints(wire.NodeEndpoint, leaders),
    )


def _with_leader(context: RequestContext, entry: _Entry) -> wire.PartitionProduceResponse:
    """Return the response, with the current leader if this broker does not lead (KIP-951)."""
    response = entry.response
    if response is None:
        raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{entry.topic_partition} has no result")
    if (
        response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        and context.version >= _FIRST_VERSION_WITH_LEADERS
        and entry.partition is not None
    ):
        return replace(
            response,
            current_leader=wire.LeaderIdAndEpoch(
                leader_id=entry.partition.leader_id, leader_epoch=entry.partition.leader_epoch
            ),
        )
    return response


def _append_batch(
    context: RequestContext,
    partition: Partition,
    batch: memoryview,
    *,
    acks: int,
    budget: ValidationBudget,
) -> tuple[wire.PartitionProduceResponse, int]:
    """Append a batch; return the result, and the offset after the batch."""
    topic = partition.topic
    batch, header = validate_batch(
        batch,
        topic.config,
        now_ms=context.now_ms,
        budget=budget,
    )
    result = partition.append(batch, header, acks=acks, now=context.now)
    if not result.duplicate:
        context.cluster.changed(TopicPartition(topic.name, partition.index))
    reports_time = result.duplicate or topic.config.log_append_time
    response = wire.PartitionProduceResponse(
        index=partition.index,
        error_code=ErrorCode.NONE,
        base_offset=result.first_offset,
        log_append_time_ms=result.timestamp if reports_time else _NO_TIMESTAMP,
        log_start_offset=partition.log.log_start_offset,
    )
    return response, result.last_offset + 1
