"""A peer on loopback that answers each request as a test's script says, byte for byte."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from spark_kafka_sink.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable

#: Maps a request's frame (without its size) to the bytes to send, or None to close the connection.
Script = "Callable[[bytes], bytes | None]"


#: How often the server checks whether it has been stopped.
_LOOK_SECONDS = 0.05
#: How long a client may take to receive a response, however large it is and busy the machine.
_SEND_SECONDS = 120.0


class ScriptedBroker:
    """A server that serves one connection after another until it is stopped."""

    def __init__(self, script: Callable[[bytes], bytes | None]) -> None:
        """Listen; the script is called on the server's thread."""
        self._script = script
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(_LOOK_SECONDS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.requests: list[bytes] = []

    @property
    def node(self) -> Node:
        """The server's address as a client's metadata would contain it."""
        return Node(7, *self._server.getsockname())

    def __enter__(self) -> Self:
        """Start the server."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._stopping.set()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(_LOOK_SECONDS)
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        received = b""
        while not self._stopping.is_set():
            try:
                data = connection.recv(65_536)
            except TimeoutError:
                continue
            except ConnectionError:
                return
            if not data:
                return
            received += data
            while len(received) >= 4:
                (size,) = struct.unpack_from(">i", received)
                if len(received) < 4 + size:
                    break
                request, received = received[4 : 4 + size], received[4 + size :]
                self.requests.append(request)
                answer = self._script(request)
                if answer is None:
                    return
                connection.settimeout(_SEND_SECONDS)
                try:
                    connection.sendall(answer)
                except ConnectionError:
                    return  # The client may close the connection.
                connection.settimeout(_LOOK_SECONDS)
