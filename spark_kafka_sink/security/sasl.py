"""SASL mechanisms, as seen from outside: bytes to send, and bytes that came.

A `SaslClient` holds one exchange (Kafka's SaslClient of javax.security.sasl) and is made anew for
each authentication. It touches no socket. What it refuses, it refuses with AuthenticationError,
whose sentence says nothing of broker and user: who carries the bytes adds them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class SaslMechanism(StrEnum):
    """The mechanisms that work here (`sasl.mechanism`)."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    GSSAPI = "GSSAPI"


#: What to look at where a password was refused.
CHECK_LOGIN: Final = (
    "Check username and password in sasl.jaas.config, and that the cluster has this user for this "
    "mechanism"
)


class SaslClient(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> SaslMechanism:
        """The mechanism's name, as it is registered."""

    @property
    def user(self) -> str:
        """Who authenticates, for people to read."""

    @property
    def secret(self) -> str:
        """What no message may show, even where the broker quotes it."""

    #: Likewise, but not this exchange's own: what references in the settings stood for.
    hidden: Collection[str]

    @property
    def advice(self) -> str:
        """What to look at where the broker refuses the client: a sentence without its end."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has nothing more to send or to check."""

    @property
    def failure(self) -> str | None:
        """What the broker has said against the client within the exchange, if it has."""

    def initial_response(self) -> bytes:
        """Give the first message; the client speaks first in all of these mechanisms."""

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Take the broker's message; give the answer, or None where the exchange is at its end.

        Raises AuthenticationError where the message is not what the mechanism says it must be, or
        does not prove what the broker has to prove.
        """


def no_common_mechanism(wanted: str, offered: Sequence[str]) -> AuthenticationError:
    """Make the error for a broker that does not have the mechanism asked for."""
    theirs = ", ".join(sorted(offered)) or "none"
    ours = ", ".join(SaslMechanism)
    common = sorted(set(offered) & set(SaslMechanism))
    advice = (
        f"set sasl.mechanism to {' or '.join(common)}"
        if common
        else "no mechanism is known to both sides: enable one of ours in the listener"
    )
    return AuthenticationError(
        f"the broker has not enabled {wanted} (sasl.mechanism) on this listener. The broker "
        f"offers: {theirs}; this client knows: {ours}; {advice}"
    )
