"""The broker's side of SCRAM (RFC 5802, RFC 7677), as in Kafka's ScramSaslServer.

    client first   n,[a=<authorization id>],n=<user>,r=<nonce>[,<extension>]
    server first   r=<nonce><our nonce>,s=<salt, base64>,i=<iterations>
    client final   c=<channel binding>,r=<nonce><our nonce>,p=<proof, base64>
    server final   v=<signature, base64>

The signatures cover the client's messages exactly as they were received. An unknown user fails at
the first message and a wrong password at the second, with the same message to the client.
Delegation tokens (`tokenauth`) fail like unknown users.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.sasl.sasl_server import SaslRefusedError, check_authorization_id
from spark_kafka_sink.security.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_kafka_sink.devbroker.sasl.credentials import ScramCredential
    from spark_kafka_sink.security.sasl import SaslMechanism

_NONCE_BYTES = 24
_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\0]+)*"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=[A-Za-z0-9+/]*={{0,2}},r=(?P<nonce>{_NONCE}){_EXTENSIONS}),"
    r"p=(?P<proof>[A-Za-z0-9+/]*={0,2})"
)
_TOKEN_AUTHENTICATION = "tokenauth=true"  # noqa: S105 - an attribute's name


class ScramServer:
    """The broker's side of one SCRAM exchange."""

    expires_at = None

    def __init__(
        self,
        mechanism: SaslMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: str | None = None,
    ) -> None:
        """Create an exchange; `find` returns a user's credential, `nonce` is random by default."""
        self.is_complete = False
        self.user = ""
        self._hash = HASHES[mechanism]
        self._find = find
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        self._credential: ScramCredential | None = None
        self._client_first_bare = ""
        self._server_first = ""

    def evaluate_response(self, response: bytes, now: float) -> bytes:  # noqa: ARG002 - its protocol
        """Evaluate the client's message; see `SaslServer`."""
        try:
            text = response.decode()
        except UnicodeDecodeError:
            raise SaslRefusedError("the SCRAM message is not valid UTF-8") from None
        if self._credential is None:
            return self._server_first_message(text)
        return self._server_final_message(text, self._credential)

    def _server_first_message(self, client_first: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(client_first)
        if match is None:
            raise SaslRefusedError("the SCRAM client-first-message is malformed")
        user = _plain_name(match["user"])
        if _TOKEN_AUTHENTICATION in match["extensions"].split(","):
            raise SaslRefusedError(f"delegation token {user!r} does not exist")
        credential = self._find(user)
        if credential is None:
            raise SaslRefusedError(f"user {user!r} does not exist")
        check_authorization_id(_plain_name(match["authorization_id"] or ""), user)
        self.user = user
        self._credential = credential
        self._client_first_bare = match["bare"]
        self._nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def _server_final_message(self, client_final: str, credential: ScramCredential) -> bytes:
        match = _CLIENT_FINAL.fullmatch(client_final)
        if match is None:
            raise SaslRefusedError("the SCRAM client-final-message is malformed")
        if match["nonce"] != self._nonce:
            raise SaslRefusedError("the SCRAM client-final-message has a different nonce")
        signed = f"{self._client_first_bare},{self._server_first},{match['without_proof']}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        try:
            proof = base64.b64decode(match["proof"], validate=True)
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        except (binascii.Error, ValueError):
            raise SaslRefusedError(
                "the proof in the SCRAM client-final-message is malformed"
            ) from None
        stored_key = hashlib.new(self._hash, client_key).digest()
        if not hmac.compare_digest(credential.stored_key, stored_key):
            raise SaslRefusedError(f"the password of user {self.user!r} is wrong")
        self.is_complete = True
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, self._hash))


def _plain_name(sasl_name: str) -> str:
    return sasl_name.replace("=2C", ",").replace("=3D", "=")
