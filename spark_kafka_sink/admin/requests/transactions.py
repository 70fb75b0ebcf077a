"""Requests about transactions, and writes to a partition in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_kafka_sink.admin.cluster_calls import (
    Call,
    CoordinatorOf,
    LeaderOf,
    error_in,
    raise_for_code,
)
from spark_kafka_sink.admin.item_requests import ItemRequest, Routes, split
from spark_kafka_sink.admin.transaction_values import (
    EndAnswer,
    TransactionDescription,
    TransactionEnd,
    TransactionListing,
    end_answer,
)
from spark_kafka_sink.errors import BrokerError, KafkaError
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages import (
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    produce,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.admin.cluster_calls import ClusterCalls
    from spark_kafka_sink.model import Node
    from spark_kafka_sink.network.connection.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.schema import Records

#: The APIs that brokers older than 3.0 lack (KIP-664).
APIS_SINCE_3_0: Final = (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)
#: The first ListTransactions version that filters by a pattern (KIP-1152).
_PATTERN_VERSION: Final = 2
#: The last Produce version that adds no partition to the transaction (KIP-890).
_LAST_TV1_PRODUCE: Final = 11
_ACKS_ALL: Final = -1
#: The most ids in one request, so that no request keeps a coordinator of thousands of ids busy.
_IDS_PER_DESCRIBE: Final = 500


async def list_all_transactions(
    calls: ClusterCalls,
    deadline: float,
    *,
    states: tuple[str, ...],
    pattern: str | None,
    producer_ids: tuple[int, ...] = (),
    min_duration_ms: int = -1,
    needs_pattern: bool = False,
) -> list[TransactionListing]:
    """Return the transactional ids of all brokers, some perhaps twice; raises KafkaError.

    `pattern` saves traffic if a broker supports patterns; the caller has to filter in any case,
    unless `needs_pattern` makes it an error if the broker does not. `states` are names in
    TRANSACTION_STATES.
    """

    def build(
        versions: NodeApiVersions,
    ) -> tuple[list_transactions.ListTransactionsRequest, int | None]:
        has_pattern = versions.version_for(ApiKey.LIST_TRANSACTIONS) >= _PATTERN_VERSION
        request = list_transactions.ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producer_ids,
            duration_filter=min_duration_ms,
            transactional_id_pattern=pattern if has_pattern or needs_pattern else None,
        )
        return request, None

    def call_for(node: Node) -> Call[list_transactions.ListTransactionsResponse]:
        return Call(node, build, "ListTransactions", lambda answer: (answer.error_code,))

    return await calls.list_all(call_for, _listed, deadline)


def _listed(
    response: list_transactions.ListTransactionsResponse, what: str
) -> list[TransactionListing]:
    raise_for_code(response.error_code, what)
    if response.unknown_state_filters:
        raise KafkaError(
            f"{what}: the broker is too old for the states "
            f"{', '.join(response.unknown_state_filters)}"
        )
    return [
        TransactionListing(state.transactional_id, state.producer_id, state.transaction_state)
        for state in response.transaction_states
    ]


def describing_transactions() -> ItemRequest[
    str, describe_transactions.DescribeTransactionsResponse, TransactionDescription
]:
    """Describe the request that describes transactional ids."""
    what = "DescribeTransactions"
    return ItemRequest(
        what=what,
        build=lambda destination, transactional_ids, _: Call(
            destination,
            describe_transactions.DescribeTransactionsRequest(
                transactional_ids=tuple(transactional_ids)
            ),
            f"{what} of {len(transactional_ids)} ids",
        ),
        read=lambda response, _: (
            (
                state.transactional_id,
                error_in(state.error_code, f"{what} of {state.transactional_id!r}")
                or _description(state),
            )
            for state in response.transaction_states
        ),
        route=_to_coordinators,
        forget=lambda calls, ids: calls.forget_coordinators(ids),
    )


async def _to_coordinators(
    calls: ClusterCalls, transactional_ids: Sequence[str], deadline: float
) -> Routes[str]:
    """Group ids by their coordinators; ids whose coordinator is refused get the error."""
    lost: dict[str, KafkaError] = {}
    try:
        groups = await calls.find_coordinators(transactional_ids, deadline)
    except BrokerError:
        groups = {}
        for name in transactional_ids:
            try:
                [node] = await calls.find_coordinators([name], deadline)
            except BrokerError as error:
                lost[name] = error
            else:
                groups.setdefault(node, []).append(name)
    return split(groups, _IDS_PER_DESCRIBE), lost


def _description(state: describe_transactions.TransactionState) -> TransactionDescription:
    start = state.transaction_start_time_ms
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer=ProducerIdAndEpoch(state.producer_id, state.producer_epoch),
        timeout_ms=state.transaction_timeout_ms,
        start_time_ms=None if start < 0 else start,
        partitions=tuple(
            TopicPartition(topic.topic, partition)
            for topic in state.topics
            for partition in topic.partitions
        ),
    )


def end_transaction_call(end: TransactionEnd) -> Call[end_txn.EndTxnResponse]:
    """Build the call that ends a transaction, by the rules with which it was begun.

    EndTxn 5 bumps the epoch, and can therefore tell a retry from the end of the next transaction.
    But if the first EndTxn of a transaction was an older one, version 5 would not report that the
    transaction is committed. So the version depends on the transaction, even if the cluster's has
    changed since.
    """
    request = end_txn.EndTxnRequest(
        transactional_id=end.transactional_id,
        producer_id=end.producer.producer_id,
        producer_epoch=end.producer.epoch,
        committed=end.committed,
    )

    def build(versions: NodeApiVersions) -> tuple[end_txn.EndTxnRequest, int | None]:
        rules = end.transaction_version
        if rules is None:
            rules = versions.transaction_version
        is_bumped = rules >= TRANSACTION_V2
        return request, None if is_bumped else end_txn.LAST_VERSION_WITHOUT_EPOCH_BUMP

    verb = "commit" if end.committed else "abort"
    return Call(
        CoordinatorOf(end.transactional_id),
        build,
        f"EndTxn({verb}) of {end.transactional_id!r}",
        lambda answer: (answer.error_code,),
    )


def ended_transaction(response: end_txn.EndTxnResponse, what: str) -> EndAnswer:
    """Return the answer in a final EndTxn response; raises BrokerError like `end_answer`."""
    producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    return end_answer(
        response.error_code, what, producer=producer if producer.producer_id >= 0 else None
    )


def init_producer_id_call(
    transactional_id: str, *, transaction_timeout_ms: int, current: ProducerIdAndEpoch | None
) -> Call[init_producer_id.InitProducerIdResponse]:
    """Build the call for the producer id of a transactional id; `current` is the caller's own.

    Without `current`, the id's producer is fenced and its open transaction aborted (KIP-98). With
    it, only the next epoch is requested, which is refused to a caller that was itself fenced
    (KIP-360).
    """
    known = current or NO_PRODUCER_ID_AND_EPOCH
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
    )
    return Call(
        CoordinatorOf(transactional_id),
        request,
        f"InitProducerId of {transactional_id!r}",
        lambda answer: (answer.error_code,),
    )


def add_partition_call(
    transactional_id: str, producer: ProducerIdAndEpoch, topic_partition: TopicPartition
) -> Call[add_partitions_to_txn.AddPartitionsToTxnResponse]:
    """Build the call that adds a partition to the transaction (TV1)."""
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(
        name=topic_partition.topic, partitions=(topic_partition.partition,)
    )
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=(topic,),
    )
    return Call(
        CoordinatorOf(transactional_id),
        request,
        f"AddPartitionsToTxn({topic_partition}) of {transactional_id!r}",
        lambda answer: (added_error(answer),),
        max_version=add_partitions_to_txn.LAST_CLIENT_VERSION,
    )


def added_error(response: add_partitions_to_txn.AddPartitionsToTxnResponse) -> int:
    """Return the only error code of an AddPartitionsToTxn response up to version 3."""
    result = response.results_by_topic_v3_and_below[0].results_by_partition[0]
    return result.partition_error_code


def produce_call(
    transactional_id: str,
    topic_partition: TopicPartition,
    batch: Records,
    *,
    rules: int,
    timeout_ms: int,
) -> Call[produce.ProduceResponse]:
    """Build the call that appends a batch in the open transaction, on all in-sync replicas.

    The same bytes may be resent: the broker recognizes a batch by its sequence number.
    """
    partition = produce.PartitionProduceData(index=topic_partition.partition, records=batch)
    request = produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=_ACKS_ALL,
        timeout_ms=timeout_ms,
        topic_data=(
            produce.TopicProduceData(name=topic_partition.topic, partition_data=(partition,)),
        ),
    )
    is_v2 = rules >= TRANSACTION_V2
    return Call(
        LeaderOf(topic_partition),
        request,
        f"Produce of {transactional_id!r} to {topic_partition}",
        lambda answer: (produced_error(answer),),
        max_version=produce.LAST_VERSION_WITH_NAMES if is_v2 else _LAST_TV1_PRODUCE,
    )


def produced_error(response: produce.ProduceResponse) -> int:
    """Return the only error code of a Produce response for one partition."""
    return response.responses[0].partition_responses[0].error_code
