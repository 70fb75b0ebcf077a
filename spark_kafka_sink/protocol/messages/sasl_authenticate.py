"""SaslAuthenticate: carries one message of a SASL mechanism, and the answer to it (KIP-152).

1 tells how long the session lasts (KIP-368), 2 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import (
    BYTES,
    INT16,
    INT64,
    STRING,
    ApiMessage,
    VersionRange,
    field,
    message,
)


@message
class SaslAuthenticateRequest(ApiMessage):
    """What the client says. It may hold a password, so its repr shows only how long it is."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = VersionRange(0, 2)

    auth_bytes: bytes = field(BYTES)

    def __repr__(self) -> str:
        """Hide what may be a secret."""
        return f"SaslAuthenticateRequest(auth_bytes=[{len(self.auth_bytes)} bytes hidden])"


@message
class SaslAuthenticateResponse(ApiMessage):
    """What the broker says, or why it refuses; with the last answer the session's length."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = VersionRange(0, 2)

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    auth_bytes: bytes = field(BYTES, default=b"")
    #: Milliseconds until the connection must authenticate again; 0 for never.
    session_lifetime_ms: int = field(INT64, versions="1+", ignorable=True, default=0)
