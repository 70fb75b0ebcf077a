"""SaslAuthenticate: carries one message of a SASL mechanism and the broker's reply (KIP-152).

Version 1 adds the session lifetime (KIP-368), 2 is flexible.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class SaslAuthenticateRequest(ApiRequest["SaslAuthenticateResponse"]):
    """The client's message. It may contain a password, so its repr shows only the length."""

    api_key = ApiKey.SASL_AUTHENTICATE
    versions = VersionRange(0, 2)

    auth_bytes: bytes = field(BYTES)

    def __repr__(self) -> str:
        """Return a repr without the bytes, which may be secret."""
        return f"SaslAuthenticateRequest(auth_bytes=[{len(self.auth_bytes)} bytes hidden])"


@message
class SaslAuthenticateResponse(ApiResponse, request=SaslAuthenticateRequest):
    """The broker's reply or error; the last reply contains the session lifetime."""

    error_code: int = field(INT16, default=0)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    auth_bytes: bytes = field(BYTES, default=b"")
    #: Milliseconds until the connection must reauthenticate; 0 for never.
    session_lifetime_ms: int = field(INT64, versions="1+", ignorable=True, default=0)
