"""SASL mechanisms as seen from outside: bytes to send, and bytes received.

A `SaslClient` holds one exchange (javax.security.sasl.SaslClient in Kafka) and is created anew for
each authentication. It does no I/O. Its errors are AuthenticationErrors that name neither broker
nor user; the code that sends the bytes adds them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class SaslMechanism(StrEnum):
    """The supported mechanisms (`sasl.mechanism`).

    >>> SaslMechanism("SCRAM-SHA-256")
    <SaslMechanism.SCRAM_SHA_256: 'SCRAM-SHA-256'>
    """

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    GSSAPI = "GSSAPI"


#: Advice for a password that was refused.
CHECK_LOGIN: Final = (
    "Check username and password in sasl.jaas.config, and that the cluster has this user for this "
    "mechanism"
)


class SaslClient(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> SaslMechanism:
        """The registered name of the mechanism."""

    @property
    def user(self) -> str:
        """The user that authenticates, for display."""

    @property
    def secret(self) -> str:
        """The secret that no message may show, even if the broker quotes it."""

    #: Other texts that no message may show: the values of references in the settings.
    hidden: Collection[str]

    @property
    def advice(self) -> str:
        """What to check if the broker refuses the client: a sentence without its full stop."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has nothing more to send or to check."""

    @property
    def failure(self) -> str | None:
        """The broker's reason for refusing the client within the exchange; None without one."""

    def initial_response(self) -> bytes:
        """Return the first message; in all of these mechanisms the client speaks first."""

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Handle the broker's message; return the answer, or None at the end of the exchange.

        Raises AuthenticationError if the message violates the mechanism, or does not prove what the
        broker has to prove.
        """


def no_common_mechanism(wanted: str, offered: Sequence[str]) -> AuthenticationError:
    """Return the error for a broker that does not have the requested mechanism."""
    theirs = ", ".join(sorted(offered)) or "none"
    ours = ", ".join(SaslMechanism)
    common = sorted(set(offered) & set(SaslMechanism))
    advice = (
        f"set sasl.mechanism to {' or '.join(common)}"
        if common
        else "there is no common mechanism: enable one of this client's on the listener"
    )
    return AuthenticationError(
        f"the broker has not enabled {wanted} (sasl.mechanism) on this listener. The broker "
        f"offers: {theirs}; this client supports: {ours}; {advice}"
    )
