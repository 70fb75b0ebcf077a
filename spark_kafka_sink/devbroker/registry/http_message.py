"""HTTP/1.1 without sockets: bytes in, requests out, and responses as bytes.

`RequestReceiver` takes bytes as they arrive, in any pieces, and returns one request at a time. A
message is as RFC 9112 has it or it is refused, with no attempt to repair it: a message that two
readers could understand differently is refused, too (two lengths, a length beside chunks, a blank
before a colon, a line that continues the one before). Sizes are limited before anything is kept.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.devbroker.registry.rest_api import RestRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.registry.rest_api import RestResponse

MAX_HEAD_BYTES: Final = 32 * 1024
_MAX_HEADERS: Final = 100
#: More than the largest schema with its rules, escaped in JSON.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: The longest line that begins a chunk.
_MAX_CHUNK_LINE_BYTES: Final = 256
_END_OF_HEAD: Final = b"\r\n\r\n"
_END_OF_LINE: Final = b"\r\n"
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) ([!-~]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH: Final = re.compile(r"[0-9]{1,10}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\x00-\x1f\x7f]*)?")
#: The target with a scheme and an authority, as a proxy gets it.
_ORIGIN: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class MalformedRequestError(ValueError):
    """Bytes that are not a request, or one that is too large; the connection cannot go on."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestReceiver:
    """Turns the bytes of one connection into requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: Up to where the end of the head was not found.
        self._searched = 0
        #: The request whose body has not arrived as a whole.
        self.head: RestRequest | None = None
        #: What is missing of the body, or of its current chunk.
        self._missing = 0
        self._is_chunked = False
        self._body = bytearray()
        self._keeps_alive = True
        self._expects_continue = False

    @property
    def is_partial(self) -> bool:
        """Whether a part of a request has arrived."""
        return bool(self._buffer) or self.head is not None

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to send more after its last request."""
        return self._keeps_alive

    def receive(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._buffer += data

    def take_continue(self) -> bool:
        """Return whether the client waits for `CONTINUE`, once for each request."""
        expected, self._expects_continue = self._expects_continue, False
        return expected

    def next_request(self) -> RestRequest | None:
        """Return the next request, or None while a part of it is missing.

        Raises `MalformedRequestError`.
        """
        if self.head is None and not self._read_head():
            return None
        if not (self._read_chunks() if self._is_chunked else self._read_body()):
            return None
        head, self.head = self.head, None
        if head is None:
            return None
        body, self._body = bytes(self._body), bytearray()
        self._expects_continue = False
        return RestRequest(method=head.method, target=head.target, headers=head.headers, body=body)

    def _read_head(self) -> bool:
        # Clients may send empty lines between requests.
        while self._buffer.startswith(_END_OF_LINE):
            del self._buffer[: len(_END_OF_LINE)]
            self._searched = 0
        first = bytes(self._buffer[:1])
        if first not in {b"", _END_OF_LINE[:1]} and not first.isalpha():
            # At once: a client that begins with TLS waits for an answer to it.
            raise _malformed("the first byte is not that of a request of HTTP/1.1")
        end = self._buffer.find(_END_OF_HEAD, max(0, self._searched - len(_END_OF_HEAD)))
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise MalformedRequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request has more than {MAX_HEAD_BYTES} bytes",
            )
        if end < 0:
            self._searched = len(self._buffer)
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + len(_END_OF_HEAD)]
        self._searched = 0
        request_line = _REQUEST_LINE.fullmatch(lines[0])
        if request_line is None:
            raise _malformed("the first line is not that of a request of HTTP/1.1")
        headers = _headers(lines[1:])
        method, target, minor = request_line.groups()
        target = _ORIGIN.sub("", target, count=1) or "/"
        if not target.startswith("/"):
            raise _malformed("the target of the request is not a path")
        self._keeps_alive = _keeps_alive(headers, is_1_1=minor == "1")
        self._frame(headers, is_1_1=minor == "1")
        self.head = RestRequest(method=method, target=target, headers=headers)
        return True

    def _frame(self, headers: Mapping[str, str], *, is_1_1: bool) -> None:
        """Find out how long the body is."""
        encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if encoding is not None:
            if encoding.strip().lower() != "chunked" or length is not None or not is_1_1:
                raise _malformed("the length of the body is not clear")
        elif length is not None and not _LENGTH.fullmatch(length):
            raise _malformed("the length of the body is not a number")
        self._is_chunked = encoding is not None
        self._missing = int(length or 0)
        if self._missing > MAX_BODY_BYTES:
            raise _too_large()
        self._expects_continue = is_1_1 and headers.get("expect", "").lower() == "100-continue"

    def _read_body(self) -> bool:
        taken = self._buffer[: self._missing]
        del self._buffer[: len(taken)]
        self._body += taken
        self._missing -= len(taken)
        return not self._missing

    def _read_chunks(self) -> bool:
        """Read chunks; `_missing` counts the line's end after each."""
        while True:
            if self._missing:
                if not self._read_body():
                    return False
                if not self._body.endswith(_END_OF_LINE):
                    raise _malformed("a chunk of the body has another length")
                del self._body[-len(_END_OF_LINE) :]
            end = self._buffer.find(_END_OF_LINE, 0, _MAX_CHUNK_LINE_BYTES)
            if end < 0 and len(self._buffer) < _MAX_CHUNK_LINE_BYTES:
                return False
            line = _CHUNK.fullmatch(self._buffer[: max(end, 0)])
            if line is None:
                raise _malformed("a chunk of the body has no length")
            size = int(line[1], 16)
            if not size:
                return self._end_chunks(end)
            if len(self._body) + size > MAX_BODY_BYTES:
                raise _too_large()
            del self._buffer[: end + len(_END_OF_LINE)]
            self._missing = size + len(_END_OF_LINE)

    def _end_chunks(self, end: int) -> bool:
        """Read the empty line after the last chunk's; trailers are not needed, and refused."""
        ending = bytes(self._buffer[end : end + len(_END_OF_HEAD)])
        if not _END_OF_HEAD.startswith(ending):
            raise _malformed("the body has trailers")
        if ending != _END_OF_HEAD:
            return False
        del self._buffer[: end + len(_END_OF_HEAD)]
        return True


def _malformed(message: str) -> MalformedRequestError:
    return MalformedRequestError(HTTPStatus.BAD_REQUEST, message)


def _too_large() -> MalformedRequestError:
    return MalformedRequestError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes"
    )


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > _MAX_HEADERS:
        raise MalformedRequestError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request has more than {_MAX_HEADERS} headers",
        )
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _malformed("a line of the head is not a header")
        name, value = header[1].lower(), header[2].strip(" \t")
        if name in headers:
            if name in {"content-length", "transfer-encoding", "host", "authorization"}:
                raise _malformed(f"the request has two headers {name}")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _keeps_alive(headers: Mapping[str, str], *, is_1_1: bool) -> bool:
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    return "close" not in options if is_1_1 else "keep-alive" in options


def encode_response(
    response: RestResponse, *, closes: bool, without_body: bool = False, challenge: str = ""
) -> bytes:
    """Return a response as bytes.

    `closes` says that the connection ends after it; `without_body` is for HEAD; `challenge` says
    how to authenticate.
    """
    lines = [
        f"HTTP/1.1 {response.status} {_reason(response.status)}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        f"Connection: {'close' if closes else 'keep-alive'}",
    ]
    if challenge:
        lines.append(f"WWW-Authenticate: {challenge}")
    head = "\r\n".join(lines).encode("ascii") + _END_OF_HEAD
    return head if without_body else head + response.body


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
