"""PLAIN (RFC 4616): username and password in clear text. Only TLS protects them in transit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.security.sasl import CHECK_LOGIN, SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_kafka_sink.security.sasl import Expiry

_NUL = "\0"


class PlainClient:
    """A PLAIN exchange, which consists of a single message."""

    mechanism = SaslMechanism.PLAIN
    failure = None
    expiry: Expiry | None = None
    hidden: Collection[str] = ()
    advice = CHECK_LOGIN

    def __init__(self, username: str, password: str) -> None:
        """Set the credentials; ValueError for a NUL, which would shift the border between them."""
        for name, value in (("username", username), ("password", password)):
            if _NUL in value:
                raise ValueError(f"the {name} must not contain NUL")
        self.user = username
        self.secret = password
        self.is_complete = False

    def initial_response(self) -> bytes:
        """Return the message, without an authorization id: the user acts as themselves."""
        self.is_complete = True
        return f"{_NUL}{self.user}{_NUL}{self.secret}".encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:  # noqa: ARG002
        """Return None: what the broker sends with its consent changes nothing."""
        return None
