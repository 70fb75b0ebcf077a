"""The settings of a listener with SASL, named as Kafka's broker settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.net.sasl_servers import TokenRules
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The supported mechanisms; Kerberos needs a KDC and is left to real brokers.
SERVED_MECHANISMS = tuple(
    mechanism for mechanism in SaslMechanism if mechanism is not SaslMechanism.GSSAPI
)
MECHANISMS_WITH_PASSWORDS = (
    SaslMechanism.PLAIN,
    SaslMechanism.SCRAM_SHA_256,
    SaslMechanism.SCRAM_SHA_512,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Users and mechanisms; passwords are not in the repr.

    Raises ConfigError for unsupported mechanisms, and for users without a password.

    >>> SaslSettings(users={"alice": "her password"}, mechanisms=("PLAIN",))  # no password is shown
    SaslSettings(mechanisms=...
    """

    #: Passwords by user, for PLAIN and SCRAM.
    users: Mapping[str, str] = field(repr=False, default_factory=dict)
    #: sasl.enabled.mechanisms. OAUTHBEARER accepts unsigned tokens.
    mechanisms: Sequence[SaslMechanism | str] = MECHANISMS_WITH_PASSWORDS
    #: How long a session lasts until the client must re-authenticate (connections.max.reauth.ms,
    #: KIP-368). 0 for no limit other than the lifetime of its token.
    max_reauth_ms: int = 0
    #: Iterations of SCRAM's key derivation.
    scram_iterations: int = MIN_ITERATIONS
    #: Largest request of a client that has not authenticated (sasl.server.max.receive.size).
    max_receive_bytes: int = 512 * 1024
    #: Delay of the response to a failed authentication, which slows down password guessing
    #: (connection.failed.authentication.delay.ms).
    failed_authentication_delay_ms: int = 100
    #: The requirements on an OAUTHBEARER token.
    tokens: TokenRules = field(default_factory=TokenRules)

    def __post_init__(self) -> None:
        """Convert mechanism names to mechanisms; raise ConfigError for invalid settings."""
        known = ", ".join(SERVED_MECHANISMS)
        unknown = [mechanism for mechanism in self.mechanisms if mechanism not in SERVED_MECHANISMS]
        if unknown:
            raise ConfigError(
                f"sasl.enabled.mechanisms: {str(unknown[0])!r} is not supported; use {known}"
            )
        mechanisms = tuple(SaslMechanism(mechanism) for mechanism in self.mechanisms)
        if not mechanisms:
            raise ConfigError(f"sasl.enabled.mechanisms is empty; use {known}")
        object.__setattr__(self, "mechanisms", mechanisms)
        if any(not user or not password for user, password in self.users.items()):
            raise ConfigError("each user of a listener needs a name and a password")
        if not self.users and set(mechanisms) != {SaslMechanism.OAUTHBEARER}:
            raise ConfigError(
                f"{', '.join(mechanisms)}: a listener with these mechanisms needs at least one user"
            )
        if self.scram_iterations < MIN_ITERATIONS:
            raise ConfigError(f"SCRAM requires at least {MIN_ITERATIONS} iterations (RFC 7677)")


def read_users(text: str, source: str) -> dict[str, str]:
    """Parse users from a JSON object, {"user": "password"}.

    Raises ConfigError, which names `source` and shows nothing of the text.
    """
    try:
        users = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f'{source} is not JSON; it must be {{"user": "password"}}') from None
    if not isinstance(users, dict) or not all(isinstance(value, str) for value in users.values()):
        raise ConfigError(f'{source} must be one JSON object of strings: {{"user": "password"}}')
    return users
