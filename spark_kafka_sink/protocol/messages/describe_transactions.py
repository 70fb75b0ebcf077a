"""DescribeTransactions: the state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class DescribeTransactionsRequest(ApiRequest["DescribeTransactionsResponse"]):
    """A request to the transactional ids' coordinator."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    versions = VersionRange(0, 0)

    transactional_ids: tuple[str, ...] = field(array(STRING))


@message
class TopicData:
    """The partitions of one topic that are in the transaction."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@message
class TransactionState:
    """The state of one transactional id."""

    error_code: int = field(INT16, default=0)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    #: Milliseconds since 1970; -1: there is no transaction.
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: tuple[TopicData, ...] = field(array(TopicData))


@message
class DescribeTransactionsResponse(ApiResponse, request=DescribeTransactionsRequest):
    """A response with one result per transactional id."""

    throttle_time_ms: int = field(INT32, default=0)
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))
