"""A Schema Registry on loopback that answers what a test tells it to, and records all requests."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_POLL_SECONDS = 0.01
#: The schema of most tests.
TEXT = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def credentials(self) -> str | None:
        """The Authorization header, decoded if it is Basic."""
        value = self.headers.get("authorization")
        if value is None or not value.startswith("Basic "):
            return value
        return base64.b64decode(value.removeprefix("Basic ")).decode()


def error(status: int, code: int | None = None, message: str = "no") -> tuple[int, Any]:
    """Return an error as Confluent's registry answers it; without a code, as others do."""
    return status, {} if code is None else {"error_code": code, "message": message}


def by_version(schema_id: int, version: int, text: str = TEXT, **more: Any) -> dict[str, Any]:
    """Return the body of a version of a subject."""
    return {"subject": "s", "version": version, "id": schema_id, "schema": text, **more}


class FakeRegistry:
    """The registry, a context manager.

    `script` has the answers to the next requests: a status and a value, bytes in place of a value,
    or a function that is called with the handler. After that, `values` has those of paths.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free port."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake._answer(self)

            do_POST = do_GET  # noqa: N815 -- the library's name
            do_CONNECT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Log nothing, so that the test's output is clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )
        self.port = self._server.server_port
        self.url = f"http{'s' if tls else ''}://localhost:{self.port}"
        self.script: list[tuple[int, Any] | Callable[[BaseHTTPRequestHandler], None]] = []
        self.values: dict[str, Any] = {}
        self.asked: list[Asked] = []
        self.stopped = threading.Event()

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def paths(self) -> list[str]:
        """The paths of all requests."""
        return [asked.path for asked in self.asked]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        body = json.loads(content) if content else None
        self.asked.append(Asked(handler.command, handler.path, headers, body))
        step = self.script.pop(0) if self.script else None
        if callable(step):
            step(handler)
            return
        if step is None:
            value = self.values.get(handler.path)
            step = error(404, 40403, "not here") if value is None else (200, value)
        respond(handler, *step)


def respond(handler: BaseHTTPRequestHandler, status: int, value: Any) -> None:
    """Send a status and a JSON value, or bytes as they are."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def redirect_to(url: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a step that leads elsewhere."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return step


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection without an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def truncate(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection in the middle of a response."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"schema":')
    handler.close_connection = True


def silent(fake: FakeRegistry) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a step that never answers."""

    def step(_: BaseHTTPRequestHandler) -> None:
        fake.stopped.wait(60)

    return step


def dripping(fake: FakeRegistry) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a step whose response continues byte by byte without an end."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        with suppress(OSError):
            while not fake.stopped.wait(_POLL_SECONDS):
                handler.wfile.write(b" ")

    return step
