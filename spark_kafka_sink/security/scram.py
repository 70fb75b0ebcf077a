"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), as Kafka speaks them.

    client first   n,,n=<user>,r=<nonce>[,tokenauth=true]
    server first   r=<nonce><server's nonce>,s=<salt, base64>,i=<iterations>
    client final   c=biws,r=<nonce><server's nonce>,p=<proof, base64>
    server final   v=<signature, base64>  or  e=<error>

The password is never sent, and the signature proves that the server knows it as well. There is no
channel binding: Kafka has no -PLUS mechanisms. A delegation token is a username and a password with
`tokenauth` (KIP-48).

Passwords are encoded as UTF-8 without SASLprep (RFC 4013), which RFC 5802 requires: Kafka's brokers
and tools derive the stored keys that way (`ScramFormatter.normalize`), and a password that SASLprep
changes would never match them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import operator
import re
import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.security.sasl import CHECK_LOGIN, Expiry, SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


HASHES: Final[Mapping[SaslMechanism, str]] = MappingProxyType(
    {SaslMechanism.SCRAM_SHA_256: "sha256", SaslMechanism.SCRAM_SHA_512: "sha512"}
)
#: RFC 7677 requires at least 4096, and so does Kafka (`ScramMechanism.minIterations`): with fewer,
#: a fake broker could guess the password from our proof.
MIN_ITERATIONS: Final = 4096
#: About a second of work. Kafka's own tools store at most 16384; a broker that demands more than
#: this only keeps the client busy.
MAX_ITERATIONS: Final = 1_000_000
_NONCE_BYTES: Final = 24
_GS2_HEADER: Final = "n,,"
_CHANNEL_BINDING: Final = base64.b64encode(_GS2_HEADER.encode()).decode()
#: Attributes at the end of Kafka's messages are ignored; a mandatory extension (m=), which would
#: come first, is refused.
_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<iterations>[0-9]{1,9})"
    r"(?:,[A-Za-z]=[^\0,]+)*"
)
_SERVER_FINAL: Final = re.compile(
    r"(?:v=(?P<signature>[A-Za-z0-9+/]+={0,2})|e=(?P<error>[^\0,]+))(?:,[A-Za-z]=[^\0,]+)*"
)


def sasl_name(user: str) -> str:
    """Escape the characters of a username that structure a message."""
    return user.replace("=", "=3D").replace(",", "=2C")


class ScramClient:
    """One SCRAM exchange."""

    failure = None
    expiry: Expiry | None = None
    hidden: Collection[str] = ()
    advice = CHECK_LOGIN

    def __init__(
        self,
        mechanism: SaslMechanism,
        username: str,
        password: str,
        *,
        token_auth: bool = False,
        nonce: str | None = None,
    ) -> None:
        """Set the credentials; `nonce` is random unless given."""
        self.mechanism = mechanism
        self.user = username
        self.is_complete = False
        self._hash = HASHES[mechanism]
        self.secret = password
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        extension = ",tokenauth=true" if token_auth else ""
        self._client_first_bare = f"n={sasl_name(username)},r={self._nonce}{extension}"
        self._server_signature: bytes | None = None

    def initial_response(self) -> bytes:
        """Return the first message; see `SaslClient`."""
        return f"{_GS2_HEADER}{self._client_first_bare}".encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Handle the broker's message; see `SaslClient`."""
        try:
            text = challenge.decode("utf-8")
        except UnicodeDecodeError:
            raise AuthenticationError("the broker's SCRAM message is not text") from None
        if self._server_signature is None:
            return self._client_final(text)
        self._check_server_final(text, self._server_signature)
        self.is_complete = True
        return None

    def _client_final(self, server_first: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(server_first)
        if match is None:
            raise AuthenticationError("the broker's first SCRAM message is malformed")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError(
                "the broker's SCRAM message belongs to another exchange: it does not continue this "
                "client's nonce"
            )
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationError(
                f"the broker requires {iterations} SCRAM iterations, but this client accepts "
                f"{MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(
            self._hash, self.secret.encode(), _decoded(match["salt"]), iterations
        )
        without_proof = f"c={_CHANNEL_BINDING},r={nonce}"
        signed = f"{self._client_first_bare},{server_first},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        client_signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(map(operator.xor, client_key, client_signature))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _check_server_final(self, server_final: str, expected: bytes) -> None:
        match = _SERVER_FINAL.fullmatch(server_final)
        if match is None:
            raise AuthenticationError("the broker's last SCRAM message is malformed")
        if match["error"] is not None:
            raise AuthenticationError(f"the broker rejected the authentication: {match['error']}")
        if not hmac.compare_digest(expected, _decoded(match["signature"])):
            raise AuthenticationError(
                "the broker's SCRAM signature is wrong: it does not know this user's password, "
                "and is not the broker that it claims to be"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("the broker's SCRAM message holds malformed base64") from None
