"""SaslAuthenticate 0-2: always ILLEGAL_SASL_STATE, for the reason that SaslHandshake has."""

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
    """Refuses."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = SaslAuthenticateRequest.versions

    def handle(
        self, context: RequestContext, request: SaslAuthenticateRequest
    ) -> SaslAuthenticateResponse:
        """Refuse."""
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
        """Answer with the error."""
        return SaslAuthenticateResponse(error_code=error_code, error_message=message)
