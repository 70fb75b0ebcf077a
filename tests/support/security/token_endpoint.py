"""A token endpoint on loopback that answers as a test demands and records all requests."""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs

if TYPE_CHECKING:
    import ssl


_POLL_SECONDS = 0.01


def jwt(subject: str = "client", *, lifetime: float = 3600.0, now: float | None = None) -> str:
    """Return an unsigned token."""
    began = time.time() if now is None else now
    claims = {"sub": subject, "iat": began, "exp": began + lifetime}
    parts = [{"alg": "none"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b""]).decode()


class TokenEndpoint:
    """The endpoint, a context manager; it responds with `answers` first, then with `token`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free port."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint._answer(self)

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
        self.url = f"http{'s' if tls else ''}://localhost:{self._server.server_port}/token?a=b"
        self.token = jwt()
        self.answers: list[tuple[int, Any]] = []
        #: Path, authorization (decoded) and form of each request.
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        #: While this is set, requests are not answered.
        self.silent = threading.Event()
        #: While this is set, a response is started and continues byte by byte without an end.
        self.dripping = threading.Event()
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._stopped.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
        scheme, _, value = handler.headers["Authorization"].partition(" ")
        assert scheme == "Basic"
        self.asked.append((handler.path, base64.b64decode(value).decode(), parse_qs(body)))
        if self.silent.is_set():
            self._stopped.wait(60)
            return
        if self.dripping.is_set():
            self._drip(handler)
            return
        status, answer = (
            self.answers.pop(0) if self.answers else (200, {"access_token": self.token})
        )
        content = json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        if status == 302:
            handler.send_header("Location", self.url)
        handler.end_headers()
        handler.wfile.write(content)

    def _drip(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while not self._stopped.wait(_POLL_SECONDS):
                handler.wfile.write(b" ")
