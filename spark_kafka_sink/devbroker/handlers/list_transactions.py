"""ListTransactions 0-2: lists the transactional ids that this broker coordinates.

The filters are state (unknown states are returned), producer id, age (1+) and a regular expression
that must match the whole id (2+). An expression that is invalid, or that `id_pattern` does not
support, gets INVALID_REGULAR_EXPRESSION.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.id_pattern import IdPattern
from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.transactions.transaction_state import TransactionState as State
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.transactions.transaction_metadata import TransactionMetadata

_STATE_NAMES = frozenset(str(state) for state in State)


class ListTransactionsHandler(Handler[ListTransactionsRequest, ListTransactionsResponse]):
    """The handler that lists transactional ids."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = ListTransactionsRequest.versions

    def handle(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        """Return the transactional ids that match the filters."""
        pattern = _parsed(request.transactional_id_pattern)
        states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
        return ListTransactionsResponse(
            error_code=ErrorCode.NONE,
            unknown_state_filters=tuple(
                name for name in request.state_filters if name not in _STATE_NAMES
            ),
            transaction_states=tuple(
                TransactionState(
                    transactional_id=metadata.transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=str(metadata.state),
                )
                for metadata in context.cluster.transactions.all(context.now_ms)
                if (not states or str(metadata.state) in states)
                and (not producer_ids or metadata.producer_id in producer_ids)
                and _matches_filters(context, request, metadata)
                and (pattern is None or pattern.matches(metadata.transactional_id))
            ),
        )

    def error_response(
        self,
        context: RequestContext,
        request: ListTransactionsRequest,
        error_code: ErrorCode,
        message: str,
    ) -> ListTransactionsResponse:
        """Return a response with the error and no transactional ids."""
        return ListTransactionsResponse(
            error_code=error_code, unknown_state_filters=(), transaction_states=()
        )


def _parsed(pattern: str | None) -> IdPattern | None:
    if not pattern:
        return None
    try:
        return IdPattern(pattern)
    except ValueError as error:
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
