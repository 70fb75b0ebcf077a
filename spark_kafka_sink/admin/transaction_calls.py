"""The calls that concern transactions: pure descriptions of what is sent, and what answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.admin.cluster_calls import Call, CoordinatorOf, Destination, LeaderOf
from spark_kafka_sink.admin.transaction_values import (
    TRANSACTION_V2,
    TRANSACTION_VERSION_FEATURE,
    EndAnswer,
    ListedTransaction,
    OpenProducer,
    TransactionDescription,
    TransactionEnd,
    end_answer,
)
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.model import (
    NO_PRODUCER_ID_AND_EPOCH,
    ProducerIdAndEpoch,
    TopicPartition,
)
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, broker_error
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    LAST_CLIENT_VERSION,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
)
from spark_kafka_sink.protocol.messages.end_txn import (
    LAST_VERSION_WITHOUT_EPOCH_BUMP,
    EndTxnRequest,
)
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest
from spark_kafka_sink.protocol.messages.produce import (
    LAST_VERSION_WITH_NAMES,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.network.node_api_versions import NodeApiVersions
    from spark_kafka_sink.protocol.schema import Records

#: What brokers older than 3.0 do not have (KIP-664).
APIS_SINCE_3_0: Final = (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)
#: The first version of ListTransactions that filters by a pattern (KIP-1152).
_PATTERN_VERSION: Final = 2
#: The last version of Produce that adds no partition to the transaction (KIP-890).
_LAST_TV1_PRODUCE: Final = 11
_ACKS_ALL: Final = -1


def transaction_version(versions: NodeApiVersions) -> int:
    """Tell by which rules the cluster has transactions begin and end."""
    return versions.finalized_features.get(TRANSACTION_VERSION_FEATURE, 0)


def _top_error(response: Any) -> Sequence[int]:
    return (response.error_code,)


def list_call(destination: Destination, *, states: tuple[str, ...], pattern: str | None) -> Call:
    """Ask a broker for the transactional ids that it coordinates.

    `pattern` spares the network where the broker knows patterns: what comes is to be filtered.
    """

    def build(versions: NodeApiVersions) -> tuple[Any, int | None]:
        has_pattern = versions.version_for(ApiKey.LIST_TRANSACTIONS) >= _PATTERN_VERSION
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=(),
            transactional_id_pattern=pattern if has_pattern else None,
        )
        return request, None

    return Call(
        destination=destination,
        build=build,
        error_codes=_top_error,
        what=f"ListTransactions of {destination}",
    )


def listed(response: Any, what: str) -> list[ListedTransaction]:
    """Read an answer of ListTransactions; raises BrokerError."""
    if response.error_code:
        raise broker_error(response.error_code, what)
    if response.unknown_state_filters:
        raise KafkaError(f"{what}: the broker knows no state {response.unknown_state_filters}")
    return [
        ListedTransaction(state.transactional_id, state.producer_id, state.transaction_state)
        for state in response.transaction_states
    ]


def describe_call(destination: Destination, transactional_ids: Sequence[str]) -> Call:
    """Ask a coordinator about ids; every error is the caller's."""
    request = DescribeTransactionsRequest(transactional_ids=tuple(transactional_ids))
    return Call(
        destination=destination,
        build=lambda _: (request, None),
        error_codes=lambda _: (),
        what=f"DescribeTransactions of {len(request.transactional_ids)} ids",
    )


def description(state: Any) -> TransactionDescription | None:
    """Read one id of an answer; None for an id that is not known.

    Raises BrokerError.
    """
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    if state.error_code:
        raise broker_error(state.error_code, f"DescribeTransactions of {state.transactional_id!r}")
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


def describe_producers_call(topic_partition: TopicPartition) -> Call:
    """Ask the leader of a partition which producers it knows there; needs READ on the topic."""
    topic, partition = topic_partition
    request = DescribeProducersRequest(
        topics=(TopicRequest(name=topic, partition_indexes=(partition,)),)
    )
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, None),
        error_codes=lambda answer: (answer.topics[0].partitions[0].error_code,),
        what=f"DescribeProducers of {topic_partition}",
    )


def open_producers(response: Any, what: str) -> list[OpenProducer]:
    """Read who has an open transaction in the one partition, oldest first; raises BrokerError."""
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise broker_error(answer.error_code, what)
    found = [
        OpenProducer(
            ProducerIdAndEpoch(state.producer_id, state.producer_epoch),
            state.current_txn_start_offset,
            state.last_timestamp,
        )
        for state in answer.active_producers
        if state.current_txn_start_offset >= 0
    ]
    return sorted(found, key=lambda one: one.start_offset)


def end_call(end: TransactionEnd) -> Call:
    """Ask for the end of a transaction, by the rules that it was begun by.

    Version 5 bumps the epoch, and so it tells its own repetition from the end of the next
    transaction; of a transaction whose first EndTxn was an older one it would not say that it is
    committed. So the version goes with the transaction, whatever the cluster has become since.
    """
    request = EndTxnRequest(
        transactional_id=end.transactional_id,
        producer_id=end.producer.producer_id,
        producer_epoch=end.producer.epoch,
        committed=end.committed,
    )

    def build(versions: NodeApiVersions) -> tuple[Any, int | None]:
        rules = end.transaction_version
        if rules is None:
            rules = transaction_version(versions)
        return request, None if rules >= TRANSACTION_V2 else LAST_VERSION_WITHOUT_EPOCH_BUMP

    verb = "commit" if end.committed else "abort"
    return Call(
        destination=CoordinatorOf(end.transactional_id),
        build=build,
        error_codes=_top_error,
        what=f"EndTxn({verb}) of {end.transactional_id!r}",
    )


def ended(response: Any, what: str) -> EndAnswer:
    """Read a final answer of EndTxn; raises BrokerError as `end_answer`."""
    producer = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    return end_answer(
        response.error_code, what, producer=producer if producer.producer_id >= 0 else None
    )


def init_call(
    transactional_id: str, *, transaction_timeout_ms: int, current: ProducerIdAndEpoch | None
) -> Call:
    """Ask for the producer id of a transactional id; `current` is what the caller has it by.

    Without `current` whoever has it is fenced, and its open transaction aborted (KIP-98); with it
    only the next epoch is asked for, and refused to a caller that was itself fenced (KIP-360).
    """
    known = current or NO_PRODUCER_ID_AND_EPOCH
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
    )
    return Call(
        destination=CoordinatorOf(transactional_id),
        build=lambda _: (request, None),
        error_codes=_top_error,
        what=f"InitProducerId of {transactional_id!r}",
    )


def add_partition_call(
    transactional_id: str, producer: ProducerIdAndEpoch, topic_partition: TopicPartition
) -> Call:
    """Let a partition take part in the transaction (TV1)."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=(
            AddPartitionsToTxnTopic(
                name=topic_partition.topic, partitions=(topic_partition.partition,)
            ),
        ),
    )
    return Call(
        destination=CoordinatorOf(transactional_id),
        build=lambda _: (request, LAST_CLIENT_VERSION),
        error_codes=lambda answer: (added_error(answer),),
        what=f"AddPartitionsToTxn({topic_partition}) of {transactional_id!r}",
    )


def added_error(response: Any) -> int:
    """Read the one error code of an answer of AddPartitionsToTxn up to version 3."""
    result = response.results_by_topic_v3_and_below[0].results_by_partition[0]
    return int(result.partition_error_code)


def produce_call(
    transactional_id: str,
    topic_partition: TopicPartition,
    batch: Records,
    *,
    rules: int,
    timeout_ms: int,
) -> Call:
    """Append a batch to its partition, in the open transaction, for all in-sync replicas.

    The same bytes may be sent again: the broker knows a batch by its sequence number.
    """
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=_ACKS_ALL,
        timeout_ms=timeout_ms,
        topic_data=(
            TopicProduceData(
                name=topic_partition.topic,
                partition_data=(
                    PartitionProduceData(index=topic_partition.partition, records=batch),
                ),
            ),
        ),
    )
    max_version = LAST_VERSION_WITH_NAMES if rules >= TRANSACTION_V2 else _LAST_TV1_PRODUCE
    return Call(
        destination=LeaderOf(topic_partition),
        build=lambda _: (request, max_version),
        error_codes=lambda answer: (produced_error(answer),),
        what=f"Produce of {transactional_id!r} to {topic_partition}",
    )


def produced_error(response: Any) -> int:
    """Read the one error code of an answer of Produce to one partition."""
    return int(response.responses[0].partition_responses[0].error_code)
