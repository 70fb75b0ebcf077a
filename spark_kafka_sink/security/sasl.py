"""SASL mechanisms as seen from outside: bytes to send, and bytes received.

A `SaslClient` holds one exchange (javax.security.sasl.SaslClient in Kafka) and is created for
each authentication. It does no I/O. Its errors are AuthenticationErrors that name neither broker
nor user; the code that sends the bytes adds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from spark_kafka_sink.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

#: Advice for a password that was refused.
CHECK_LOGIN: Final = (
    "Check username and password in sasl.jaas.config, and that the cluster has this user for this "
    "mechanism"
)
#: Seconds before a token's end in which a broker's refusal is taken for a difference of the clocks.
#: If something else is wrong, the next token is refused as well, and that is final.
CLOCK_DIFFERENCE: Final = 5.0


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


def moment(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text for errors."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} seconds since 1970"


@dataclass(frozen=True, slots=True)
class Expiry:
    """When the token of an exchange expires; as text, a sentence without its full stop."""

    #: In seconds since 1970.
    at: float
    #: Returns seconds since 1970.
    clock: Callable[[], float]

    @property
    def explains_refusal(self) -> bool:
        """Whether a broker may refuse the token for its end alone, so that the next one may pass.

        The broker's clock may be ahead of this machine's.
        """
        return self.clock() >= self.at - CLOCK_DIFFERENCE

    def __str__(self) -> str:
        """Return the sentence, such as "the token expired at 2026-01-31 12:00:00 UTC"."""
        return (
            f"the token {'expired' if self.clock() >= self.at else 'expires'} at {moment(self.at)}"
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

    #: When the credentials expire; None if they do not, or do not say when.
    expiry: Expiry | None

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


def no_common_mechanism(requested: str, offered: Sequence[str]) -> AuthenticationError:
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
        f"the broker has not enabled {requested} (sasl.mechanism) on this listener. The broker "
        f"offers: {theirs}; this client supports: {ours}; {advice}"
    )
