"""PLAIN (RFC 4616), as in Kafka's PlainSaslServer: one message with the user and the password."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.sasl.sasl_server import (
    SaslAuthenticationError,
    check_authorization_id,
)

if TYPE_CHECKING:
    from spark_kafka_sink.devbroker.sasl.credentials import Credentials

_TOKENS = 3


class PlainServer:
    """The broker's side of one PLAIN exchange."""

    expires_at = None

    def __init__(self, credentials: Credentials) -> None:
        """Create an exchange that checks passwords with `credentials`."""
        self._credentials = credentials
        self.is_complete = False
        self.user = ""

    def evaluate_response(self, response: bytes, now: float) -> bytes:  # noqa: ARG002 - its protocol
        """Evaluate the client's message; see `SaslServer`."""
        tokens = response.decode("utf-8", "replace").split("\0", _TOKENS)
        if len(tokens) != _TOKENS:
            raise SaslAuthenticationError(
                f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(tokens)}"
            )
        authorization_id, user, password = tokens
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        if not self._credentials.has_password(user, password):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        check_authorization_id(authorization_id, user)
        self.user = user
        self.is_complete = True
        return b""
