"""Who may connect, and what is kept of their passwords.

Passwords are compared in constant time. For SCRAM what RFC 5802 has a server store is derived from
them when a user first connects: the derivation takes milliseconds, and a broker starts at once.
Nothing here shows a password in its repr.
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
    """What a server keeps of a password (Kafka's class of the same name)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_credential(
    mechanism: SaslMechanism, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive the keys of RFC 5802; the password is taken as UTF-8, as Kafka takes it."""
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
        """Take passwords by user; `iterations` are SCRAM's."""
        self._users = dict(users)
        self._iterations = iterations
        self._scram: dict[tuple[SaslMechanism, str], ScramCredential] = {}

    def has_password(self, user: str, password: str) -> bool:
        """Tell whether the user's password is this one."""
        known = self._users.get(user)
        return hmac.compare_digest((known or "").encode(), password.encode()) and known is not None

    def scram(self, mechanism: SaslMechanism, user: str) -> ScramCredential | None:
        """Give what is kept for the user; None where there is no such user."""
        password = self._users.get(user)
        if password is None:
            return None
        known = self._scram.get((mechanism, user))
        if known is None:
            salt = secrets.token_bytes(_SALT_BYTES)
            known = scram_credential(mechanism, password, salt=salt, iterations=self._iterations)
            self._scram[mechanism, user] = known
        return known
