"""SaslHandshake: selects the SASL mechanism of a connection (KIP-43).

After version 0 the mechanism's bytes follow without Kafka headers; after version 1 they are sent in
SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class SaslHandshakeRequest(ApiRequest["SaslHandshakeResponse"]):
    """A request for a mechanism."""

    api_key = ApiKey.SASL_HANDSHAKE
    versions = VersionRange(0, 1)

    mechanism: str = field(STRING)


@message
class SaslHandshakeResponse(ApiResponse, request=SaslHandshakeRequest):
    """A response that accepts the mechanism or rejects it with UNSUPPORTED_SASL_MECHANISM.

    Both list the broker's mechanisms. After a rejection the broker closes the connection.
    """

    error_code: int = field(INT16, default=0)
    mechanisms: tuple[str, ...] = field(array(STRING), default=())
