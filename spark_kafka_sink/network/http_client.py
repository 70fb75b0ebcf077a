"""One HTTP request and its response, for token endpoints and Schema Registries.

Both are limited: the response in size, and in the time that it takes as a whole, whatever the
server does. Redirects are not followed: one could send the credentials of a request anywhere.
Callers know which setting is to blame for an error, so an `HttpError` only says what happened.
"""

from __future__ import annotations

import http.client
import io
import ssl
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping


#: What OpenSSL calls a first answer that is not one of TLS, by its version.
_NOT_OF_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)


class HttpRequest(NamedTuple):
    """A request, whose URL has neither credentials nor a fragment."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None


class HttpResponse(NamedTuple):
    """The status of a response, and its content."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """The timeouts in seconds: for connecting to one address, and for the whole response."""

    connect: float
    read: float


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A proxy that requests pass through, by CONNECT if they are encrypted."""

    host: str
    port: int
    #: The value of Proxy-Authorization; None without credentials.
    authorization: str | None = field(default=None, repr=False)


class HttpFailure(Enum):
    """Why there is no response."""

    #: The server's certificate is not trusted, or is for another host.
    UNTRUSTED = auto()
    #: The server does not speak TLS.
    UNENCRYPTED = auto()
    #: The time for connecting is over.
    NO_CONNECTION = auto()
    #: The time for the response is over.
    NO_ANSWER = auto()
    OTHER = auto()


class HttpError(Exception):
    """There is no response; `reason` may quote what the server sent, which may contain secrets."""

    def __init__(self, failure: HttpFailure, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure
        self.reason = reason


def exchange(
    request: HttpRequest,
    timeouts: HttpTimeouts,
    tls_context: Callable[[], ssl.SSLContext],
    clock: Callable[[], float],
    *,
    max_bytes: int,
    proxy: HttpProxy | None = None,
) -> HttpResponse:
    """Send a request and return the response, whose content has at most `max_bytes`.

    The call blocks. A response that arrives byte by byte has to be complete in time as well. Only
    the look-up of the host's name, and connecting to many addresses, may take longer. `clock`
    returns seconds since an arbitrary moment.

    Raises HttpError, and ConfigError if the TLS context cannot be made.
    """
    parts = urlsplit(request.url)
    connection = _connection(parts, timeouts.connect, tls_context, proxy)
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    headers = dict(request.headers)
    if proxy is not None and parts.scheme == "http":
        target = request.url
        headers |= _proxy_headers(proxy)
    late = HttpFailure.NO_CONNECTION
    connected: socket.socket | None = None
    try:
        connection.connect()
        late = HttpFailure.NO_ANSWER
        connected = connection.sock
        connection.sock = _SocketUntil(connected, clock() + timeouts.read, clock)
        connection.request(request.method, target, body=request.body, headers=headers)
        response = connection.getresponse()
        return HttpResponse(response.status, _content(response, max_bytes))
    except ssl.SSLCertVerificationError as error:
        raise HttpError(HttpFailure.UNTRUSTED, error.verify_message) from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, ssl.SSLError) and error.reason in _NOT_OF_TLS:
            raise HttpError(HttpFailure.UNENCRYPTED, error.reason) from None
        failure = late if isinstance(error, TimeoutError) else HttpFailure.OTHER
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise HttpError(failure, reason) from None
    finally:
        connection.close()
        if connected is not None:
            connected.close()


def _connection(
    parts: SplitResult,
    timeout: float,
    tls_context: Callable[[], ssl.SSLContext],
    proxy: HttpProxy | None,
) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    first, port = (host, parts.port) if proxy is None else (proxy.host, proxy.port)
    if parts.scheme != "https":
        return http.client.HTTPConnection(first, port, timeout=timeout)
    connection = http.client.HTTPSConnection(first, port, timeout=timeout, context=tls_context())
    if proxy is not None:
        connection.set_tunnel(host, parts.port or http.client.HTTPS_PORT, _proxy_headers(proxy))
    return connection


def _proxy_headers(proxy: HttpProxy) -> dict[str, str]:
    return {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}


def _content(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    try:
        content = response.read(max_bytes + 1)
    except ValueError as error:
        # The library reads as many bytes as a chunk has, also if that is a negative number.
        raise HttpError(HttpFailure.OTHER, f"the response is not HTTP: {error}") from None
    if len(content) > max_bytes:
        raise HttpError(HttpFailure.OTHER, f"the response has more than {max_bytes} bytes")
    # The library says so only of a response that is sent in chunks.
    if response.length:
        raise HttpError(HttpFailure.OTHER, "the connection was closed in the middle of a response")
    return content


class _SocketUntil:
    """A connected socket for http.client, all of whose operations share one deadline."""

    def __init__(
        self, connected: socket.socket, ends_at: float, clock: Callable[[], float]
    ) -> None:
        self._connected = connected
        self._ends_at = ends_at
        self._clock = clock

    def in_time(self) -> socket.socket:
        """Return the socket, its timeout set to the time left; TimeoutError if none is left."""
        left = self._ends_at - self._clock()
        if left <= 0:
            raise TimeoutError
        self._connected.settimeout(left)
        return self._connected

    def sendall(self, data: bytes) -> None:
        self.in_time().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self))

    def close(self) -> None:
        """Leave the socket open: http.client closes it before it has read the response."""


class _Answer(io.RawIOBase):
    """The bytes received from a socket before its deadline."""

    def __init__(self, source: _SocketUntil) -> None:
        self._source = source

    def readable(self) -> bool:
        """Return True, as BufferedReader requires."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes and store them in the buffer."""
        return self._source.in_time().recv_into(buffer)
