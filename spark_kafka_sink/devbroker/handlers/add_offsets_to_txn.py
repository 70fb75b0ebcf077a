"""AddOffsetsToTxn 0-4: adds the offsets of a consumer group to a transaction.

The coordinator treats them as a partition of __consumer_offsets: the one that holds the group.
Clients that use transaction.version 2 do not need this request. Versions 0 and 1 return
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.base.internal_topics import group_metadata_partition
from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.model import ProducerIdAndEpoch
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FIRST_VERSION_WITH_PRODUCER_FENCED = 2


class AddOffsetsToTxnHandler(Handler[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse]):
    """The handler that adds consumer groups to transactions."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    versions = AddOffsetsToTxnRequest.versions

    def handle(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
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

    def error_response(
        self,
        context: RequestContext,
        request: AddOffsetsToTxnRequest,
        error_code: ErrorCode,
        message: str,
    ) -> AddOffsetsToTxnResponse:
        """Return a response with the error: the group was not added."""
        return AddOffsetsToTxnResponse(
            error_code=context.fenced_as_of(_FIRST_VERSION_WITH_PRODUCER_FENCED, error_code)
        )
