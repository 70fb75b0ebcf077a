"""The broker's side of the SASL mechanisms: message in, response out.

A `SaslServer` is one exchange (SaslServer of javax.security.sasl); each authentication creates a
new one. As in Kafka, its errors are of two kinds: those whose message may be sent to the client,
and those whose message is only for the broker's log, because it would reveal whether a user exists.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.security.scram import HASHES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_kafka_sink.security.sasl import SaslMechanism

#: In a message of PLAIN: authorization id, user and password.
_TOKENS = 3
_SALT_BYTES = 16


def scram_credential(
    mechanism: SaslMechanism, password: str, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive the keys of RFC 5802; the password is encoded as UTF-8, as in Kafka."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    return ScramCredential.of_salted_password(mechanism, salted, salt=salt, iterations=iterations)


class Credentials:
    """The users of a listener.

    Passwords are compared in constant time. SCRAM credentials (RFC 5802) are derived from the
    password when a user first connects: the derivation takes milliseconds, and the broker must
    start quickly. No password appears in a repr.
    """

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


class SaslRefusedError(KafkaError):
    """The exchange has failed; the message is only for the log (SaslException)."""


class SaslAuthenticationError(SaslRefusedError):
    """The exchange has failed; the message is sent to the client (SaslAuthenticationException)."""


class SaslServer(Protocol):
    """The broker's side of one exchange."""

    @property
    def is_complete(self) -> bool:
        """Whether the client has authenticated."""

    @property
    def user(self) -> str:
        """The authenticated user; meaningful only once the exchange is complete."""

    @property
    def expires_at(self) -> float | None:
        """When the client's credential expires, in seconds since 1970; None for never."""

    def evaluate_response(self, response: bytes, now: float) -> bytes:
        """Evaluate the client's message and return the response. Raises SaslRefusedError."""


def check_authorization_id(requested: str, user: str) -> None:
    """Raise SaslAuthenticationError if the client wants to act as another user."""
    if requested not in {"", user}:
        raise SaslAuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )


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


class PlainServer:
    """The broker's side of one PLAIN exchange (RFC 4616), as in Kafka's PlainSaslServer.

    The exchange is one message with the user and the password.
    """

    expires_at = None

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.is_complete = False
        self.user = ""

    def evaluate_response(self, response: bytes, now: float) -> bytes:  # noqa: ARG002 - its protocol
        """Evaluate the client's message; see `SaslServer`."""
        tokens = response.decode("utf-8", "replace").split("\0", _TOKENS)
        if len(tokens) != _TOKENS:
            raise SaslAuthenticationError(
                f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(tokens)}"
            )
        authorization_id, user, password = tokens
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        if not self._credentials.has_password(user, password):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        check_authorization_id(authorization_id, user)
        self.user = user
        self.is_complete = True
        return b""


class ScramServer:
    """The broker's side of one SCRAM exchange (RFC 5802, RFC 7677), as in Kafka's ScramSaslServer.

        client first   n,[a=<authorization id>],n=<user>,r=<nonce>[,<extension>]
        server first   r=<nonce><our nonce>,s=<salt, base64>,i=<iterations>
        client final   c=<channel binding>,r=<nonce><our nonce>,p=<proof, base64>
        server final   v=<signature, base64>

    The signatures cover the client's messages exactly as they were received. An unknown user fails
    at the first message and a wrong password at the second, with the same message to the client.
    Delegation tokens (`tokenauth`) fail like unknown users.
    """

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


_SEPARATOR = "\x01"
_CLIENT_RESPONSE = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTHORIZATION = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_JWS_PARTS = 3
_ALPHABETS = str.maketrans("-_", "+/")


class _TokenError(Exception):
    """The token is invalid; the message says why."""


class _ScopeError(_TokenError):
    """The token does not have the required scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The requirements on a token (the validator's options `unsecuredValidator...`).

    >>> SaslSettings(mechanisms=("OAUTHBEARER",), tokens=TokenRules(required_scope=("write",)))
    ... # doctest: +ELLIPSIS
    SaslSettings(...)
    """

    #: The claim that is the principal's name.
    principal_claim: str = "sub"
    #: The claim with the scope.
    scope_claim: str = "scope"
    #: Words that the scope must contain, all of them.
    required_scope: tuple[str, ...] = ()
    #: Largest accepted difference between the clocks of the token's issuer and the broker.
    allowable_clock_skew_ms: int = 0


class OAuthBearerServer:
    """The broker's side of one OAUTHBEARER exchange (RFC 7628) with an unsigned token.

    This is Kafka's default for the mechanism (OAuthBearerUnsecuredValidatorCallbackHandler): the
    token is an unsecured JWS (RFC 7515, `alg` is none) that names a user and has not expired. As in
    Kafka, it is for development only. A token that is rejected gets RFC 7628's JSON error, and the
    exchange fails at the client's next message.

    Kafka decodes the parts of a token as standard base64 although tokens are base64url; both
    alphabets are accepted here.
    """

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._failure: str | None = None
        self.is_complete = False
        self.user = ""
        self.expires_at: float | None = None

    def evaluate_response(self, response: bytes, now: float) -> bytes:
        """Evaluate the client's message; see `SaslServer`."""
        if self._failure is not None and response == _SEPARATOR.encode():
            raise SaslAuthenticationError(self._failure)
        authorization_id, token = _read_response(response)
        try:
            self.user, self.expires_at = _validated(token, self._rules, now)
        except _TokenError as error:
            self._failure = _refusal(error, self._rules)
            return self._failure.encode()
        if authorization_id not in {"", self.user}:
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different "
                "from the token's principal name"
            )
        self.is_complete = True
        return b""


def _refusal(error: _TokenError, rules: TokenRules) -> str:
    if isinstance(error, _ScopeError):
        refusal = {"status": "insufficient_scope", "scope": " ".join(rules.required_scope)}
    else:
        refusal = {"status": "invalid_token"}
    return json.dumps(refusal, separators=(",", ":"))


def _read_response(response: bytes) -> tuple[str, str]:
    """Return the authorization id (empty if there is none) and the token.

    Raises SaslRefusedError.
    """
    match = _CLIENT_RESPONSE.fullmatch(response.decode("utf-8", "replace"))
    if match is None:
        raise SaslRefusedError("the OAUTHBEARER client response is malformed")
    pairs = (
        dict(
            pair.split("=", 1) for pair in match["pairs"].removesuffix(_SEPARATOR).split(_SEPARATOR)
        )
        if match["pairs"]
        else {}
    )
    authorization = _AUTHORIZATION.fullmatch(pairs.get("auth", ""))
    if authorization is None or authorization["scheme"].lower() != "bearer":
        raise SaslRefusedError("the OAUTHBEARER client response has no bearer token")
    return _plain_name(match["authorization_id"] or ""), authorization["token"]


def _validated(token: str, rules: TokenRules, now: float) -> tuple[str, float]:
    """Return a token's user and its expiration time. Raises _TokenError."""
    parts = token.split(".")
    if len(parts) != _JWS_PARTS or not parts[1]:
        raise _TokenError("the token does not have three parts")
    header, claims = _read_part(parts[0]), _read_part(parts[1])
    if header.get("alg") != "none" or parts[2]:
        raise _TokenError("the token is signed or has an unknown algorithm")
    user = claims.get(rules.principal_claim)
    if not isinstance(user, str) or not user.strip():
        raise _TokenError("the token has no principal")
    expires_at = _time(claims, "exp")
    issued_at = _time(claims, "iat")
    skew = rules.allowable_clock_skew_ms / 1000
    if expires_at is None or now - skew >= expires_at:
        raise _TokenError("the token has expired or has no expiration time")
    if issued_at is not None and (issued_at > now + skew or issued_at >= expires_at):
        raise _TokenError("the token is not valid yet")
    if not set(rules.required_scope) <= _scope(claims.get(rules.scope_claim)):
        raise _ScopeError("the token does not have the required scope")
    return user, expires_at


def _read_part(part: str) -> dict[str, Any]:
    try:
        padded = part.translate(_ALPHABETS) + "=" * (-len(part) % 4)
        values = json.loads(base64.b64decode(padded, validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _TokenError("the token is malformed") from None
    if not isinstance(values, dict):
        raise _TokenError("a part of the token is not a JSON object")
    return values


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _TokenError(f"{name} is not a number")
    try:
        seconds = float(value)
    except OverflowError:
        raise _TokenError(f"{name} is not a valid time") from None
    if not math.isfinite(seconds):
        raise _TokenError(f"{name} is not a valid time")
    return seconds


def _scope(claim: object) -> set[str]:
    """Return the words of a scope claim; a string is a single word, as in Kafka."""
    words = claim if isinstance(claim, list) else [claim]
    return {word.strip() for word in words if isinstance(word, str) and word.strip()}
