"""SaslHandshake 0-1: always ILLEGAL_SASL_STATE.

What begins an authentication does not come here: the connection's SaslAuthenticator takes it. A
connection that has authenticated, or that need not, has no use for it.
"""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


class SaslHandshakeHandler(Handler[SaslHandshakeRequest, SaslHandshakeResponse]):
    """Refuses."""

    api_key = ApiKey.SASL_HANDSHAKE
    versions = SaslHandshakeRequest.versions

    def handle(
        self, context: RequestContext, request: SaslHandshakeRequest
    ) -> SaslHandshakeResponse:
        """Refuse."""
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

    def error_response(
        self,
        context: RequestContext,
        request: SaslHandshakeRequest,
        error_code: ErrorCode,
        message: str,
    ) -> SaslHandshakeResponse:
        """Answer with the error."""
        return SaslHandshakeResponse(error_code=error_code)
