"""The server's side of SCRAM, written from RFC 5802 and not from our client."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramServer:
    """One exchange; keeps no password, only what a server stores of it."""

    def __init__(
        self, hash_name: str, password: str, *, iterations: int = 4096, nonce: str = "server"
    ) -> None:
        """Derive the stored keys."""
        self.hash_name = hash_name
        self.salt = b"salt of the test"
        self.iterations = iterations
        self.nonce = nonce
        salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), self.salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        self.stored_key = hashlib.new(hash_name, client_key).digest()
        self.server_key = self._hmac(salted, b"Server Key")
        self.client_first_bare = ""
        self.server_first = ""

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self.hash_name).digest()

    def first(self, client_first: bytes) -> bytes:
        """Answer the client's first message."""
        header, self.client_first_bare = client_first.decode()[:3], client_first.decode()[3:]
        assert "n,," == header
        attributes = dict(part.split("=", 1) for part in self.client_first_bare.split(","))
        salt = base64.b64encode(self.salt).decode()
        self.server_first = f"r={attributes['r']}{self.nonce},s={salt},i={self.iterations}"
        return self.server_first.encode()

    def final(self, client_final: bytes) -> bytes:
        """Answer the client's last message: the signature, or an error where the proof is wrong."""
        without_proof, _, proof = client_final.decode().rpartition(",p=")
        signed = f"{self.client_first_bare},{self.server_first},{without_proof}".encode()
        signature = self._hmac(self.stored_key, signed)
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.hash_name, key).digest() != self.stored_key:
            return b"e=invalid-proof"
        return b"v=" + base64.b64encode(self._hmac(self.server_key, signed))
