"""A client with one blocking socket that sends exactly what a test passes, in the same pieces."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request

if TYPE_CHECKING:
    from spark_kafka_sink.protocol.schema import ApiMessage

TIMEOUT_SECONDS = 120.0


class RawClient:
    """One connection to a broker."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Connect to a port of this machine."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._next_correlation_id = 0
        #: API and version of the requests that were sent, by correlation id.
        self._sent: dict[int, tuple[Any, int]] = {}

    def __enter__(self) -> Self:
        """Return the connected client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def frame(self, request: ApiMessage, version: int) -> bytes:
        """Encode a request with its size, and register it as sent."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self._sent[correlation_id] = (request.api_key, version)
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id="raw",
        )
        return b"".join(encode_request(header, request))

    def send_bytes(self, data: bytes) -> None:
        """Send exactly these bytes."""
        self._socket.sendall(data)

    def send(self, request: ApiMessage, version: int) -> None:
        """Send a request."""
        self.send_bytes(self.frame(request, version))

    def receive(self) -> tuple[int, Any]:
        """Read one response with its correlation id. Raises ConnectionError if there is none."""
        body = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", body)
        api_key, version = self._sent.pop(correlation_id)
        return decode_response(api_key, version, body)

    def receive_frame(self) -> bytes:
        """Read one response frame without its size. Raises ConnectionError if there is none."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def rest(self) -> bytes:
        """Read everything until the broker closes the connection."""
        received = bytearray()
        while piece := self._socket.recv(1 << 20):
            received += piece
        return bytes(received)

    def ask(self, request: ApiMessage, version: int) -> Any:
        """Send a request and return its response."""
        self.send(request, version)
        return self.receive()[1]

    def is_closed(self) -> bool:
        """Wait for data or the end of the stream; return whether the broker disconnected."""
        try:
            return b"" == self._socket.recv(1)
        except ConnectionError:
            return True

    def is_silent_for(self, seconds: float) -> bool:
        """Return whether the broker sends nothing for a while."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(TIMEOUT_SECONDS)
        return False

    def half_close(self) -> None:
        """Close the sending side of the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Announce the end of a TLS session, if there is one, and close the connection."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(0)
            with suppress(ssl.SSLWantReadError):  # It does not wait for the broker's announcement.
                self._socket.unwrap()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive_exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = self._socket.recv(min(1 << 20, count - len(received)))
            if not piece:
                raise ConnectionError(f"closed after {len(received)} of {count} bytes")
            received += piece
        return bytes(received)
