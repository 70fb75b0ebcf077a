"""OAUTHBEARER (RFC 7628): tokens, the exchange that shows one, and when to get another.

A token is mostly a JWT (RFC 7519), which is read here for its end and its subject, and for what a
refusal may be about: whether it is genuine is for the broker to say. Times are seconds since 1970.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.security.redaction import quoted
from spark_kafka_sink.security.sasl import SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_SEPARATOR: Final = "\x01"
#: RFC 6750's b68token; anything else could end the message early.
_TOKEN: Final = re.compile(r"[-A-Za-z0-9._~+/]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_JWT_PARTS: Final = 3
_LONGEST_FAILURE: Final = 500
#: Of what a token says, so much of each value, and so many values, are told.
_LONGEST_CLAIM: Final = 200
_MOST_VALUES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearerToken:
    """A token, and what is known of it."""

    value: str = field(repr=False)
    #: Who it is for, for people to read.
    subject: str = "unknown"
    #: When it began to be valid; None where it does not say.
    started_at: float | None = None
    #: When it ends; None where it does not say: then it is used once only.
    expires_at: float | None = None
    #: What it says of itself that brokers look at, for people to read; empty where it says nothing.
    says: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError where the value cannot be sent; the sentence does not show it."""
        if _TOKEN.fullmatch(self.value) is None:
            raise ValueError("the token is empty, or holds characters that no token has")


def read_token(value: str, *, subject_claim: str = "sub") -> OAuthBearerToken:
    """Read a token's payload; one that is no JWT has neither end nor subject.

    Raises ValueError where it is no token at all.
    """
    header, claims = _json_part(value.strip(), 0), _json_part(value.strip(), 1)
    subject = claims.get(subject_claim)
    return OAuthBearerToken(
        value=value.strip(),
        subject=subject if isinstance(subject, str) else "unknown",
        started_at=_time(claims.get("iat")),
        expires_at=_time(claims.get("exp")),
        says=_says(header, claims),
    )


def _json_part(value: str, index: int) -> Mapping[str, Any]:
    """Read the header (0) or the claims (1) of a JWT; nothing where it is none."""
    parts = value.split(".")
    if len(parts) != _JWT_PARTS:
        return {}
    try:
        # The decoder ignores padding beyond what it needs.
        payload = base64.urlsafe_b64decode(parts[index] + "==")
        read = json.loads(payload)
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _says(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """Tell what brokers compare: a refusal of theirs does not say which of it was wrong."""
    audience = claims.get("aud")
    told = [
        ("issuer", [claims.get("iss")]),
        ("audience", audience if isinstance(audience, list) else [audience]),
        ("key", [header.get("kid")]),
    ]
    sayings = [
        f"{name} {' and '.join(repr(value[:_LONGEST_CLAIM]) for value in texts)}"
        for name, values in told
        if (texts := [value for value in values[:_MOST_VALUES] if isinstance(value, str)])
    ]
    end = _time(claims.get("exp"))
    if end is not None:
        # A number that is no time, which JSON may well hold, is left out.
        with suppress(ValueError, OverflowError, OSError):
            sayings.append(f"end {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return ", ".join(sayings)


def _time(claim: object) -> float | None:
    return float(claim) if isinstance(claim, int | float) and not isinstance(claim, bool) else None


def unsecured_token(claims: Mapping[str, Any], *, now: float, lifetime: float) -> OAuthBearerToken:
    """Make a token that nobody signed, as Java's OAuthBearerUnsecuredLoginCallbackHandler does.

    Only for brokers that take such tokens, which no cluster that matters does.
    """
    payload = {"iat": now, "exp": now + lifetime, **claims}
    encoded = (
        base64.urlsafe_b64encode(json.dumps(part, separators=(",", ":")).encode()).rstrip(b"=")
        for part in ({"alg": "none"}, payload)
    )
    return read_token(b".".join((*encoded, b"")).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPolicy:
    """When a token is replaced (Java's `sasl.login.refresh.*`); times in seconds."""

    #: Which share of its life a token is used for, and how much of it chance may add.
    window_factor: float = 0.8
    window_jitter: float = 0.05
    #: How long a token is kept at least, and how long before its end it is not used any more;
    #: both give way where its life is shorter than the two together.
    min_period: float = 60.0
    buffer: float = 300.0

    def refresh_at(self, token: OAuthBearerToken, now: float, chance: float) -> float:
        """Tell when a token that has come at `now` is to be replaced; `chance` is in [0, 1).

        As ExpiringCredentialRefreshingLogin.refreshMs. A token without an end is replaced at once.
        """
        if token.expires_at is None:
            return now
        started_at = now if token.started_at is None else min(token.started_at, now)
        share = self.window_factor + self.window_jitter * chance
        by_window = started_at + (token.expires_at - started_at) * share
        if now + self.min_period + self.buffer > token.expires_at:
            return by_window
        return min(max(by_window, now + self.min_period), token.expires_at - self.buffer)


class OAuthBearerClient:
    """One exchange."""

    mechanism = SaslMechanism.OAUTHBEARER
    hidden: Collection[str] = ()

    def __init__(
        self, token: OAuthBearerToken, extensions: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Take what is sent; ValueError for extensions that `check_extensions` refuses."""
        check_extensions(extensions)
        self.secret = token.value
        self._extensions = extensions
        self.user = token.subject
        check = "Check that the token is meant for this cluster and has not ended, and the clocks"
        self.advice = f"{check}. The token says: {token.says}" if token.says else check
        self.is_complete = False
        self.failure: str | None = None

    def initial_response(self) -> bytes:
        """See `SaslClient`."""
        pairs = {"auth": f"Bearer {self.secret}", **self._extensions}
        message = "".join(f"{name}={value}{_SEPARATOR}" for name, value in pairs.items())
        return f"n,,{_SEPARATOR}{message}{_SEPARATOR}".encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """See `SaslClient`. A refusal comes as JSON, and wants an answer before the end comes."""
        if not challenge:
            self.is_complete = True
            return None
        if self.failure is not None:
            raise AuthenticationError(f"the broker refuses the token: {self.failure}")
        self.failure = quoted(
            challenge.decode("utf-8", "replace"), (self.secret, *self.hidden), _LONGEST_FAILURE
        )
        return _SEPARATOR.encode()


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise ValueError for SASL extensions (KIP-342) that cannot be sent, naming the first."""
    for name, value in extensions.items():
        if _EXTENSION_NAME.fullmatch(name) is None or name == "auth":
            raise ValueError(f"the SASL extension {name!r} must have a name of letters, not 'auth'")
        if _EXTENSION_VALUE.fullmatch(value) is None:
            raise ValueError(f"the SASL extension {name!r} must have a value of ASCII characters")
