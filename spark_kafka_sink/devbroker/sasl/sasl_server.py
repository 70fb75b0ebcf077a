"""The broker's side of a SASL mechanism: message in, response out.

A `SaslServer` is one exchange (SaslServer of javax.security.sasl); each authentication creates a
new one. As in Kafka, its errors are of two kinds: those whose message may be sent to the client,
and those whose message is only for the broker's log, because it would reveal whether a user exists.
"""

from __future__ import annotations

from typing import Protocol

from spark_kafka_sink.errors import KafkaError


class SaslRefusedError(KafkaError):
    """The exchange has failed; the message is only for the log (SaslException)."""


class SaslAuthenticationError(SaslRefusedError):
    """The exchange has failed; the message is sent to the client (SaslAuthenticationException)."""


class SaslServer(Protocol):
    """The broker's side of one exchange."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has authenticated."""

    @property
    def user(self) -> str:
        """The authenticated user; meaningful only once the exchange is complete."""

    @property
    def expires_at(self) -> float | None:
        """When the client's credential expires, in seconds since 1970; None for never."""

    def evaluate_response(self, response: bytes, now: float) -> bytes:
        """Evaluate the client's message and return the response. Raises SaslRefusedError."""


def check_authorization_id(requested: str, user: str) -> None:
    """Raise SaslAuthenticationError if the client wants to act as another user."""
    if requested not in {"", user}:
        raise SaslAuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )
