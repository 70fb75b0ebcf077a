"""What a server stores of a password of SCRAM: keys that were derived from it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_kafka_sink.security.scram import HASHES

if TYPE_CHECKING:
    from spark_kafka_sink.security.sasl import SaslMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The credential that a server stores for a password (Kafka's ScramCredential)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of_salted_password(
        cls, mechanism: SaslMechanism, salted: bytes, *, salt: bytes, iterations: int
    ) -> ScramCredential:
        """Derive the keys of RFC 5802 from a password that is salted and hashed already."""
        name = HASHES[mechanism]
        client_key = hmac.digest(salted, b"Client Key", name)
        return cls(
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(name, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", name),
        )
