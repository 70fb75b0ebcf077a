"""SaslAuthenticate 0-2: always returns ILLEGAL_SASL_STATE, for the same reason as SaslHandshake."""

# ruff: noqa: ARG002 - every handler has the signatures of Handler

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import Handler, RequestContext
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


class SaslAuthenticateHandler(Handler[SaslAuthenticateRequest, SaslAuthenticateResponse]):
    """The handler that rejects SaslAuthenticate after authentication."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = SaslAuthenticateRequest.versions

    def handle(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        """Return ILLEGAL_SASL_STATE."""
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )

    def error_response(
        self,
        context: RequestContext,
        request: SaslAuthenticateRequest,
        error_code: ErrorCode,
        message: str,
    ) -> SaslAuthenticateResponse:
        """Return a response with the error."""
        return SaslAuthenticateResponse(error_code=error_code, error_message=message)
