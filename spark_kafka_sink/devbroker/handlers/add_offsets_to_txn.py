"""AddOffsetsToTxn 0-4: adds the offsets of a consumer group to a transaction.

The coordinator treats them as a partition of __consumer_offsets: the one that holds the group.
Clients that use transaction.version 2 do not need this request. Versions 0 and 1 return
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.base.topic_names import group_metadata_partition
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FIRST_VERSION_WITH_PRODUCER_FENCED = 2


@handles(AddOffsetsToTxnRequest, producer_fenced_from=_FIRST_VERSION_WITH_PRODUCER_FENCED)
def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the group to the transaction."""
    if request.transactional_id:
        context.cluster.check_transaction_coordinator(context.node_id, request.transactional_id)
    context.cluster.transactions.add_partitions(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        frozenset({group_metadata_partition(request.group_id)}),
        client_version=0,
        now_ms=context.now_ms,
    )
    return AddOffsetsToTxnResponse(error_code=ErrorCode.NONE)
