"""SaslHandshake 0-1: always returns ILLEGAL_SASL_STATE.

A handshake that begins an authentication never gets here: the connection's SaslAuthenticator
handles it. On a connection that has authenticated, or does not need to, it is invalid.
"""

from __future__ import annotations

from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@handles(SaslHandshakeRequest)
def sasl_handshake(
    _context: RequestContext, _request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Return ILLEGAL_SASL_STATE."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
