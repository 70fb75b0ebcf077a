"""Signed tokens, and the set of keys (JWKS) with which a broker verifies them."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ISSUER = "https://issuer.test"
AUDIENCE = "kafka-of-the-tests"


class SigningKey:
    """An issuer's key for RS256."""

    def __init__(self, key_id: str) -> None:
        """Create a key."""
        self.key_id = key_id
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwk(self) -> dict[str, str]:
        """Return the public key in the format of RFC 7517."""
        numbers = self._key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": self.key_id,
            "n": _encoded(numbers.n.to_bytes(256, "big")),
            "e": _encoded(numbers.e.to_bytes(3, "big")),
        }

    def token(
        self,
        subject: str,
        *,
        audience: str = AUDIENCE,
        issuer: str = ISSUER,
        lifetime: float = 600.0,
    ) -> str:
        """Sign a token that was issued an hour ago, and expires this many seconds from now."""
        now = time.time()
        claims = {
            "sub": subject,
            "aud": audience,
            "iss": issuer,
            "iat": int(now) - 3600,
            "exp": int(now + lifetime),
        }
        signed = f"{_json({'alg': 'RS256', 'kid': self.key_id})}.{_json(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def jwks(keys: Sequence[SigningKey]) -> str:
    """Return a set of keys in the form in which an issuer publishes it."""
    return json.dumps({"keys": [key.jwk() for key in keys]})


def _json(part: Mapping[str, object]) -> str:
    return _encoded(json.dumps(part).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
