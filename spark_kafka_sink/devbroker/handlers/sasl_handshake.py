"""SaslHandshake 0-1: always returns ILLEGAL_SASL_STATE.

A handshake that begins an authentication never gets here: the connection's SaslAuthenticator
handles it. On a connection that has authenticated, or does not need to, it is invalid.
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
    """The handler that rejects SaslHandshake outside of authentication."""

    api_key = ApiKey.SASL_HANDSHAKE
    versions = SaslHandshakeRequest.versions

    def handle(
        self, context: RequestContext, request: SaslHandshakeRequest
    ) -> SaslHandshakeResponse:
        """Return ILLEGAL_SASL_STATE."""
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

    def error_response(
        self,
        context: RequestContext,
        request: SaslHandshakeRequest,
        error_code: ErrorCode,
        message: str,
    ) -> SaslHandshakeResponse:
        """Return a response with the error."""
        return SaslHandshakeResponse(error_code=error_code)
