"""EndTxn 0-5: the end of a transaction, one way or the other.

From version 5 on (KIP-890) the answer has the producer's next epoch, or its next id once its epochs
are used up; before, id and epoch stay as they are. What is refused, and when a repeated request is
NONE or CONCURRENT_TRANSACTIONS, is the transaction coordinator's business. Versions 0 and 1 say
INVALID_PRODUCER_EPOCH for PRODUCER_FENCED.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.transaction_coordinator import EndTransaction
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.end_txn import (
    LAST_VERSION_WITHOUT_EPOCH_BUMP,
    EndTxnRequest,
    EndTxnResponse,
)

_FIRST_VERSION_WITH_PRODUCER_FENCED = 2


class EndTxnHandler(Handler[EndTxnRequest, EndTxnResponse]):
    """Commits and aborts."""

    api_key = ApiKey.END_TXN
    versions = EndTxnRequest.versions

    def handle(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        """Decide, and have the markers written."""
        if request.transactional_id:
            context.cluster.check_transaction_coordinator(context.node_id, request.transactional_id)
        identity = context.cluster.transactions.end(
            EndTransaction(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                committed=request.committed,
                client_version=2 if context.version > LAST_VERSION_WITHOUT_EPOCH_BUMP else 0,
            ),
            context.now_ms,
        )
        return EndTxnResponse(
            error_code=ErrorCode.NONE,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
        )

    def error_response(
        self,
        context: RequestContext,
        request: EndTxnRequest,
        error_code: ErrorCode,
        message: str,
    ) -> EndTxnResponse:
        """Answer that nothing has ended."""
        return EndTxnResponse(
            error_code=context.fenced_as_of(_FIRST_VERSION_WITH_PRODUCER_FENCED, error_code)
        )
