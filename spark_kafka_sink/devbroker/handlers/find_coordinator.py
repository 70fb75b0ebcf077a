"""FindCoordinator 0-6: who looks after a consumer group or a transactional id. Here, nobody.

- For a group the answer is COORDINATOR_NOT_AVAILABLE. It asks the client to try again, in vain; but
  a consumer of librdkafka looks for its coordinator even when it only reads assigned partitions,
  and takes any other error to be its application's business.
- For everything else it is INVALID_REQUEST, which is Kafka's for a kind of coordinator that a
  broker does not have (KafkaApis.getCoordinator, share groups): a transactional producer fails at
  once.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.devbroker.refusal import RefusedError
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_FIRST_VERSION_WITH_MANY_KEYS = 4
_NO_NODE_ID = -1
_NO_PORT = -1
_GROUP_KEY_TYPE = 0
_KINDS = {_GROUP_KEY_TYPE: "consumer groups", 1: "transactions", 2: "share groups"}


class FindCoordinatorHandler(Handler[FindCoordinatorRequest, FindCoordinatorResponse]):
    """Finds no coordinator."""

    api_key = ApiKey.FIND_COORDINATOR
    versions = FindCoordinatorRequest.versions

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Refuse, with the reason."""
        kind = _KINDS.get(request.key_type, f"keys of type {request.key_type}")
        raise RefusedError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE
            if request.key_type == _GROUP_KEY_TYPE
            else ErrorCode.INVALID_REQUEST,
            f"this broker coordinates no {kind}",
        )

    def error_response(
        self,
        context: RequestContext,
        request: FindCoordinatorRequest,
        error_code: ErrorCode,
        message: str,
    ) -> FindCoordinatorResponse:
        """Answer for every key that there is no coordinator."""
        if context.version < _FIRST_VERSION_WITH_MANY_KEYS:
            return FindCoordinatorResponse(
                error_code=error_code,
                error_message=message,
                node_id=_NO_NODE_ID,
                host="",
                port=_NO_PORT,
            )
        return FindCoordinatorResponse(
            coordinators=tuple(
                Coordinator(
                    key=key,
                    node_id=_NO_NODE_ID,
                    host="",
                    port=_NO_PORT,
                    error_code=error_code,
                    error_message=message,
                )
                for key in request.coordinator_keys
            )
        )
