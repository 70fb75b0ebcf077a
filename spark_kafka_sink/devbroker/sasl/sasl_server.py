"""SASL mechanisms from the broker's side: bytes that came, and bytes to answer.

A `SaslServer` holds one exchange (Kafka's SaslServer of javax.security.sasl) and is made anew for
each authentication. It refuses in one of two ways, as Kafka's do: with a sentence that the client
may read, or with one that is for the broker's log alone, because it would tell a stranger whether a
user exists.
"""

from __future__ import annotations

from typing import Protocol

from spark_kafka_sink.errors import KafkaError


class SaslRefusedError(KafkaError):
    """The exchange has failed; the message is for the log (SaslException)."""


class SaslAuthenticationError(SaslRefusedError):
    """The exchange has failed; the client is told the message (SaslAuthenticationException)."""


class SaslServer(Protocol):
    """The broker's side of one exchange."""

    @property
    def is_complete(self) -> bool:
        """Whether the client is who it says."""

    @property
    def user(self) -> str:
        """Who has authenticated; of meaning once the exchange is complete."""

    @property
    def expires_at(self) -> float | None:
        """When what the client has shown ends, in seconds since 1970; None for never."""

    def evaluate_response(self, response: bytes, now: float) -> bytes:
        """Take the client's message; give the answer. Raises SaslRefusedError."""


def check_authorization_id(requested: str, user: str) -> None:
    """Raise SaslAuthenticationError for a client that wants to act as somebody else."""
    if requested not in {"", user}:
        raise SaslAuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )
