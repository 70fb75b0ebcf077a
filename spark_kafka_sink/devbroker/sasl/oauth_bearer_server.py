"""OAUTHBEARER (RFC 7628) with unsigned tokens, as Kafka's unsecured validator accepts them.

This is Kafka's default for the mechanism (OAuthBearerUnsecuredValidatorCallbackHandler): the token
is an unsecured JWS (RFC 7515, `alg` is none) that names a user and has not expired. As in Kafka, it
is for development only. A token that is rejected gets RFC 7628's JSON error, and the exchange fails
at the client's next message.

Kafka decodes the parts of a token as standard base64 although tokens are base64url; this module
accepts both alphabets.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.devbroker.sasl.sasl_server import SaslAuthenticationError, SaslRefusedError

_SEPARATOR = "\x01"
_CLIENT_RESPONSE = re.compile(
    r"n,(?:a=(?P<authorization_id>(?:[^=,\0]|=2C|=3D)+))?,\x01"
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
    """The broker's side of one OAUTHBEARER exchange."""

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
    authorization_id = match["authorization_id"] or ""
    return authorization_id.replace("=2C", ",").replace("=3D", "="), authorization["token"]


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
