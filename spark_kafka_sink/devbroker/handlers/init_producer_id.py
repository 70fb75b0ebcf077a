"""InitProducerId 0-5: a producer id for an idempotent producer.

Without a transactional id every request gets a new producer id with epoch 0, also one that brings
an id of its own, as from Kafka. A producer id without an epoch, or the reverse, is INVALID_REQUEST,
and so is an empty transactional id. With a transactional id the answer is NOT_COORDINATOR: this
broker coordinates no transactions, and FindCoordinator says so.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


class InitProducerIdHandler(Handler[InitProducerIdRequest, InitProducerIdResponse]):
    """Gives out producer ids."""

    api_key = ApiKey.INIT_PRODUCER_ID
    versions = InitProducerIdRequest.versions

    def handle(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Give out a new producer id."""
        has_id = request.producer_id != NO_PRODUCER_ID
        has_epoch = request.producer_epoch != NO_PRODUCER_EPOCH
        if has_id != has_epoch:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all"
            )
        if request.transactional_id == "":
            raise RefusedError(ErrorCode.INVALID_REQUEST, "a transactional id cannot be empty")
        if request.transactional_id is not None:
            raise RefusedError(ErrorCode.NOT_COORDINATOR, "this broker coordinates no transactions")
        return InitProducerIdResponse(
            error_code=ErrorCode.NONE,
            producer_id=context.cluster.next_producer_id(),
            producer_epoch=0,
        )

    def error_response(
        self,
        context: RequestContext,
        request: InitProducerIdRequest,
        error_code: ErrorCode,
        message: str,
    ) -> InitProducerIdResponse:
        """Answer that no id is given."""
        return InitProducerIdResponse(
            error_code=error_code,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
