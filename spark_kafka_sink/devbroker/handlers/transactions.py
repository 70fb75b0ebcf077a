"""Transactions and their producers: what producers request, and what administrators do.

The coordinator also checks that a write of Produce or TxnOffsetCommit belongs to an open
transaction: `verify_or_add`.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.devbroker.base.authorizer import CLUSTER_NAME, not_authorized
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.regular_expression import (
    RegularExpression,
    TooMuchWorkError,
    Work,
)
from spark_kafka_sink.devbroker.base.topic_names import group_metadata_partition
from spark_kafka_sink.devbroker.cluster.cluster_state import Verification
from spark_kafka_sink.devbroker.handlers.handler import Delayed, RequestContext, handles
from spark_kafka_sink.devbroker.transactions.transaction_metadata import (
    TransactionMetadata,
    TransactionState,
)
from spark_kafka_sink.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.protocol.acl_codes import AclOperation, ResourceType
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import describe_producers as producers
from spark_kafka_sink.protocol.messages import describe_transactions as described
from spark_kafka_sink.protocol.messages import list_transactions as listed
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    LAST_CLIENT_VERSION,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from spark_kafka_sink.protocol.messages.end_txn import (
    LAST_VERSION_WITHOUT_EPOCH_BUMP,
    EndTxnRequest,
    EndTxnResponse,
)
from spark_kafka_sink.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from spark_kafka_sink.devbroker.cluster.partition import Partition
    from spark_kafka_sink.devbroker.log.producer_state import ProducerStateEntry

#: Retriable errors that a write reports as NOT_ENOUGH_REPLICAS, which makes even older clients
#: retry without a metadata refresh.
_RETRIABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
#: Of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.
_FIRST_VERSION_WITH_PRODUCER_FENCED = 2
#: Of InitProducerId.
_FIRST_INIT_VERSION_WITH_PRODUCER_FENCED = 4
#: The steps that matching may take.
_MAX_WORK = 2_000_000
_NO_OFFSET = -1
#: More seconds than a broker waits for the coordinator; then it responds anyway.
_COORDINATOR_TIMEOUT = 60.0


class TransactionalBatch(NamedTuple):
    """A batch that is marked as transactional."""

    topic_partition: TopicPartition
    partition: Partition
    producer: ProducerIdAndEpoch
    base_sequence: int


def verify_or_add(
    context: RequestContext,
    transactional_id: str,
    batches: Sequence[TransactionalBatch],
    *,
    adds: bool,
    knows_abortable: bool,
) -> dict[TopicPartition, ErrorCode] | Delayed:
    """Check the batches of a request; return the errors of those that must not be appended.

    Returns Delayed while the coordinator has not responded.

    Kafka's ReplicaManager.maybeSendPartitionsToTransactionCoordinator and AddPartitionsToTxnManager
    (KIP-890). Only a transaction's first write to a partition is checked, and the coordinator's
    errors are converted to those that clients expect from a write.

    With `adds` the partitions are added to the transaction; without it they must be in it already.
    Raises RefusedError with INVALID_PRODUCER_ID_MAPPING if the batches have several producers.
    """
    producers = {batch.producer for batch in batches}
    if not producers:
        return {}
    if len(producers) > 1:
        raise RefusedError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "the request has transactional records of more than one producer id or epoch",
        )
    (producer,) = producers
    errors: dict[TopicPartition, ErrorCode] = {}
    unknown: set[TopicPartition] = set()
    for batch in batches:
        try:
            batch.partition.check_leader()
            if batch.partition.log.producer_state.start_verification(
                producer.producer_id,
                producer.epoch,
                batch.base_sequence,
                supports_epoch_bump=adds,
                now_ms=context.now_ms,
            ):
                unknown.add(batch.topic_partition)
        except RefusedError as refused:
            errors[batch.topic_partition] = refused.error_code
    if unknown:
        codes = ask_coordinator(context, transactional_id, producer, frozenset(unknown), adds=adds)
        if isinstance(codes, Delayed):
            return codes
        for topic_partition, code in codes.items():
            if code is not ErrorCode.NONE:
                errors[topic_partition] = as_write_error(
                    code, adds=adds, knows_abortable=knows_abortable
                )
    return errors


def ask_coordinator(
    context: RequestContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    *,
    adds: bool,
) -> Mapping[TopicPartition, ErrorCode] | Delayed:
    """Add or verify partitions at the coordinator, whichever broker it is; or wait for it."""
    verification = context.kept
    if not isinstance(verification, Verification):
        verification = context.cluster.verify(
            transactional_id, producer, partitions, adds=adds, now=context.now
        )
    if verification.codes is None:
        until = context.now + _COORDINATOR_TIMEOUT
        return Delayed(until, frozenset({verification}), verification)
    return verification.codes


def as_write_error(code: ErrorCode, *, adds: bool, knows_abortable: bool) -> ErrorCode:
    """Convert an error of the coordinator to the error of a write."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code


_STATE_NAMES = frozenset(str(state) for state in TransactionState)


def _check_coordinator(context: RequestContext, transactional_id: str) -> None:
    """Raise RefusedError with NOT_COORDINATOR; the coordinator refuses an empty id."""
    if transactional_id:
        context.cluster.check_transaction_coordinator(transactional_id)


@handles(
    InitProducerIdRequest,
    when_failed={"producer_epoch": NO_PRODUCER_EPOCH},
    producer_fenced_from=_FIRST_INIT_VERSION_WITH_PRODUCER_FENCED,
)
def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Assign a producer id to an idempotent or transactional producer (InitProducerId 0-5).

    Without a transactional id, each request gets a new producer id with epoch 0, even if the
    request contains a producer id, as in Kafka. With one, the transaction coordinator decides
    (epochs, fencing, CONCURRENT_TRANSACTIONS while a transaction is being ended); any other broker
    returns NOT_COORDINATOR. A producer id without an epoch, or the reverse, gets INVALID_REQUEST,
    and so does an empty transactional id. Up to version 3, INVALID_PRODUCER_EPOCH is returned
    instead of PRODUCER_FENCED (KIP-588).
    """
    _check_right_to_init(context, request.transactional_id)
    has_id = request.producer_id != NO_PRODUCER_ID
    has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "a producer id and its epoch must be given together"
        )
    if request.transactional_id is None:
        identity = ProducerIdAndEpoch(context.cluster.next_producer_id(), 0)
    else:
        _check_coordinator(context, request.transactional_id)
        identity = context.cluster.transactions.init_producer_id(
            request.transactional_id,
            request.transaction_timeout_ms,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if has_id else None,
            context.now_ms,
        )
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


def _check_right_to_init(context: RequestContext, transactional_id: str | None) -> None:
    """Raise RefusedError unless the client may use a transactional id, or be idempotent.

    Without an id it needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679).
    """
    if transactional_id is not None:
        context.check_right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not context.allows(
        AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    ) and not context.allows_any(AclOperation.WRITE, ResourceType.TOPIC):
        raise not_authorized(ResourceType.CLUSTER)


def _failed_addition(
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
    error_code: ErrorCode,
    _message: str,
) -> AddPartitionsToTxnResponse:
    """Return a response with the error: nothing was added."""
    response = _added_response(
        context, request, lambda transaction: _result(transaction, lambda _: error_code)
    )
    if context.version <= LAST_CLIENT_VERSION:
        return response
    return AddPartitionsToTxnResponse(
        error_code=error_code, results_by_transaction=response.results_by_transaction
    )


@handles(AddPartitionsToTxnRequest, error_response=_failed_addition)
def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction before they are written to (AddPartitionsToTxn 0-5).

    Either all partitions of a transaction are added or none: one that does not exist gets
    UNKNOWN_TOPIC_OR_PARTITION and the others OPERATION_NOT_ATTEMPTED. Versions 0 and 1 return
    INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

    Brokers use versions 4 and 5 among themselves, for several transactions whose epochs are bumped
    with each transaction (KIP-890). With `verify_only`, a transaction is only checked: partitions
    that are not in it already get TRANSACTION_ABORTABLE. A transactional id that occurs twice gets
    INVALID_REQUEST.
    """
    if context.version > LAST_CLIENT_VERSION:
        context.check_right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    # Ids must not be repeated: each change rewrites all the partitions of the transaction.
    times = Counter(transaction.transactional_id for transaction in request.transactions)

    def answer(transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        if times[transaction.transactional_id] > 1:
            return _result(transaction, lambda _: ErrorCode.INVALID_REQUEST)
        codes = _add_or_verify(context, transaction)
        return _result(transaction, codes.__getitem__)

    return _added_response(context, request, answer)


def _added_response(
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
    answer: Callable[[AddPartitionsToTxnTransaction], AddPartitionsToTxnResult],
) -> AddPartitionsToTxnResponse:
    """Build the response from each transaction's result, in the layout of the request's version."""
    if context.version > LAST_CLIENT_VERSION:
        return AddPartitionsToTxnResponse(
            results_by_transaction=tuple(map(answer, request.transactions))
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=answer(transaction).topic_results
    )


def _add_or_verify(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> dict[TopicPartition, ErrorCode]:
    partitions = frozenset(
        TopicPartition(topic.name, partition)
        for topic in transaction.topics
        for partition in topic.partitions
    )
    is_client = context.version <= LAST_CLIENT_VERSION
    if is_client and not context.allows(
        AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
    ):
        return dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    problems: dict[TopicPartition, ErrorCode] = {}
    for partition in partitions:
        if is_client and not context.allows(
            AclOperation.WRITE, ResourceType.TOPIC, partition.topic
        ):
            problems[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not context.cluster.has(partition):
            problems[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if problems:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | problems
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    transactions = context.cluster.transactions
    try:
        _check_coordinator(context, transaction.transactional_id)
        if transaction.verify_only:
            return transactions.verify_partitions(
                transaction.transactional_id, producer, partitions, now_ms=context.now_ms
            )
        transactions.add_partitions(
            transaction.transactional_id,
            producer,
            partitions,
            client_version=0 if context.version <= LAST_CLIENT_VERSION else 2,
            now_ms=context.now_ms,
        )
    except RefusedError as refused:
        code = context.fenced_as_of(_FIRST_VERSION_WITH_PRODUCER_FENCED, refused.error_code)
    else:
        code = ErrorCode.NONE
    return dict.fromkeys(partitions, code)


def _result(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[TopicPartition], ErrorCode]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=partition,
                        partition_error_code=code_of(TopicPartition(topic.name, partition)),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in transaction.topics
        ),
    )


@handles(AddOffsetsToTxnRequest, producer_fenced_from=_FIRST_VERSION_WITH_PRODUCER_FENCED)
def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the offsets of a group to a transaction (AddOffsetsToTxn 0-4).

    The coordinator treats them as a partition of __consumer_offsets: the one that holds the group.
    Clients that use transaction.version 2 do not need this request. Versions 0 and 1 return
    INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
    """
    _check_coordinator(context, request.transactional_id)
    context.cluster.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        frozenset({group_metadata_partition(request.group_id)}),
        client_version=0,
        now_ms=context.now_ms,
    )
    return AddOffsetsToTxnResponse(error_code=ErrorCode.NONE)


@handles(EndTxnRequest, producer_fenced_from=_FIRST_VERSION_WITH_PRODUCER_FENCED)
def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort a transaction (EndTxn 0-5).

    From version 5 on (KIP-890) the response has the producer's next epoch, or a new producer id
    once the epochs are exhausted; in earlier versions id and epoch do not change. The transaction
    coordinator decides which requests to reject, and whether a repeated request gets NONE or
    CONCURRENT_TRANSACTIONS. Versions 0 and 1 return INVALID_PRODUCER_EPOCH instead of
    PRODUCER_FENCED.
    """
    _check_coordinator(context, request.transactional_id)
    identity = context.cluster.transactions.end(
        request,
        context.now_ms,
        client_version=2 if context.version > LAST_VERSION_WITHOUT_EPOCH_BUMP else 0,
    )
    return EndTxnResponse(
        error_code=ErrorCode.NONE,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
    )


@handles(described.DescribeTransactionsRequest)
def describe_transactions(
    context: RequestContext, request: described.DescribeTransactionsRequest
) -> described.DescribeTransactionsResponse:
    """Describe the state, producer and partitions of transactional ids (DescribeTransactions 0).

    An unknown id gets TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST.
    """
    return described.DescribeTransactionsResponse(
        transaction_states=context.each_result(
            described.TransactionState,
            "transactional_id",
            request.transactional_ids,
            partial(_describe_transaction, context),
        )
    )


def _describe_transaction(
    context: RequestContext, transactional_id: str
) -> described.TransactionState:
    context.check_right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not transactional_id:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "a transactional id cannot be empty")
    context.cluster.check_transaction_coordinator(transactional_id)
    metadata = context.cluster.transactions.find(transactional_id, context.now_ms)
    if metadata is None:
        raise RefusedError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"{transactional_id!r} does not exist"
        )
    return described.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=str(metadata.state),
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=_topics(
            partition
            for partition in metadata.partitions
            if context.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, partition.topic)
        ),
    )


def _topics(topic_partitions: Iterable[TopicPartition]) -> tuple[described.TopicData, ...]:
    partitions: dict[str, list[int]] = {}
    for topic_partition in sorted(topic_partitions):
        partitions.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return tuple(
        described.TopicData(topic=topic, partitions=tuple(indexes))
        for topic, indexes in partitions.items()
    )


@handles(listed.ListTransactionsRequest)
def list_transactions(
    context: RequestContext, request: listed.ListTransactionsRequest
) -> listed.ListTransactionsResponse:
    """List the transactional ids that this broker coordinates (ListTransactions 0-2).

    The filters are state (unknown states are returned), producer id, age (1+) and a regular
    expression that must match the whole id (2+). An expression that is invalid gets
    INVALID_REGULAR_EXPRESSION, and so does one that takes more than `_MAX_WORK` steps to match:
    Kafka, which has many threads, matches that one too.
    """
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    transactions = {
        metadata.transactional_id: metadata
        for metadata in context.cluster.transactions.all(context.now_ms)
        if (not states or str(metadata.state) in states)
        and (not producer_ids or metadata.producer_id in producer_ids)
        and _matches_filters(context, request, metadata)
        and context.allows(
            AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, metadata.transactional_id
        )
    }
    return listed.ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in _STATE_NAMES
        ),
        transaction_states=tuple(
            listed.TransactionState(
                transactional_id=transactional_id,
                producer_id=transactions[transactional_id].producer_id,
                transaction_state=str(transactions[transactional_id].state),
            )
            for transactional_id in _matching(request.transactional_id_pattern, transactions)
        ),
    )


def _matching(pattern: str | None, transactional_ids: Collection[str]) -> list[str]:
    """Return the ids that match a regular expression, or all if there is none."""
    if not pattern:
        return list(transactional_ids)
    try:
        expression = RegularExpression(
            pattern, Work(_MAX_WORK), frozenset().union(*transactional_ids)
        )
        return list(filter(expression.matches, transactional_ids))
    except (ValueError, TooMuchWorkError) as error:
        raise RefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{pattern!r} cannot be used as a regular expression: {error}",
        ) from error


def _matches_filters(
    context: RequestContext, request: listed.ListTransactionsRequest, metadata: TransactionMetadata
) -> bool:
    cluster = context.cluster
    return (
        cluster.transaction_coordinator(metadata.transactional_id) == context.node_id
        # A transactional id without a transaction counts as very old, as in Kafka.
        and not 0 <= context.now_ms - metadata.start_ms <= request.duration_filter
    )


def _failed_producers(
    _context: RequestContext,
    request: producers.DescribeProducersRequest,
    error_code: ErrorCode,
    message: str,
) -> producers.DescribeProducersResponse:
    """Return a response with the error for each partition, which is in it once."""
    return _producers_response(
        request,
        lambda partition: producers.PartitionResponse(
            partition_index=partition.partition,
            error_code=error_code,
            error_message=message,
            active_producers=(),
        ),
    )


@handles(producers.DescribeProducersRequest, error_response=_failed_producers)
def describe_producers(
    context: RequestContext, request: producers.DescribeProducersRequest
) -> producers.DescribeProducersResponse:
    """Describe the idempotent and transactional producers of partitions (DescribeProducers 0).

    A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, one that another broker leads
    NOT_LEADER_OR_FOLLOWER.
    """

    def describe(topic_partition: TopicPartition) -> producers.PartitionResponse:
        try:
            context.check_right(AclOperation.READ, ResourceType.TOPIC, topic_partition.topic)
            partition = context.cluster.partition(topic_partition)
            partition.check_leader()
        except RefusedError as refused:
            return context.failed(
                producers.PartitionResponse, refused, partition_index=topic_partition.partition
            )
        return producers.PartitionResponse(
            partition_index=topic_partition.partition,
            error_code=ErrorCode.NONE,
            active_producers=tuple(map(_producer, partition.log.producer_state.entries())),
        )

    return _producers_response(request, describe)


def _producer(entry: ProducerStateEntry) -> producers.ProducerState:
    first_offset = entry.current_txn_first_offset
    return producers.ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=_NO_OFFSET if first_offset is None else first_offset,
    )


def _producers_response(
    request: producers.DescribeProducersRequest,
    answer: Callable[[TopicPartition], producers.PartitionResponse],
) -> producers.DescribeProducersResponse:
    # Drop duplicates: a small request that repeats a partition would get a huge response.
    partitions_by_topic: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        partitions_by_topic.setdefault(topic.name, {}).update(
            dict.fromkeys(topic.partition_indexes)
        )
    return producers.DescribeProducersResponse(
        topics=tuple(
            producers.TopicResponse(
                name=name,
                partitions=tuple(answer(TopicPartition(name, index)) for index in indexes),
            )
            for name, indexes in partitions_by_topic.items()
        )
    )
