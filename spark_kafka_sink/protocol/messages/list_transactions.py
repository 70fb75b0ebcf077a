"""ListTransactions: the transactional ids that a broker coordinates (KIP-664).

1 filters by age (KIP-994), 2 by a regular expression over the ids (KIP-1152).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    INT32,
    INT64,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)


@message
class ListTransactionsRequest(ApiMessage):
    """Asks one broker."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = VersionRange(0, 2)

    #: Names of states; empty: whatever state.
    state_filters: tuple[str, ...] = field(array(STRING))
    #: Empty: whatever producer.
    producer_id_filters: tuple[int, ...] = field(array(INT64))
    #: Only transactions open for longer, in milliseconds; -1: all.
    duration_filter: int = field(INT64, versions="1+", default=-1)
    #: In the language of RE2J; None or empty: all.
    transactional_id_pattern: str | None = field(STRING, versions="2+", nullable="2+", default=None)


@message
class TransactionState:
    """One transactional id."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


@message
class ListTransactionsResponse(ApiMessage):
    """Lists transactional ids."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = VersionRange(0, 2)

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    #: Filters that name no state.
    unknown_state_filters: tuple[str, ...] = field(array(STRING))
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))
