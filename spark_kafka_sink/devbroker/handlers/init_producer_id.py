"""InitProducerId 0-5: assigns a producer id to an idempotent or transactional producer.

Without a transactional id, each request gets a new producer id with epoch 0, even if the request
contains a producer id, as in Kafka. With one, the transaction coordinator decides (epochs, fencing,
CONCURRENT_TRANSACTIONS while a transaction is being ended); any other broker returns
NOT_COORDINATOR. A producer id without an epoch, or the reverse, gets INVALID_REQUEST, and so does
an empty transactional id. Up to version 3, INVALID_PRODUCER_EPOCH is returned instead of
PRODUCER_FENCED (KIP-588).
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FIRST_VERSION_WITH_PRODUCER_FENCED = 4


@handles(
    InitProducerIdRequest,
    when_failed={"producer_epoch": NO_PRODUCER_EPOCH},
    producer_fenced_from=_FIRST_VERSION_WITH_PRODUCER_FENCED,
)
def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Return a new producer id or a new epoch."""
    has_id = request.producer_id != NO_PRODUCER_ID
    has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, "a producer id and its epoch must be given together"
        )
    if request.transactional_id is None:
        identity = ProducerIdAndEpoch(context.cluster.next_producer_id(), 0)
    else:
        if request.transactional_id:
            context.cluster.check_transaction_coordinator(context.node_id, request.transactional_id)
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
