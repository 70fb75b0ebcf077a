"""ListTransactions 0-2: lists the transactional ids that this broker coordinates.

The filters are state (unknown states are returned), producer id, age (1+) and a regular expression
that must match the whole id (2+). An expression that is invalid gets INVALID_REGULAR_EXPRESSION,
and so does one that takes more than `_MAX_WORK` steps to match: Kafka, which has many threads,
matches that one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.regular_expression import (
    RegularExpression,
    TooMuchWorkError,
    Work,
)
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionState as State
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionMetadata

#: The steps that matching may take.
_MAX_WORK = 2_000_000
_STATE_NAMES = frozenset(str(state) for state in State)


@handles(ListTransactionsRequest)
def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """Return the transactional ids that match the filters."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    transactions = {
        metadata.transactional_id: metadata
        for metadata in context.cluster.transactions.all(context.now_ms)
        if (not states or str(metadata.state) in states)
        and (not producer_ids or metadata.producer_id in producer_ids)
        and _matches_filters(context, request, metadata)
    }
    return ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in _STATE_NAMES
        ),
        transaction_states=tuple(
            TransactionState(
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
    context: RequestContext, request: ListTransactionsRequest, metadata: TransactionMetadata
) -> bool:
    cluster = context.cluster
    return (
        cluster.transaction_coordinator(metadata.transactional_id) == context.node_id
        # A transactional id without a transaction counts as very old, as in Kafka.
        and not 0 <= context.now_ms - metadata.start_ms <= request.duration_filter
    )
