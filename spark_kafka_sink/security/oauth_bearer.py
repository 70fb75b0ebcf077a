"""OAUTHBEARER (RFC 7628): tokens, the exchange that presents one, and when to refresh it.

A token is usually a JWT (RFC 7519). It is parsed for its expiry and its subject, and for the claims
that a refusal may be about; only the broker verifies it. Times are seconds since 1970.

The client-credentials grant (RFC 6749, 4.4; KIP-768), by which a client gets tokens, is here as
data: the request and the response.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import SplitResult, quote_plus, unquote_plus, urlencode, urlsplit

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.security.redaction import quoted
from spark_kafka_sink.security.sasl import Expiry, SaslMechanism

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterator, Mapping

    #: A token, a token with its expiry in seconds since 1970, or an already parsed token.
    GivenToken: TypeAlias = "str | tuple[str, float] | OAuthBearerToken"

_SEPARATOR: Final = "\x01"
#: RFC 6750's b64token; any other character could end the message early.
_TOKEN: Final = re.compile(r"[-A-Za-z0-9._~+/]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_JWT_PARTS: Final = 3
_LONGEST_FAILURE: Final = 500
#: The longest claim and the most values of a claim that an error shows.
_LONGEST_CLAIM: Final = 200
_MAX_VALUES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearerToken:
    """A token, and what is known about it.

    `value` is the token itself, which the repr does not show. Raises ValueError for a value that is
    not a valid token.

    >>> OAuthBearerToken(value="header.payload.signature", subject="alice").subject
    'alice'
    """

    value: str = field(repr=False)
    #: The subject, for display.
    subject: str = "unknown"
    #: When it became valid, in seconds since 1970; None if it does not say.
    started_at: float | None = None
    #: When it expires, in seconds since 1970; None if it does not say, in which case it is used
    #: only once.
    expires_at: float | None = None
    #: Its claims that brokers check, for display; empty if it has none.
    says: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError if the value cannot be sent, or if a time is none.

        The message does not show the value.
        """
        if _TOKEN.fullmatch(self.value) is None:
            raise ValueError("the token is empty, or contains invalid characters")
        for name, time in (("start", self.started_at), ("expiry", self.expires_at)):
            if time is not None and not isfinite(time):
                raise ValueError(f"the {name} of the token is {time}, which is no time")


class TokenFunction(Protocol):
    """A plug-in that returns OAUTHBEARER tokens (`sasl.login.callback.handler.class`).

    A function is called on a thread of its own, a coroutine function on the producer's event loop;
    either may take at most sasl.login.read.timeout.ms.

    >>> def token_from_vault():
    ...     return "header.payload.signature", time.time() + 3600
    >>> settings = {
    ...     "bootstrap.servers": "localhost:9092",
    ...     "security.protocol": "SASL_SSL",
    ...     "sasl.mechanism": "OAUTHBEARER",
    ...     "sasl.login.callback.handler.class": token_from_vault,
    ... }
    >>> KafkaProducer(settings).close()
    """

    @abstractmethod
    def __call__(self) -> GivenToken | Awaitable[GivenToken]:
        """Return a token: a str, (str, expiry in seconds since 1970), or an `OAuthBearerToken`.

        Raise any exception if there is no token: the login then fails with that exception if it is
        a KafkaError, and otherwise with a NetworkError caused by it.
        """


def read_token(value: str, *, subject_claim: str = "sub") -> OAuthBearerToken:
    """Parse a token; one that is not a JWT has neither expiry nor subject.

    Raises ValueError if it is not a token at all.
    """
    header, claims = _json_part(value.strip(), 0), _json_part(value.strip(), 1)
    subject = claims.get(subject_claim)
    return OAuthBearerToken(
        value=value.strip(),
        subject=subject if isinstance(subject, str) else "unknown",
        started_at=_time(claims.get("iat")),
        expires_at=_time(claims.get("exp")),
        says=_claims_text(header, claims),
    )


def _json_part(value: str, index: int) -> Mapping[str, Any]:
    """Return the header (0) or the claims (1) of a JWT; nothing if it is not a JWT."""
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


def _claims_text(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """Return the claims that brokers check: a refusal does not say which of them was wrong."""
    audience = claims.get("aud")
    claim_values = [
        ("issuer", [claims.get("iss")]),
        ("audience", audience if isinstance(audience, list) else [audience]),
        ("key", [header.get("kid")]),
    ]
    parts = [
        f"{name} {' and '.join(repr(value[:_LONGEST_CLAIM]) for value in texts)}"
        for name, values in claim_values
        if (texts := [value for value in values[:_MAX_VALUES] if isinstance(value, str)])
    ]
    end = _time(claims.get("exp"))
    if end is not None:
        # JSON may hold a number that is not a valid time; it is left out.
        with suppress(ValueError, OverflowError, OSError):
            parts.append(f"end {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return ", ".join(parts)


def _time(claim: object) -> float | None:
    if not isinstance(claim, int | float) or isinstance(claim, bool):
        return None
    try:
        time = float(claim)
    except OverflowError:
        return None
    return time if isfinite(time) else None


def unsecured_token(claims: Mapping[str, Any], *, now: float, lifetime: float) -> OAuthBearerToken:
    """Make an unsigned token, as Java's OAuthBearerUnsecuredLoginCallbackHandler does.

    Only for brokers that accept such tokens, which no production cluster does.
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

    #: The share of its lifetime for which a token is used, and the most that is added to it at
    #: random.
    window_factor: float = 0.8
    window_jitter: float = 0.05
    #: The minimum time until a token is replaced, and the minimum time from then to its expiry.
    #: Both are ignored if its remaining lifetime is shorter than the two together.
    min_period: float = 60.0
    buffer: float = 300.0

    def refresh_at(self, token: OAuthBearerToken, now: float, chance: float) -> float:
        """Return when to replace a token that arrived at `now`; `chance` is in [0, 1).

        As ExpiringCredentialRefreshingLogin.refreshMs. A token without an expiry is due at once.
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
    """One OAUTHBEARER exchange."""

    mechanism = SaslMechanism.OAUTHBEARER
    hidden: Collection[str] = ()
    expiry: Expiry | None = None

    def __init__(
        self, token: OAuthBearerToken, extensions: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Set what is sent; ValueError for extensions that `check_extensions` rejects."""
        check_extensions(extensions)
        self.secret = token.value
        self._extensions = extensions
        self.user = token.subject
        check = "Check that the token is meant for this cluster and has not expired, and the clocks"
        self.advice = f"{check}. The token says: {token.says}" if token.says else check
        self.is_complete = False
        self.failure: str | None = None

    def initial_response(self) -> bytes:
        """Return the message that presents the token; see `SaslClient`."""
        pairs = {"auth": f"Bearer {self.secret}", **self._extensions}
        message = "".join(f"{name}={value}{_SEPARATOR}" for name, value in pairs.items())
        return f"n,,{_SEPARATOR}{message}{_SEPARATOR}".encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Handle the broker's message; a refusal is JSON and must be answered before the end."""
        if not challenge:
            self.is_complete = True
            return None
        if self.failure is not None:
            raise AuthenticationError(f"the broker rejected the token: {self.failure}")
        self.failure = quoted(
            challenge.decode("utf-8", "replace"), (self.secret, *self.hidden), _LONGEST_FAILURE
        )
        return _SEPARATOR.encode()


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise ValueError for the first SASL extension (KIP-342) that cannot be sent."""
    for name, value in extensions.items():
        if _EXTENSION_NAME.fullmatch(name) is None or name == "auth":
            raise ValueError(f"the SASL extension {name!r} must have a name of letters, not 'auth'")
        if _EXTENSION_VALUE.fullmatch(value) is None:
            raise ValueError(f"the SASL extension {name!r} must have a value of ASCII characters")


# --- the client-credentials grant

_OK: Final = range(200, 300)
#: The status codes of permanent errors (Java's HttpJwtRetriever has a similar list).
_FINAL: Final = frozenset(range(400, 500)) - {408, 425, 429}
_LONGEST_REASON: Final = 300
#: A shorter value in a URL's query is a flag or a version, not a key; any text contains it by
#: chance.
_SHORTEST_KEY: Final = 4
#: Hosts to which a secret can be sent in clear text without leaving the machine.
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The credentials with which a client gets tokens from its provider."""

    #: May contain a key in its query; errors show `endpoint` instead.
    url: str = field(repr=False)
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    scope: str | None = None
    #: Whether id and secret are form-encoded before they are joined, which RFC 6749 requires and
    #: many providers do not expect (sasl.oauthbearer.header.urlencode).
    urlencode: bool = False
    #: The values of references in the settings.
    hidden: Collection[str] = field(default=(), repr=False, compare=False)

    @property
    def endpoint(self) -> str:
        """The scheme, host and port of the URL, which contain no secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def quoted(self, text: str) -> str:
        """Return the provider's text without secrets, which it may quote from the request."""
        secrets = {self.client_secret, *_query_values(self.url), *self.hidden}
        return quoted(text, secrets, _LONGEST_REASON)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """An HTTP POST that requests a token."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def check_url(url: str) -> None:
    """Raise ValueError if a client's secret must not be sent to a URL.

    Except for this machine itself, only HTTPS is allowed.
    """
    parts = split_url(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return
    if parts.scheme == "http":
        raise ValueError(
            "must be an https:// address: otherwise the client's secret and the token could be "
            "read in transit"
        )
    raise ValueError("must be an https:// or file:// address")


def split_url(url: str) -> SplitResult:
    """Split a URL; ValueError, which does not show it, if it is malformed."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must not contain spaces, control characters or non-ASCII characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # Its message quotes the host or the port.
        raise ValueError("has a malformed host or port") from None
    return parts


def _query_values(url: str) -> Iterator[str]:
    """Yield the values in a URL's query that may be keys, as written and decoded."""
    for parameter in urlsplit(url).query.split("&"):
        name, equals, value = parameter.partition("=")
        written = value if equals else name
        for form in (written, unquote_plus(written)):
            if len(form) >= _SHORTEST_KEY:
                yield form


def token_request(credentials: ClientCredentials) -> TokenRequest:
    """Build the request for a token."""
    pair = (credentials.client_id, credentials.client_secret)
    if credentials.urlencode:
        pair = quote_plus(pair[0]), quote_plus(pair[1])
    form = {"grant_type": "client_credentials"}
    if credentials.scope:
        form["scope"] = credentials.scope
    return TokenRequest(
        url=credentials.url,
        headers={
            "Accept": "application/json",
            "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        body=urlencode(form).encode(),
    )


def access_token(credentials: ClientCredentials, status: int, body: bytes) -> str:
    """Return the token in the provider's response.

    Raises AuthenticationError if the provider refuses permanently, NetworkError if it may respond
    differently later; both with its reason, neither with the client's secret.
    """
    answer = _json_object(body)
    if status in _OK:
        token = answer.get("access_token") or answer.get("id_token")
        if isinstance(token, str) and token:
            return token
        raise AuthenticationError(
            f"the token endpoint {credentials.endpoint} answered with {status} and no access_token"
        )
    reason = " ".join(
        value
        for name in ("error", "error_description")
        if isinstance(value := answer.get(name), str)
    )
    kind: type[KafkaError] = AuthenticationError if status in _FINAL else NetworkError
    raise kind(
        f"the token endpoint {credentials.endpoint} refused the client {credentials.client_id!r} "
        f"with {status}: {credentials.quoted(reason) or 'it gave no reason'}"
    )


def _json_object(body: bytes) -> dict[str, object]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
