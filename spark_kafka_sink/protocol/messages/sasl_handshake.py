"""SaslHandshake: names the SASL mechanism of a connection (KIP-43).

After version 0 the mechanism's bytes follow without any of Kafka's headers; after version 1 they
come in SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    INT16,
    STRING,
    ApiMessage,
    VersionRange,
    array,
    field,
    message,
)


@message
class SaslHandshakeRequest(ApiMessage):
    """Asks for a mechanism."""

    api_key = ApiKey.SASL_HANDSHAKE
    versions = VersionRange(0, 1)

    mechanism: str = field(STRING)


@message
class SaslHandshakeResponse(ApiMessage):
    """Agrees, or refuses with UNSUPPORTED_SASL_MECHANISM; the broker's mechanisms come with both.

    A connection that was refused is closed by the broker.
    """

    api_key = ApiKey.SASL_HANDSHAKE
    versions = VersionRange(0, 1)

    error_code: int = field(INT16, default=0)
    mechanisms: tuple[str, ...] = field(array(STRING), default=())
