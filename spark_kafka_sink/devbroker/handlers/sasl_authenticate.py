"""SaslAuthenticate 0-2: always returns ILLEGAL_SASL_STATE, for the same reason as SaslHandshake."""

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


@handles(SaslAuthenticateRequest)
def sasl_authenticate(
    _context: RequestContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Return ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
