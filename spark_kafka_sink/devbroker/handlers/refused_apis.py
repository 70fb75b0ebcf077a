"""APIs that the broker always refuses, as Kafka does in the same situation.

SaslHandshake 0-1 and SaslAuthenticate 0-2 get ILLEGAL_SASL_STATE. Those that belong to an
authentication never get here: the connection's SaslAuthenticator handles them. On a connection that
has authenticated, or does not need to, they are invalid.
"""

from __future__ import annotations

from typing import NoReturn

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest


def _refuse_sasl(_context: RequestContext, _request: object) -> NoReturn:
    raise RefusedError(
        ErrorCode.ILLEGAL_SASL_STATE,
        "SaslAuthenticate request received after successful authentication",
    )


sasl_authenticate = handles(SaslAuthenticateRequest)(_refuse_sasl)
sasl_handshake = handles(SaslHandshakeRequest)(_refuse_sasl)
