"""A token request to an OAuth endpoint over HTTPS: one POST, one response, no redirects.

A redirect could send the client's secret anywhere, so it is treated like any other response without
a token. The call blocks and needs a thread of its own. It takes a bounded time, whatever the
endpoint does: a response that arrives byte by byte has to be complete in time as well.
"""

from __future__ import annotations

import http.client
import io
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from spark_kafka_sink.errors import AuthenticationError, NetworkError
from spark_kafka_sink.security.client_credentials import access_token, token_request

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from spark_kafka_sink.security.client_credentials import ClientCredentials

#: The default in seconds; the Java client would wait forever.
DEFAULT_TIMEOUT: Final = 10.0
#: The most bytes read of a response; no token comes near this size.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchTimeouts:
    """The timeouts in seconds: for connecting to one address, and for the whole response."""

    connect: float = DEFAULT_TIMEOUT
    read: float = DEFAULT_TIMEOUT


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
        """Send the request."""
        self.in_time().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of the response."""
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


def fetch_token(
    credentials: ClientCredentials,
    timeouts: FetchTimeouts,
    tls_context: Callable[[], ssl.SSLContext],
    clock: Callable[[], float],
) -> str:
    """Fetch a token; `clock` returns seconds since an arbitrary moment.

    Raises AuthenticationError if the endpoint refuses permanently or its certificate is not
    trusted, NetworkError if it may respond differently later; neither shows the secret.
    """
    request = token_request(credentials)
    parts = urlsplit(credentials.url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(
            host, parts.port, timeout=timeouts.connect, context=tls_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=timeouts.connect)
    )
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    awaited = f"no connection within {timeouts.connect:g} s (sasl.login.connect.timeout.ms)"
    connected: socket.socket | None = None
    try:
        connection.connect()
        awaited = f"no answer within {timeouts.read:g} s (sasl.login.read.timeout.ms)"
        connected = connection.sock
        connection.sock = _SocketUntil(connected, clock() + timeouts.read, clock)
        connection.request("POST", path, body=request.body, headers=dict(request.headers))
        response = connection.getresponse()
        status, body = response.status, response.read(_MOST_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationError(
            f"the certificate of the token endpoint {credentials.endpoint} is not trusted, or is "
            f"for another host ({error.verify_message}): check the ssl.truststore.* options of "
            "the login module in sasl.jaas.config"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = awaited
        # The library's message quotes a response that is not HTTP, and that may contain secrets.
        raise NetworkError(
            f"the request to the token endpoint {credentials.endpoint} failed: "
            f"{credentials.quoted(reason)}"
        ) from None
    finally:
        connection.close()
        if connected is not None:
            connected.close()
    return access_token(credentials, status, body)
