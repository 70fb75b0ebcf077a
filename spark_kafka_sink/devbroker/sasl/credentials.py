"""The users of a listener and their credentials.

Passwords are compared in constant time. SCRAM credentials (RFC 5802) are derived from the password
when a user first connects: the derivation takes milliseconds, and the broker must start quickly. No
password appears in a repr.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.security.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.security.sasl import SaslMechanism

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The credential that a server stores for a password (Kafka's ScramCredential)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_credential(
    mechanism: SaslMechanism, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive the keys of RFC 5802; the password is encoded as UTF-8, as in Kafka."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
    )


class Credentials:
    """The users of a listener."""

    def __init__(self, users: Mapping[str, str], *, iterations: int) -> None:
        """Create credentials from passwords by user; `iterations` is for SCRAM."""
        self._users = dict(users)
        self._iterations = iterations
        self._scram: dict[tuple[SaslMechanism, str], ScramCredential] = {}

    def has_password(self, user: str, password: str) -> bool:
        """Return whether the password is the user's; False for an unknown user."""
        known = self._users.get(user)
        return hmac.compare_digest((known or "").encode(), password.encode()) and known is not None

    def scram(self, mechanism: SaslMechanism, user: str) -> ScramCredential | None:
        """Return the user's SCRAM credential; None for an unknown user."""
        password = self._users.get(user)
        if password is None:
            return None
        known = self._scram.get((mechanism, user))
        if known is None:
            salt = secrets.token_bytes(_SALT_BYTES)
            known = scram_credential(mechanism, password, salt=salt, iterations=self._iterations)
            self._scram[mechanism, user] = known
        return known
