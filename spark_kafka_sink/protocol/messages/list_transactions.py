"""ListTransactions: the transactional ids that a broker coordinates (KIP-664).

Version 1 can filter by duration (KIP-994), 2 by a regular expression on the ids (KIP-1152).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class ListTransactionsRequest(ApiRequest["ListTransactionsResponse"]):
    """A request to one broker."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = VersionRange(0, 2)

    #: Names of states; empty: any state.
    state_filters: tuple[str, ...] = field(array(STRING))
    #: Empty: any producer.
    producer_id_filters: tuple[int, ...] = field(array(INT64))
    #: Only transactions that have been open for longer, in milliseconds; -1: all.
    duration_filter: int = field(INT64, versions="1+", default=-1)
    #: In RE2J syntax; None or empty: all.
    transactional_id_pattern: str | None = field(STRING, versions="2+", nullable="2+", default=None)


@message
class TransactionState:
    """The state of one transactional id."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


@message
class ListTransactionsResponse(ApiResponse, request=ListTransactionsRequest):
    """A response with the broker's transactional ids."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    #: The requested filters that are not names of states.
    unknown_state_filters: tuple[str, ...] = field(array(STRING))
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))
