"""The client-credentials grant (RFC 6749, 4.4; KIP-768) as data: the request and the response."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote_plus, unquote_plus, urlencode, urlsplit

from spark_kafka_sink.errors import AuthenticationError, KafkaError, NetworkError
from spark_kafka_sink.security.redaction import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

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
