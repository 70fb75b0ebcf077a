"""EndTxn 0-5: commits or aborts a transaction.

From version 5 on (KIP-890) the response has the producer's next epoch, or a new producer id once
the epochs are exhausted; in earlier versions id and epoch do not change. The transaction
coordinator decides which requests to reject, and whether a repeated request gets NONE or
CONCURRENT_TRANSACTIONS. Versions 0 and 1 return INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.devbroker.transactions.transaction_coordinator import EndTransaction
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.end_txn import (
    LAST_VERSION_WITHOUT_EPOCH_BUMP,
    EndTxnRequest,
    EndTxnResponse,
)

_FIRST_VERSION_WITH_PRODUCER_FENCED = 2


@handles(EndTxnRequest, producer_fenced_from=_FIRST_VERSION_WITH_PRODUCER_FENCED)
def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Record the outcome and write the transaction markers."""
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
